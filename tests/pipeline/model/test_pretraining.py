"""The losses: a mean over real masked positions, whatever the rows."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from pipeline.model.cross_entropy import linear_cross_entropy_sum
from pipeline.model.encoder import EncoderShape
from pipeline.model.layout import Layout, Reads
from pipeline.model.pretraining import Batch, BertForPretraining, Losses, MaskedLMHead, losses

SHAPE = EncoderShape(50, 2, 16, 2, 32, 0.0, 0.0, 20, "deck")


@pytest.fixture(params=["deck", "bert"])
def model(request: pytest.FixtureRequest) -> BertForPretraining:
    """Of either architecture; the published one's weights ten times as large as drawn, so that they matter."""
    torch.manual_seed(0)
    found = BertForPretraining(replace(SHAPE, architecture=request.param))
    with torch.no_grad():
        for parameter in found.parameters():
            if request.param == "bert" and parameter.ndim > 1:
                parameter *= 10
    return found


def batch(
    lengths: tuple[int, ...] = (6, 3, 8), masked: tuple[int, ...] = (1, 4, 10, 12, 15), rows: slice = slice(None), padded: bool = False
) -> Batch:
    """A batch, or some of its rows, with the same tokens and labels."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 50, (sum(lengths),), generator=generator)
    labels = torch.randint(5, 50, (len(masked),), generator=generator)
    ends = torch.tensor(lengths).cumsum(0)
    row_of_mask = torch.searchsorted(ends, torch.tensor(masked, dtype=torch.long), right=True)
    chosen = torch.arange(len(lengths))[rows]
    start, end = int(ends[chosen[0]]) - lengths[chosen[0]], int(ends[chosen[-1]])
    taken = torch.isin(row_of_mask, chosen)
    return Batch.of(
        ids[start:end],
        torch.zeros(end - start, dtype=torch.long),
        torch.tensor(lengths)[rows],
        torch.tensor(masked, dtype=torch.long)[taken] - start,
        torch.bincount(row_of_mask, minlength=len(lengths))[rows],
        labels[taken],
        chosen % 2,
        padded=padded,
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


@pytest.mark.parametrize("masks", [1, 5, 700, 1030])
def test_the_blockwise_loss_and_its_gradients_are_those_of_the_plain_one(masks: int) -> None:
    torch.manual_seed(0)
    head = MaskedLMHead(SHAPE, torch.nn.Embedding(50, 16))
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


def test_the_blockwise_loss_is_finite_where_a_probability_underflows() -> None:
    """Logits 1, 0 and -200: the cross-entropy of the last is 201.3 nats."""
    x, weight, bias = torch.ones(2, 1), torch.tensor([[1.0], [0.0], [-200.0]]), torch.zeros(3)
    labels = torch.tensor([2, 0])
    wanted = F.cross_entropy(F.linear(x, weight, bias), labels, reduction="sum")
    torch.testing.assert_close(linear_cross_entropy_sum(x, weight, bias, labels), wanted)


def test_the_summed_loss_is_exact_where_each_is_small() -> None:
    """The logits of 4,096 rows are near 200, their cross-entropies near 0.005 nats: two sums of logits would lose them."""
    generator = torch.Generator().manual_seed(0)
    x_MD, weight_VD = torch.randn(4096, 16, generator=generator), torch.randn(50, 16, generator=generator)
    bias_V, labels = torch.full((50,), 200.0), torch.randint(0, 50, (4096,), generator=generator)
    x_MD = 2.0 * weight_VD[labels] + 0.1 * x_MD
    found = linear_cross_entropy_sum(x_MD, weight_VD, bias_V, labels)
    wanted = F.cross_entropy(F.linear(x_MD, weight_VD, bias_V).double(), labels, reduction="sum")
    torch.testing.assert_close(found.double(), wanted, rtol=5e-3, atol=0)


def gradients(model: BertForPretraining, rows: Batch, dtype: torch.dtype | None = None) -> tuple[Losses, list[torch.Tensor]]:
    model.zero_grad()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        found = model(rows)
    sum(found.mean()).backward()
    return found, [parameter.grad.clone() for parameter in model.parameters()]


def test_bf16_products_give_fp32_losses_and_gradients_near_those_of_fp32(model: BertForPretraining) -> None:
    """Within what 8 bits of mantissa allow: losses 0.5%, the gradient 3% of its norm."""
    rows = batch((6, 3, 8, 20, 3), (1, 4, 10, 12, 15, 20, 38))
    (full, full_gradients), (half, half_gradients) = gradients(model, rows), gradients(model, rows, torch.bfloat16)
    for mine, wanted in zip(half.mean(), full.mean(), strict=True):
        assert mine.dtype == torch.float32 and mine.item() == pytest.approx(wanted.item(), rel=5e-3)
    mine, wanted = (torch.cat([value.flatten() for value in values]) for values in (half_gradients, full_gradients))
    assert 0 < (mine - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize(("lengths", "masked"), [((6,), (2,)), ((3, 3, 20, 3), (1, 4, 9)), ((2, 2), ()), ((20,), tuple(range(20)))])
def test_a_padded_grid_gives_the_losses_and_gradients_of_groups(
    model: BertForPretraining, lengths: tuple[int, ...], masked: tuple[int, ...]
) -> None:
    """A batch of one, rows of few tokens beside one at full length, no mask, all tokens masked."""
    groups = batch(lengths, masked)
    layout = Layout.of(torch.tensor(lengths), padded=True)
    row_of_token = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    counts = row_of_token[list(masked)].bincount(minlength=len(lengths))
    reads, places, first = Reads.of(layout, torch.tensor(lengths), groups.reads.tokens[groups.masked], counts)
    padded = replace(groups, layout=layout, reads=reads, masked=places, first=first)
    (one, one_gradients), (other, other_gradients) = gradients(model, groups), gradients(model, padded)
    torch.testing.assert_close(one.mean(), other.mean(), atol=1e-6, rtol=1e-5)
    for mine, wanted in zip(one_gradients, other_gradients, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-6, rtol=1e-5)


def plain_losses(model: BertForPretraining, rows: list[torch.Tensor], masked: list[list[int]], labels: list[int]) -> torch.Tensor:
    """The loss row by row, as its formulas read: attention by softmax, all logits, plain cross-entropies."""
    encoder, head, (mlm, nsp) = model.encoder, model.masked_lm, ([], [])
    bert = encoder.shape.architecture == "bert"
    activation, decoder_weight = (F.gelu, encoder.token_embedding.weight) if bert else (F.relu, head.decoder.weight)
    for ids, places in zip(rows, masked, strict=True):
        positions = torch.arange(len(ids))
        x = encoder.token_embedding(ids) + encoder.token_type_embedding(ids * 0) + encoder.position_embedding(positions)
        x = F.layer_norm(x, (16,), encoder.embedding_norm.weight, encoder.embedding_norm.bias, 1e-12) if bert else x
        for layer in encoder.layers:
            attention = layer.attention
            q, k, v = (part.view(len(ids), 2, 8).transpose(0, 1) for part in attention.qkv(x).chunk(3, 1))
            mixed = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v
            x = layer.attention_norm(x + attention.out(mixed.transpose(0, 1).reshape(len(ids), 16)))
            x = layer.output_norm(x + layer.output(activation(layer.intermediate(x))))
        mlm.append(F.linear(head.norm(activation(head.transform(x))), decoder_weight, head.decoder.bias)[places])
        nsp.append(model.next_sentence(x[:1]))
    count = max(sum(map(len, masked)), 1)
    mlm_sum = F.cross_entropy(torch.cat(mlm), torch.tensor(labels, dtype=torch.long), reduction="sum")
    return mlm_sum / count + F.cross_entropy(torch.cat(nsp), torch.arange(len(rows)) % 2)


@pytest.mark.parametrize(
    ("lengths", "masked"),
    [((6, 3, 8, 3), (1, 4, 10, 12, 15)), ((6,), (2,)), ((5, 5, 5), (1, 3, 6, 11)), ((20, 5), tuple(range(20))), ((6, 5), ())],
    ids=["ragged", "batch of one", "one token a segment", "full length", "no mask"],
)
@pytest.mark.parametrize("padded", [False, True])
def test_losses_and_gradients_are_those_of_the_plain_formulas(
    model: BertForPretraining, lengths: tuple[int, ...], masked: tuple[int, ...], padded: bool
) -> None:
    found = batch(lengths, masked, padded=padded)
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    rows = list(found.input_ids.split(lengths))
    within = [[m - int(s) for m in masked if s <= m < s + length] for s, length in zip(starts, lengths, strict=True)]
    both = []
    for loss in (lambda: sum(model(found).mean()), lambda: plain_losses(model, rows, within, found.labels.tolist())):
        model.zero_grad(set_to_none=False)
        value = loss()
        value.backward()
        both.append([value.detach(), *(p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters())])
    for mine, wanted in zip(*both, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-6, rtol=1e-5)


def test_losses_of_parts_add_up_to_those_of_the_whole(model: BertForPretraining) -> None:
    whole = model(batch())
    parts = [model(batch(rows=part)) for part in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(whole.mlm_sum, parts[0].mlm_sum + parts[1].mlm_sum)
    torch.testing.assert_close(whole.next_sentence_sum, parts[0].next_sentence_sum + parts[1].next_sentence_sum)
    assert (int(whole.mlm_count), int(whole.next_sentence_count)) == (5, 3)


def test_logits_at_masked_positions_equal_those_of_the_full_computation(model: BertForPretraining) -> None:
    rows = batch()
    with torch.no_grad():
        logits_MV, _ = model.logits(rows)
        everywhere_NV = model.masked_lm(model.encoder(rows.input_ids, rows.token_type_ids, rows.layout))
    logits_at_masks_MV = everywhere_NV[rows.reads.tokens[rows.masked]]
    torch.testing.assert_close(logits_MV, logits_at_masks_MV, atol=1e-6, rtol=1e-6)
    assert logits_MV.shape == (5, 50)
    torch.testing.assert_close(model(rows).mlm_sum, F.cross_entropy(logits_at_masks_MV, rows.labels, reduction="sum"))


def test_no_mask_at_all_gives_a_finite_loss_of_weight_zero(model: BertForPretraining) -> None:
    found = model(batch(masked=()))
    mlm, next_sentence = found.mean()
    assert mlm.item() == 0.0 and int(found.mlm_count) == 0
    (mlm + next_sentence).backward()
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_the_next_sentence_head_reads_the_first_token_of_each_row(model: BertForPretraining) -> None:
    rows = batch()
    with torch.no_grad():
        x_ND = model.encoder(rows.input_ids, rows.token_type_ids, rows.layout)
        wanted = model.next_sentence(x_ND[torch.tensor([0, 6, 9])])
        torch.testing.assert_close(model.logits(rows)[1], wanted)


def test_a_row_without_a_pair_weighs_nothing(model: BertForPretraining) -> None:
    rows = batch()
    some = replace_labels(rows, [0, -100, 1])
    with torch.no_grad():
        _, logits_B2 = model.logits(rows)
        wanted = F.cross_entropy(logits_B2[[0, 2]], torch.tensor([0, 1]))
        found = model(some)
    torch.testing.assert_close(found.mean()[1], wanted)
    assert int(found.next_sentence_count) == 2


def test_rows_without_any_pair_give_a_finite_loss_of_weight_zero(model: BertForPretraining) -> None:
    found = model(replace_labels(batch(), [-100] * 3))
    mlm, next_sentence = found.mean()
    assert next_sentence.item() == 0.0 and int(found.next_sentence_count) == 0
    (mlm + next_sentence).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
    assert not model.next_sentence.classifier.weight.grad.any()


def replace_labels(rows: Batch, labels: list[int]) -> Batch:
    """The same rows with these next-sentence labels."""
    lengths, counts = torch.tensor([6, 3, 8]), torch.tensor([2, 0, 3])
    masked = rows.reads.tokens[rows.masked]
    return Batch.of(rows.input_ids, rows.token_type_ids, lengths, masked, counts, rows.labels, torch.tensor(labels))
