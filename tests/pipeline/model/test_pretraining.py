"""The losses: a mean over real masked positions, whatever the rows."""

import pytest
import torch
from torch.nn import functional as F

from pipeline.model.encoder import EncoderShape
from pipeline.model.pretraining import Batch, BertForPretraining, MaskedLMHead, losses

SHAPE = EncoderShape(50, 2, 16, 2, 32, 0.0, 20)


@pytest.fixture
def model() -> BertForPretraining:
    torch.manual_seed(0)
    return BertForPretraining(SHAPE)


def batch(lengths: tuple[int, ...] = (6, 3, 8), masked: tuple[int, ...] = (1, 4, 10, 12, 15)) -> Batch:
    generator = torch.Generator().manual_seed(1)
    tokens = sum(lengths)
    return Batch(
        torch.randint(5, 50, (tokens,), generator=generator),
        torch.zeros(tokens, dtype=torch.long),
        torch.tensor([0, *lengths]).cumsum(0),
        torch.tensor(masked, dtype=torch.long),
        torch.randint(5, 50, (len(masked),), generator=generator),
        torch.arange(len(lengths)) % 2,
    )


def test_a_slot_that_is_no_mask_weighs_nothing() -> None:
    """Cross-entropies 2 and 8, of which only the first is a mask's: the loss is 2, not 5. A batch has no other slots."""
    one, both = batch((4,), (1,)), batch((4,), (1, 2))
    assert losses(torch.tensor(2.0), torch.zeros(1, 2), one).mean()[0].item() == pytest.approx(2.0)
    assert losses(torch.tensor(2.0 + 8.0), torch.zeros(1, 2), both).mean()[0].item() == pytest.approx(5.0)


def test_rows_with_few_and_many_masks_weigh_by_their_masks(model: BertForPretraining) -> None:
    """The mean over a batch is that of a plain cross-entropy over all its masked positions."""
    rows = batch((6, 3, 12), (1, 7, 10, 11, 12, 13, 14))
    with torch.no_grad():
        logits_MV, _ = model.logits(rows)
        assert model(rows).mean()[0].item() == pytest.approx(F.cross_entropy(logits_MV, rows.labels).item(), rel=1e-6)


@pytest.mark.parametrize("masks", [1, 5, 700])
def test_the_blockwise_loss_and_its_gradients_are_those_of_the_plain_one(masks: int) -> None:
    torch.manual_seed(0)
    head = MaskedLMHead(SHAPE)
    labels = torch.randint(0, 50, (masks,))
    results = []
    for plain in (True, False):
        x_MD = torch.randn(masks, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        loss = F.cross_entropy(head(x_MD), labels, reduction="sum") if plain else head.loss_sum(x_MD, labels)
        head.zero_grad()
        (loss / masks).backward()
        results.append([loss.detach(), x_MD.grad, *(parameter.grad.clone() for parameter in head.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_losses_of_parts_add_up_to_those_of_the_whole(model: BertForPretraining) -> None:
    whole = model(batch())
    one, rest = batch((6,), (1, 4)), batch()
    rest = Batch(
        rest.input_ids[6:],
        rest.token_type_ids[6:],
        rest.offsets[1:] - 6,
        rest.masked[2:] - 6,
        rest.labels[2:],
        rest.next_sentence_label[1:],
    )
    one = Batch(batch().input_ids[:6], one.token_type_ids, one.offsets, one.masked, batch().labels[:2], batch().next_sentence_label[:1])
    parts = [model(part) for part in (one, rest)]
    torch.testing.assert_close(whole.mlm_sum, parts[0].mlm_sum + parts[1].mlm_sum)
    torch.testing.assert_close(whole.next_sentence_sum, parts[0].next_sentence_sum + parts[1].next_sentence_sum)
    assert (int(whole.mlm_count), int(whole.next_sentence_count)) == (5, 3)


def test_logits_at_masked_positions_equal_those_of_the_full_computation(model: BertForPretraining) -> None:
    rows = batch()
    with torch.no_grad():
        logits_MV, _ = model.logits(rows)
        everywhere_NV = model.masked_lm(model.encoder(rows.input_ids, rows.token_type_ids, rows.offsets))
    torch.testing.assert_close(logits_MV, everywhere_NV[rows.masked], atol=1e-6, rtol=1e-6)
    assert logits_MV.shape == (5, 50)
    torch.testing.assert_close(model(rows).mlm_sum, F.cross_entropy(everywhere_NV[rows.masked], rows.labels, reduction="sum"))


def test_no_mask_at_all_gives_a_finite_loss_of_weight_zero(model: BertForPretraining) -> None:
    found = model(batch(masked=()))
    mlm, next_sentence = found.mean()
    assert mlm.item() == 0.0 and int(found.mlm_count) == 0
    (mlm + next_sentence).backward()
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_the_next_sentence_head_reads_the_first_token_of_each_row(model: BertForPretraining) -> None:
    rows = batch()
    with torch.no_grad():
        x_ND = model.encoder(rows.input_ids, rows.token_type_ids, rows.offsets)
        wanted = model.next_sentence(x_ND[torch.tensor([0, 6, 9])])
        torch.testing.assert_close(model.logits(rows)[1], wanted)
