"""Attention as it is drawn is that of the model."""

from pathlib import Path

import pytest
import torch

from pipeline.encoding import Encoder
from pipeline.model.encoder import SelfAttention
from pipeline.model.layout import Layout
from pipeline.storage import Output
from pipeline.views import attention_weights, in_a_plane, last_attention


def test_the_weights_are_those_by_which_the_layer_mixes_its_values(small_encoder: Output) -> None:
    encoder = Encoder.load(Path(small_encoder.address))
    attention = encoder.model.encoder.layers[-1].attention
    assert isinstance(attention, SelfAttention)
    x_LD = torch.randn(7, 16, generator=torch.Generator().manual_seed(0))
    weights = attention_weights(attention, x_LD)
    assert weights.shape == (2, 7, 7)
    with torch.inference_mode():
        values = torch.nn.functional.linear(x_LD, attention.qkv.weight, attention.qkv.bias)[:, 32:].view(7, 2, 8).transpose(0, 1)
        mixed = attention.out((weights @ values).transpose(0, 1).reshape(7, 16))
        torch.testing.assert_close(mixed, attention(x_LD, x_LD, Layout.of(torch.tensor([7]))))


def test_a_sentences_attention_has_a_row_for_each_token(small_encoder: Output) -> None:
    encoder = Encoder.load(Path(small_encoder.address))
    weights = last_attention(encoder, "a crane driver came", "he just left")
    assert weights.shape == (2, 10, 10)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 10))
    assert not encoder.model.encoder.layers[-1].attention._forward_pre_hooks, "the encoder is left as it was"


def test_the_plane_is_the_one_in_which_vectors_differ_most() -> None:
    corners = [torch.tensor([x, 5.0, y, 0.01 * x * y]) for x in (-3.0, 3.0) for y in (-1.0, 1.0)]
    points, shares = in_a_plane(corners)
    assert points.abs().tolist() == [pytest.approx([3.0, 1.0])] * 4
    assert shares == pytest.approx([0.9, 0.1], abs=1e-3)
