"""Settings reject what is wrong and say what was wanted."""

import dataclasses

import pytest
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import SettingsError
from pipeline.settings import (
    ModelSettings,
    Settings,
    ShardOverrides,
    ShardSettings,
    TrainingOverrides,
    TrainingSettings,
    VocabularySettings,
    load_preset,
    preset_names,
)

TINY = load_preset("tiny")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name and preset.description


def test_tiny_is_the_deck() -> None:
    model, training = TINY.model, TINY.training
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads, model.intermediate_size) == (2, 128, 2, 256)
    assert (model.hidden_dropout_prob, TINY.shards.max_length, TINY.shards.max_predictions_per_seq) == (0.2, 64, 10)
    assert (training.steps, training.batch_size, training.learning_rate, training.warmup_steps) == (50, 512, 1e-4, 0)


@pytest.mark.parametrize("name", ["medium", "base", "large"])
def test_the_larger_presets_are_trained_as_published(name: str) -> None:
    """Devlin et al. 2018, arXiv 1810.04805, A.2; the lengths and predictions are those of the published code."""
    shards, training = load_preset(name).shards, load_preset(name).training
    assert (shards.max_length, shards.max_predictions_per_seq) == (128, 20)
    assert (shards.long_max_length, shards.long_max_predictions_per_seq) == (512, 77)
    assert (training.batch_size, training.steps, training.long_steps, training.warmup_steps) == (256, 1_000_000, 100_000, 10_000)
    assert (training.optimizer, training.learning_rate, training.schedule, training.weight_decay) == ("adamw", 1e-4, "linear", 0.01)


@pytest.mark.parametrize("name", ["mini", "small", "medium", "base", "large"])
def test_heads_are_64_wide_and_feed_forward_layers_four_times_the_hidden_size(name: str) -> None:
    model = load_preset(name).model
    assert model.hidden_size == 64 * model.num_attention_heads and model.intermediate_size == 4 * model.hidden_size
    assert (model.architecture, model.max_position_embeddings) == ("bert", 512)
    assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == (0.0 if name in ("mini", "small") else 0.1)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("training", {"steps": 0}, r"training\.steps: got 0, wanted a value >= 1"),
        ("training", {"steps": True}, r"training\.steps: got True, wanted a whole number"),
        ("training", {"steps": 1.5}, r"training\.steps: got 1\.5, wanted a whole number"),
        ("training", {"steps": "5"}, r"training\.steps: got '5', wanted a whole number"),
        ("training", {"learning_rate": float("nan")}, r"training\.learning_rate: got nan, wanted a finite number"),
        ("training", {"learning_rate": float("inf")}, r"training\.learning_rate: got inf, wanted a finite number"),
        ("training", {"learning_rate": 10**400}, r"training\.learning_rate: got 10+, wanted a finite number"),
        ("training", {"nodes": 2, "rendezvous": "host:65536"}, r"training\.rendezvous: got 'host:65536', wanted a port of 1 to 65535"),
        ("training", {"warmup_ratio": 1.5}, r"training\.warmup_ratio: got 1\.5, wanted a value <= 1"),
        ("training", {"device": "tpu"}, r"training\.device: got 'tpu'"),
        ("shards", {"max_predictions_per_seq": 2**63}, r"shards\.max_predictions_per_seq: got \d+, wanted a value <= 32767"),
        ("training", {"stepz": 1}, r"training\.stepz: no such setting; training has steps"),
        ("training", 5, r"training: got 5, wanted a table"),
        ("shards", {"mask_token_rate": 0.95}, r"shards\.mask_token_rate \+ shards\.random_token_rate: got 0\.95 \+ 0\.1"),
        ("shards", {"max_length": 2000}, r"shards\.max_length: got 2000, wanted at most model\.max_position_embeddings, 1000"),
        ("builders", {"runner": "ray"}, r"builders\.runner: got 'ray'"),
        (
            "builders",
            {"address": "tcp://host:8786"},
            r"builders\.address: got one with builders\.runner threads, wanted",
        ),
        (
            "builders",
            {"runner": "dask", "address": "tls://me:word@host:1"},
            r"^builders\.address: got one with a user or a pass[^@]*$",
        ),
        ("model", {"num_attention_heads": 3}, r"model\.num_attention_heads: got 3, wanted a divisor of model\.hidden_size, 128"),
    ],
)
def test_a_bad_override_names_the_setting_what_it_got_and_what_it_wanted(section: str, values: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TINY.override(**{section: values})


def test_an_unknown_preset_names_those_that_exist() -> None:
    with pytest.raises(SettingsError, match=r"preset: got 'huge', wanted one of .*tiny"):
        load_preset("huge")


def test_a_recipe_setting_left_out_is_named() -> None:
    with pytest.raises(SettingsError, match=r"training\.batch_size: missing"):
        TrainingSettings.read({"steps": 1, "learning_rate": 0.1})


def test_an_empty_override_changes_nothing() -> None:
    assert TINY.override(training=TrainingOverrides(), shards=None, model={}) == TINY
    assert TINY.override(training=TrainingOverrides(steps=7)).training.steps == 7


def test_a_whole_number_for_a_rate_gives_the_same_key_as_its_float() -> None:
    assert (
        TINY.override(training={"learning_rate": 1}).training.for_key() == TINY.override(training={"learning_rate": 1.0}).training.for_key()
    )


@pytest.mark.parametrize("kind", [VocabularySettings, ShardSettings, ModelSettings, TrainingSettings])
def test_every_setting_has_a_description(kind: type[Settings]) -> None:
    assert all(entry.metadata["description"] for entry in dataclasses.fields(kind))


def test_intervals_and_device_are_not_part_of_a_runs_key() -> None:
    changed = TINY.override(training={"log_every": 1, "checkpoint_every_steps": 3, "keep_checkpoints": 9, "device": "cpu"})
    assert changed.training.for_key() == TINY.training.for_key()
    assert TINY.override(training={"steps": 49}).training.for_key() != TINY.training.for_key()


def test_pydantic_enforces_the_same_limits_on_partials() -> None:
    adapter = TypeAdapter(TrainingOverrides)
    assert adapter.validate_python({"steps": 5}) == TrainingOverrides(steps=5)
    for bad in ({"steps": 0}, {"stepz": 1}, {"device": "tpu"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)
    schema = TypeAdapter(ShardOverrides).json_schema()["properties"]["max_length"]
    assert schema["description"] and {"minimum": 5, "maximum": 32767, "type": "integer"}.items() <= schema.items()


def test_lamb_is_refused_with_sharded_weights() -> None:
    """Its norms are those of whole weights."""
    with pytest.raises(SettingsError, match=r"^training\.data_parallel: got fsdp with optimizer lamb, wanted ddp, or adam or adamw$"):
        load_preset("mini").training.override({"optimizer": "lamb", "data_parallel": "fsdp"})
