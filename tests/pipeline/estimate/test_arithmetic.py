"""What formulas say of a model, beside the model."""

from dataclasses import asdict, replace

import pytest
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from pipeline.estimate.arithmetic import TRAINING, Work, activation_bytes, forward_flop, parameters
from pipeline.model.encoder import EncoderShape
from pipeline.model.pretraining import Batch, BertForPretraining
from pipeline.settings import ModelSettings, load_preset, preset_names

VOCABULARY = 1_000
LENGTHS = (9, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 24, 24, 24, 24, 24, 24, 24, 24, 24)
MASKS = 3


def model_of(settings: ModelSettings, vocabulary: int) -> BertForPretraining:
    return BertForPretraining(EncoderShape(vocab_size=vocabulary, **asdict(settings)))


def small(architecture: str, dropout: float = 0.1) -> ModelSettings:
    """Three layers, whose sizes are all different."""
    deck, wide = load_preset("tiny").model, load_preset("mini").model
    settings = deck if architecture == "deck" else wide
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return replace(settings, num_hidden_layers=3, hidden_size=32, intermediate_size=96, max_position_embeddings=40, **rates)


def batch(*, padded: bool) -> Batch:
    generator, lengths = torch.Generator().manual_seed(0), torch.tensor(LENGTHS)
    starts = lengths.cumsum(0) - lengths
    masked = (starts[:, None] + torch.arange(1, MASKS + 1)).flatten()
    ids, labels = (torch.randint(5, VOCABULARY, (count,), generator=generator) for count in (sum(LENGTHS), len(masked)))
    counts = torch.full((len(lengths),), MASKS)
    return Batch.of(ids, torch.zeros_like(ids), lengths, masked, counts, labels, torch.arange(len(lengths)) % 2, padded=padded)


def work_of(batch: Batch) -> Work:
    groups = tuple((rows, length, width) for (rows, length), width in zip(batch.layout.groups, batch.reads.widths, strict=True))
    return Work(len(batch.first), len(batch.input_ids), len(batch.labels), groups)


def forward_and_backward(model: BertForPretraining, rows: Batch) -> None:
    losses = model(rows)
    (losses.mlm_sum + losses.next_sentence_sum).backward()


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("vocabulary", [20_256, 30_522])
def test_parameters_are_those_of_the_model(preset: str, vocabulary: int) -> None:
    settings = load_preset(preset).model
    with torch.device("meta"):
        model = model_of(settings, vocabulary)
    assert parameters(settings, vocabulary) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("padded", [True, False], ids=["grid", "groups"])
@pytest.mark.parametrize("architecture", ["deck", "bert"])
def test_products_are_those_that_torch_counts(architecture: str, padded: bool) -> None:
    """With dropout, since torch's counter does not know the fused kernel that a CPU takes without."""
    settings, rows = small(architecture), batch(padded=padded)
    with FlopCounterMode(display=False) as counted:
        forward_and_backward(model_of(settings, VOCABULARY), rows)
    assert counted.get_total_flops() == TRAINING * forward_flop(settings, VOCABULARY, work_of(rows))


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("architecture", ["deck", "bert"])
def test_activations_are_within_a_third_of_the_memory_that_torch_takes(architecture: str, dropout: float) -> None:
    settings, rows = small(architecture, dropout), batch(padded=False)
    model = model_of(settings, VOCABULARY)
    with profile(profile_memory=True) as profiled:
        forward_and_backward(model, rows)
    taken = most = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            taken += event.nbytes()
            most = max(most, taken)
    gradients = 4 * parameters(settings, VOCABULARY)
    assert taken == pytest.approx(gradients, rel=0.01), "what stays are the gradients"
    found = activation_bytes(settings, VOCABULARY, work_of(rows), on_gpu=False, bf16=False)
    assert found == pytest.approx(most, rel=0.33)
