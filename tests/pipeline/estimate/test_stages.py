"""Estimates beside what was measured."""

import re
from pathlib import Path

import pytest

from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.estimate.arithmetic import TRAINING, forward_flop
from pipeline.estimate.limits import limits
from pipeline.estimate.quantities import Part, Quantities
from pipeline.estimate.scale import Rates, Scale
from pipeline.estimate.stages import Stage, stages
from pipeline.settings import Preset, load_preset
from pipeline.shards import SHARD
from pipeline.storage import Output, Store

EXPERIMENTS = (Path(__file__).parents[3] / "EXPERIMENTS.md").read_text("utf-8")
WIKITEXT2 = {"corpus_gigabytes": 0.010797148 + 0.001121681, "held_out": 0.0941, "cores": 2}


def measured(pattern: str) -> float:
    """A figure of EXPERIMENTS.md."""
    found = re.search(pattern, EXPERIMENTS)
    assert found, pattern
    return float(found[1].replace(",", ""))


def run_of(preset: Preset, **scale: float) -> Quantities:
    return Quantities(preset, Scale(**scale), Rates())


def on_this_cpu(name: str) -> dict[str, Stage]:
    """A preset on WikiText-2, where products run as fast as `tiny`'s alone were measured, and training at its share of that."""
    preset = load_preset(name).override(training={"device": "cpu"})
    tiny = run_of(load_preset("tiny"), **WIKITEXT2)
    floor = measured(r"its matrix products alone: ([\d,]+) pairs/s")
    flop = TRAINING * forward_flop(tiny.preset.model, tiny.vocabulary_size, tiny.parts[0].work(1))
    share = measured(r"beside its floor in fp32 [^%]* (\d+)% \|") / 100
    run = run_of(preset, **WIKITEXT2, device_tflops=floor * flop / 1e12, utilisation=share)
    return {stage.name: stage for stage in stages(run)}


def test_tiny_and_mini_take_the_time_that_was_measured_within_a_factor_of_two() -> None:
    tiny, mini = on_this_cpu("tiny"), on_this_cpu("mini")
    pairs = 50 * 512
    assert tiny["training"].seconds == pytest.approx(pairs / measured(r"`tiny` training, CPU[^|]*\| ([\d,]+) pairs/s"), rel=0.5)
    assert mini["training"].seconds == pytest.approx(2000 * 32 / measured(r"\| training \| ([\d,]+) pairs/s"), rel=0.5)
    data = sum(tiny[name].seconds for name in ("corpus", "vocabulary", "shards"))
    wanted = measured(r"data stages, WikiText-2 train \| ([\d.]+) s")
    assert wanted / 2 <= data <= 2 * wanted


def check_shards(store: Store, made: Output, part: Part, tolerance: float) -> None:
    folders = {store.address("bucket", entry["key"]) for entry in made.facts["buckets"]}
    size, counts = sum((Path(folder) / SHARD).stat().st_size for folder in folders), made.facts["counts"]
    assert part.shard_bytes == pytest.approx(size, rel=tolerance)
    assert part.rows == pytest.approx(counts["rows"], rel=tolerance)
    assert part.row == pytest.approx(counts["row_tokens"] / counts["rows"], rel=0.05)
    assert part.masked == pytest.approx(counts["masked"] / counts["rows"], rel=0.05)


def test_shards_of_the_decks_recipe_are_as_large_as_is_estimated(wikitext2_built) -> None:
    text = wikitext2_built.corpus.facts["train"]["bytes"] / 1e9
    run = run_of(wikitext2_built.preset, corpus_gigabytes=text, held_out=0.0)
    check_shards(wikitext2_built.store, wikitext2_built.train, run.parts[0], 0.05)


def test_shards_of_the_papers_recipe_are_as_large_as_is_estimated(wikitext2_built, publish, tmp_path: Path) -> None:
    """Of a part of WikiText-2, gone through twice; tokens of a byte are this vocabulary's, which is smaller than the preset's."""
    store, share = Store(str(tmp_path)), 1_500_000
    train = Path(wikitext2_built.corpus.file("train.tokens")).read_bytes()[:share].decode(errors="ignore")
    corpus = publish(store, train)
    preset = load_preset("base").override(shards={"buckets": 1, "dupe_factor": 2}, vocabulary={"size": 8_000})
    vocabulary = build_vocabulary(store, corpus, preset)
    for long in (False, True):
        made = build_shards(store, corpus, vocabulary, "train", preset, long=long)
        rates = Rates(pieces_per_byte=made.facts["counts"]["tokens"] / share)
        run = Quantities(preset, Scale(corpus_gigabytes=share / 1e9, held_out=0.0), rates)
        check_shards(store, made, run.parts[long], 0.25)


def passed(run: Quantities) -> str:
    return "\n".join(f"{limit.stage}: {limit.text} -> {limit.knob}" for limit in limits(run) if limit.passed)


def test_what_breaks_first_names_its_setting_and_setting_it_mends_that() -> None:
    base = load_preset("base")
    found = passed(run_of(base, corpus_gigabytes=4.0))
    assert "shards.buckets=430" in found
    assert "shards.buckets" not in passed(run_of(base.override(shards={"buckets": 430}), corpus_gigabytes=4.0))
    small = run_of(load_preset("large").override(training={"micro_batch_size": 64}), corpus_gigabytes=1.0, device_memory=24.0)
    assert "training.micro_batch_size below 64" in passed(small)
    whole = run_of(load_preset("large"), corpus_gigabytes=1.0, device_memory=6.0, devices=8)
    assert "training.data_parallel=fsdp" in passed(whole)
    shared = run_of(load_preset("large").override(training={"data_parallel": "fsdp"}), corpus_gigabytes=1.0, device_memory=6.0, devices=8)
    assert shared.state_bytes < whole.state_bytes
    many = run_of(base, corpus_gigabytes=1.0, devices=64)
    assert "training.batch_size" in passed(many)
    assert "training.batch_size" not in passed(run_of(base.override(training={"batch_size": 65_536}), corpus_gigabytes=1.0, devices=64))


def test_steps_and_evaluations_are_those_of_the_loop() -> None:
    """Long rows take the last steps, an evaluation comes each so many steps and at the end, with the part that its step is of."""
    base = load_preset("base").override(training={"steps": 100, "long_ratio": 0.25, "evaluate_every": 10})
    short, long = run_of(base, corpus_gigabytes=1.0).parts
    assert (short.steps, short.evaluations) == (75, 7)
    assert (long.steps, long.evaluations) == (25, 3)
    never = base.override(training={"evaluate_every": 0})
    assert [part.evaluations for part in run_of(never, corpus_gigabytes=1.0).parts] == [0, 1]


def test_nothing_is_summed_on_one_device_and_a_ring_sends_less_than_twice_the_gradients() -> None:
    one, eight = (run_of(load_preset("base"), corpus_gigabytes=1.0, devices=devices) for devices in (1, 8))
    assert one.network_bytes == 0
    assert eight.network_bytes == pytest.approx(2 * 7 / 8 * 4 * eight.parameters)
