"""What the published architecture decides: initial weights, norms, dropout, a tied decoder, the published sizes."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from pipeline.model.encoder import EncoderShape
from pipeline.model.layout import Layout
from pipeline.model.pretraining import BertForPretraining
from pipeline.settings import load_preset

SHAPE = EncoderShape(500, 2, 64, 2, 128, 0.1, 0.1, 32, "bert")


@pytest.fixture
def model() -> BertForPretraining:
    torch.manual_seed(0)
    return BertForPretraining(SHAPE)


def test_weights_are_drawn_around_0_with_deviation_0_02_biases_are_0_and_norms_1(model: BertForPretraining) -> None:
    parameters = dict(model.named_parameters())
    drawn = torch.cat([value.flatten() for value in parameters.values() if value.ndim > 1])
    assert len(drawn) > 100_000
    assert abs(drawn.mean()) < 3 * 0.02 / len(drawn) ** 0.5 and abs(drawn.std() / 0.02 - 1) < 0.01
    for name, value in parameters.items():
        if value.ndim > 1:
            assert abs(value.std() / 0.02 - 1) < 0.2, name
        else:
            assert (value == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name


def test_norms_have_the_architectures_epsilon(model: BertForPretraining) -> None:
    for found, epsilon in ((model, 1e-12), (BertForPretraining(replace(SHAPE, architecture="deck")), 1e-5)):
        assert {module.eps for module in found.modules() if isinstance(module, nn.LayerNorm)} == {epsilon}


def test_the_decoders_weight_is_the_token_embedding_and_is_saved_once(model: BertForPretraining) -> None:
    state = model.state_dict()
    assert "masked_lm.decoder.weight" not in state and "masked_lm.decoder.bias" in state
    assert {"encoder.embedding_norm.weight", "encoder.embedding_norm.bias"} < set(state)
    other = BertForPretraining(SHAPE)
    other.load_state_dict(state)
    for found in (other, copy.deepcopy(model), copy.deepcopy(model).to(torch.float64)):
        assert found.masked_lm.decoder.weight is found.encoder.token_embedding.weight
    assert copy.deepcopy(model).masked_lm.decoder.weight is not model.masked_lm.decoder.weight
    assert "masked_lm.decoder.weight" in BertForPretraining(replace(SHAPE, architecture="deck")).state_dict()


@pytest.mark.parametrize(
    ("hidden", "attention", "differ"), [(0.0, 0.0, False), (0.5, 0.0, True), (0.0, 0.5, True)], ids=["none", "hidden", "attention"]
)
def test_dropout_of_attention_is_a_rate_of_its_own(hidden: float, attention: float, differ: bool) -> None:
    torch.manual_seed(0)
    model = BertForPretraining(replace(SHAPE, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)).train()
    ids, layout = torch.arange(5, 25), Layout.of(torch.tensor([20]))
    one, other = (model.encoder(ids, ids * 0, layout) for _ in range(2))
    assert torch.equal(one, other) != differ


def test_the_embeddings_are_normed_and_then_dropped(model: BertForPretraining) -> None:
    """With layers that hand on what they get, but for their norms, which change nothing of what is normed."""
    with torch.no_grad():
        for layer in model.encoder.layers:
            for part in (layer.attention.out, layer.output):
                part.weight.zero_()
    ids, layout = torch.arange(5, 25), Layout.of(torch.tensor([20]))
    x = model.encoder.eval()(ids, ids * 0, layout)
    assert x.mean(1).abs().max() < 1e-5 and (x.std(1, unbiased=False) - 1).abs().max() < 1e-4
    dropped = []
    model.encoder.layers[0].register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0]))
    model.train().encoder(ids.repeat(100), ids.repeat(100) * 0, Layout.of(torch.tensor([20] * 100)))
    assert (dropped[0] == 0).float().mean().item() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("preset", "millions"), [("mini", 11.2), ("small", 28.8), ("medium", 41.4), ("base", 109.5), ("large", 335.1)])
def test_the_presets_have_the_published_sizes(preset: str, millions: float) -> None:
    """Of the encoder and its pooler with 30,522 tokens, as Turc et al. and transformers count; the heads are 0.1 to 1.1 million more."""
    with torch.device("meta"):
        model = BertForPretraining(EncoderShape(vocab_size=30_522, **load_preset(preset).model.as_dict()))
    parts = (model.encoder, model.next_sentence.pooler)
    published = sum(parameter.numel() for part in parts for parameter in part.parameters())
    assert published / 1e6 == pytest.approx(millions, abs=0.05)
    assert 0.09e6 < sum(parameter.numel() for parameter in model.parameters()) - published < 1.1e6


def test_base_and_large_have_110_and_336_million_parameters_with_their_heads() -> None:
    for preset, wanted in (("base", 110_106_428), ("large", 336_226_108)):
        with torch.device("meta"):
            model = BertForPretraining(EncoderShape(vocab_size=30_522, **load_preset(preset).model.as_dict()))
        assert sum(parameter.numel() for parameter in model.parameters()) == wanted
