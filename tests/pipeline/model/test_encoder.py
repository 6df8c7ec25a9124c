"""The encoder: the deck's size, and rows that do not see each other."""

from dataclasses import replace

import pytest
import torch

from pipeline.model.dropout import Dropout
from pipeline.model.encoder import Encoder, EncoderShape
from pipeline.model.layout import Layout, Reads
from pipeline.model.pretraining import BertForPretraining

SMALL = EncoderShape(
    vocab_size=50,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
    max_position_embeddings=20,
    architecture="deck",
)
DECK = EncoderShape(
    vocab_size=20_256,
    num_hidden_layers=2,
    hidden_size=128,
    num_attention_heads=2,
    intermediate_size=256,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
    max_position_embeddings=1000,
    architecture="deck",
)


def encode(encoder: Encoder, rows: list[list[int]], padded: bool = False) -> list[torch.Tensor]:
    """Each row's vectors, the rows being encoded together."""
    lengths = [len(row) for row in rows]
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return list(encoder(ids, torch.zeros_like(ids), Layout.of(torch.tensor(lengths), padded)).split(lengths))


@pytest.fixture(params=["deck", "bert"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Of either architecture; the published one's weights ten times as large as drawn, so that they matter."""
    torch.manual_seed(0)
    found = Encoder(replace(SMALL, architecture=request.param)).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            if request.param == "bert" and parameter.ndim > 1:
                parameter *= 10
    return found


def test_the_deck_has_5_632_546_parameters() -> None:
    with torch.device("meta"):
        model = BertForPretraining(DECK)
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_632_546


def test_positions_are_drawn_from_a_standard_normal_distribution() -> None:
    torch.manual_seed(0)
    weight = Encoder(DECK).position_embedding.weight
    assert weight.shape == (1000, 128)
    assert abs(weight.mean()) < 0.01 and abs(weight.std() - 1) < 0.01


@pytest.mark.parametrize("padded", [False, True])
def test_rows_of_unequal_length_are_encoded_as_if_alone(encoder: Encoder, padded: bool) -> None:
    rows = [[2, 7, 9, 3], [2, 3], [2, 8, 3], [2, 9, 3], [2, *range(5, 23), 3], [4]]  # the longest at full length
    together = encode(encoder, rows, padded)
    for row, vectors in zip(rows, together, strict=True):
        torch.testing.assert_close(vectors, encode(encoder, [row])[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_vectors_that_are_read_are_those_of_the_full_computation(encoder: Encoder, padded: bool) -> None:
    """Rows of one length with 0 and 3 masks, of another with 1, and no row at all; values and gradients."""
    lengths, mask_counts = torch.tensor([3, 3, 5]), torch.tensor([0, 3, 1])
    masked, ids = torch.tensor([3, 4, 5, 9]), torch.arange(5, 16)
    layout = Layout.of(lengths, padded)
    reads, places, first = Reads.of(layout, lengths, masked, mask_counts)
    assert reads.tokens[places].tolist() == masked.tolist() and reads.tokens[first].tolist() == [0, 3, 6]
    found = []
    for vectors in (encoder(ids, ids * 0, layout)[reads.tokens], encoder(ids, ids * 0, layout, reads)):
        encoder.zero_grad()
        vectors.square().sum().backward()
        found.append([vectors.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])
    for full, read in zip(*found, strict=True):
        torch.testing.assert_close(read, full, atol=1e-5, rtol=1e-5)
    none = torch.tensor([], dtype=torch.long)
    reads, _, _ = Reads.of(Layout.of(none, padded), none, none, none)
    assert encoder.train()(none, none, Layout.of(none, padded), reads).shape == (0, 16)


def test_attention_over_a_padded_grid_and_over_groups_learn_alike() -> None:
    """Its explicit form, which CPU training takes for its dropout, at a rate so low that nothing is dropped."""
    found = []
    rows = [[2, 7, 3], [2, 8, 3], [2, *range(5, 23), 3]]
    for rate, padded in ((0.0, False), (0.0, True), (1e-7, False), (1e-7, True)):
        torch.manual_seed(0)
        encoder = Encoder(replace(SMALL, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)).train()
        torch.cat(encode(encoder, rows, padded)).square().sum().backward()
        found.append([parameter.grad for parameter in encoder.parameters()])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


def test_dropout_drops_at_its_rate_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    ones = torch.ones(1001, 997)
    for rate in (0.1, 0.2, 0.5):
        found = Dropout(rate).train()(ones)
        assert found.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-4)
        assert (found == 0).float().mean().item() == pytest.approx(rate, abs=0.002)
        assert found.mean().item() == pytest.approx(1.0, abs=0.002)
        neighbours = (found[:, 1:] == 0) & (found[:, :-1] == 0)
        assert neighbours.float().mean().item() == pytest.approx(rate**2, abs=0.002), "entries are independent"
    assert Dropout(0.2).eval()(ones) is ones


@pytest.mark.parametrize("padded", [False, True])
def test_an_empty_row_is_harmless(encoder: Encoder, padded: bool) -> None:
    first, second = encode(encoder.train(False), [[2, 7, 3], []], padded)
    assert torch.isfinite(first).all() and second.shape == (0, 16)
    torch.testing.assert_close(first, encode(encoder, [[2, 7, 3]])[0], atol=1e-6, rtol=1e-5)
    encoder.train()
    sum(part.sum() for part in encode(encoder, [[2, 7, 3], []], padded)).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in encoder.parameters() if parameter.grad is not None)


def test_position_and_segment_matter(encoder: Encoder) -> None:
    ids, layout = torch.tensor([2, 7, 7, 3]), Layout.of(torch.tensor([4]))
    plain = encoder(ids, torch.zeros(4, dtype=torch.long), layout)
    assert not torch.allclose(plain[1], plain[2], atol=1e-3)
    assert not torch.allclose(plain, encoder(ids, torch.tensor([0, 0, 1, 1]), layout), atol=1e-3)


def test_dropout_is_of_training_only(encoder: Encoder) -> None:
    row = [[2, 7, 9, 3]]
    assert torch.equal(encode(encoder, row)[0], encode(encoder, row)[0])
    encoder.train()
    assert not torch.equal(encode(encoder, row)[0], encode(encoder, row)[0])


def test_rows_of_few_lengths_are_groups_and_others_one_grid() -> None:
    for lengths, grid in (([7], False), ([3] * 20, False), ([3, 4], True), ([3] * 40 + [5] * 40, False), (list(range(1, 65)) * 8, True)):
        layout = Layout.of(torch.tensor(lengths))
        assert (layout.slots is not None) == grid
        assert sum(rows for rows, _ in layout.groups) == len(lengths)
