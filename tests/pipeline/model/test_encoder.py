"""The encoder: the deck's size, and rows that do not see each other."""

import pytest
import torch

from pipeline.model.encoder import Encoder, EncoderShape
from pipeline.model.pretraining import BertForPretraining

SMALL = EncoderShape(
    vocab_size=50,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.2,
    max_position_embeddings=20,
)
DECK = EncoderShape(
    vocab_size=20_256,
    num_hidden_layers=2,
    hidden_size=128,
    num_attention_heads=2,
    intermediate_size=256,
    hidden_dropout_prob=0.2,
    max_position_embeddings=1000,
)


def encode(encoder: Encoder, rows: list[list[int]]) -> list[torch.Tensor]:
    """Each row's vectors, the rows being encoded together."""
    lengths = [len(row) for row in rows]
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return list(encoder(ids, torch.zeros_like(ids), offsets).split(lengths))


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(SMALL).eval()


def test_the_deck_has_5_632_546_parameters() -> None:
    with torch.device("meta"):
        model = BertForPretraining(DECK)
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_632_546


def test_positions_are_drawn_from_a_standard_normal_distribution() -> None:
    torch.manual_seed(0)
    weight = Encoder(DECK).position_embedding.weight
    assert weight.shape == (1000, 128)
    assert abs(weight.mean()) < 0.01 and abs(weight.std() - 1) < 0.01


def test_rows_of_unequal_length_are_encoded_as_if_alone(encoder: Encoder) -> None:
    rows = [[2, 7, 9, 3], [2, 3], [2, *range(5, 22), 3], [4]]
    together = encode(encoder, rows)
    for row, vectors in zip(rows, together, strict=True):
        torch.testing.assert_close(vectors, encode(encoder, [row])[0], atol=1e-6, rtol=1e-5)


def test_an_empty_row_is_harmless(encoder: Encoder) -> None:
    first, second = encode(encoder.train(False), [[2, 7, 3], []])
    assert torch.isfinite(first).all() and second.shape == (0, 16)
    torch.testing.assert_close(first, encode(encoder, [[2, 7, 3]])[0], atol=1e-6, rtol=1e-5)
    encoder.train()
    sum(part.sum() for part in encode(encoder, [[2, 7, 3], []])).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in encoder.parameters() if parameter.grad is not None)


def test_position_and_segment_matter(encoder: Encoder) -> None:
    ids, offsets = torch.tensor([2, 7, 7, 3]), torch.tensor([0, 4])
    plain = encoder(ids, torch.zeros(4, dtype=torch.long), offsets)
    assert not torch.allclose(plain[1], plain[2], atol=1e-3)
    assert not torch.allclose(plain, encoder(ids, torch.tensor([0, 0, 1, 1]), offsets), atol=1e-3)


def test_dropout_is_of_training_only(encoder: Encoder) -> None:
    row = [[2, 7, 9, 3]]
    assert torch.equal(encode(encoder, row)[0], encode(encoder, row)[0])
    encoder.train()
    assert not torch.equal(encode(encoder, row)[0], encode(encoder, row)[0])
