"""Batches, learning rate, evaluation and metrics, each against a direct computation."""

import json
import threading
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import NonFiniteError
from pipeline.model.encoder import EncoderShape
from pipeline.model.pretraining import BertForPretraining
from pipeline.settings import load_preset
from pipeline.shards import Examples, read_shards, shard_buckets
from pipeline.training.batches import BatchLoader, Rows, make_batch
from pipeline.training.distributed import World
from pipeline.training.evaluate import evaluate
from pipeline.training.loop import Trainer, derived_seed
from pipeline.training.metrics import Metrics
from pipeline.training.order import Order
from pipeline.training.precision import chosen_precision
from pipeline.training.split import LoadedWindow

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def examples(small_built) -> Examples:
    return read_shards(shard_buckets(small_built.store, small_built.train))


def test_a_batch_holds_its_rows_one_after_another(examples: Examples) -> None:
    chosen = np.array([5, 0, 9])
    batch = make_batch(examples, chosen, padded=False)
    lengths = np.diff(examples.offsets)
    rows = sorted(chosen, key=lambda row: lengths[row])
    masked = batch.reads.tokens[batch.masked]
    assert batch.layout.groups == tuple((len(list(same)), length) for length, same in groupby(lengths[rows]))
    for place, row in enumerate(rows):
        start = int(lengths[rows[:place]].sum())
        end = start + int(lengths[row])
        assert batch.reads.tokens[batch.first[place]] == start
        source = slice(examples.offsets[row], examples.offsets[row + 1])
        assert batch.input_ids[start:end].tolist() == examples.input_ids[source].tolist()
        assert batch.token_type_ids[start:end].tolist() == examples.token_type_ids[source].tolist()
        masks = slice(examples.mask_offsets[row], examples.mask_offsets[row + 1])
        inside = (masked >= start) & (masked < end)
        assert (masked[inside] - start).tolist() == examples.masked_lm_positions[masks].tolist()
        assert batch.labels[inside].tolist() == examples.masked_lm_labels[masks].tolist()
    assert batch.next_sentence_label.tolist() == examples.next_sentence_label[rows].tolist()


def test_evaluation_counts_every_example_whatever_the_batch_size(examples: Examples, small_built) -> None:
    torch.manual_seed(0)
    model = BertForPretraining(EncoderShape(small_built.vocabulary.facts["size"], 2, 16, 2, 32, 0.2, 0.2, 64, "deck")).train()
    window = LoadedWindow.whole(examples)
    whole = evaluate(model, [window], len(examples), ALONE)
    assert model.training
    for size in (1, 2, 7):
        assert evaluate(model, [window], size, ALONE) == pytest.approx(whole, rel=1e-5)
    model.eval()
    with torch.no_grad():
        rows = [model(make_batch(examples, np.array([row]))) for row in range(len(examples))]
    assert whole["mlm_loss"] == pytest.approx(float(sum(r.mlm_sum for r in rows) / sum(r.mlm_count for r in rows)), rel=1e-5)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_loader_gives_the_batch_of_any_step_and_ends_its_thread(examples: Examples, ahead: bool) -> None:
    order = Order([len(examples)], 8, 0, len(examples))
    loader = BatchLoader(lambda step: Rows(examples, order.rows(step)), ALONE, ahead=ahead)
    for step in (0, 1, 2, 9, 3):
        (batch,), rows = loader.load(step)
        wanted = make_batch(examples, order.rows(step))
        assert rows == len(order.rows(step))
        assert torch.equal(batch.input_ids, wanted.input_ids) and torch.equal(batch.labels, wanted.labels)
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_after_the_last_step_nothing_is_made_ahead(examples: Examples) -> None:
    asked: list[int] = []
    loader = BatchLoader(lambda step: asked.append(step) or Rows(examples, np.array([step])), ALONE, ahead=True, steps=3)
    for step in range(3):
        loader.load(step)
    loader.close()
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_goes_wrong_in_the_loader_is_raised_where_its_batch_is_wanted(examples: Examples, ahead: bool) -> None:
    loader = BatchLoader(lambda step: Rows(examples, np.array([0 if step != 1 else len(examples)])), ALONE, ahead=ahead)
    loader.load(0)
    with pytest.raises(IndexError):
        loader.load(1)
    loader.close()


@pytest.mark.parametrize(("wanted", "fast", "given"), [("auto", True, "bf16"), ("auto", False, "fp32"), ("fp32", True, "fp32")])
def test_the_precision_is_what_the_device_is_fast_at(monkeypatch, wanted: str, fast: bool, given: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "amx_bf16": fast})
    assert chosen_precision(wanted, torch.device("cpu")) == given


def test_bf16_where_it_is_slow_is_given_with_one_line(monkeypatch, caplog) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert chosen_precision("bf16", torch.device("cpu")) == "bf16"
    assert len(caplog.messages) == 1 and "bf16 is slow" in caplog.messages[0]


def test_precision_is_in_the_key_only_where_it_was_asked_for() -> None:
    tiny = load_preset("tiny").training
    assert "precision" not in tiny.for_key()
    assert tiny.override({"precision": "bf16"}).for_key() == tiny.for_key() | {"precision": "bf16"}


def trainer(built, work: Path, **training) -> Trainer:
    run = built.write_run(work, **training)
    return Trainer(run, ALONE)


def test_nothing_before_the_first_step_changes_a_parameter(small_built, tmp_path: Path) -> None:
    """Nor does an evaluation change one."""
    found = trainer(small_built, tmp_path, seed=3)
    torch.manual_seed(derived_seed(3, "weights"))
    wanted = BertForPretraining(found.run.shape).state_dict()
    found.evaluate()
    assert all(torch.equal(value, wanted[name]) for name, value in found.model.state_dict().items())
    assert not found.optimizer.state
    found.loader.close()


def test_losses_of_bf16_are_those_of_fp32_within_half_a_percent_after_equal_steps(small_built, tmp_path: Path) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        one = trainer(small_built, tmp_path / precision, precision=precision, steps=20, learning_rate=3e-3)
        for _ in range(20):
            one.take_step()
        one.loader.close()
        found[precision] = one.evaluate()
        assert all(parameter.dtype == torch.float32 for parameter in one.model.parameters())
    for name in ("mlm_loss", "next_sentence_loss"):
        assert found["bf16"][name] == pytest.approx(found["fp32"][name], rel=5e-3)
        assert found["bf16"][name] != found["fp32"][name], "the products were not bf16"


def add(metrics: Metrics, step: int, mlm: float, norm: float = 1.0) -> None:
    metrics.add(step, {"mlm_loss": torch.tensor(mlm), "next_sentence_loss": torch.tensor(0.5)}, torch.tensor(norm), 0.1, 8)


def test_metrics_go_on_from_the_lines_they_are_given(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "a.jsonl")
    for step, loss in enumerate((4.0, 2.0), 1):
        add(metrics, step, loss)
    metrics.flush()
    again = Metrics(tmp_path / "b.jsonl", metrics.text().splitlines())
    add(again, 3, 0.0)
    again.flush()
    rows = [json.loads(line) for line in again.text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["mlm_loss_mean"] for row in rows] == [4.0, 3.0, 2.0]
    assert rows[-1]["pairs"] == 24


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_a_number_that_is_not_finite_names_its_step_and_the_steps_before_are_kept(tmp_path: Path, loss: float, norm: float) -> None:
    metrics = Metrics(tmp_path / "a.jsonl")
    add(metrics, 1, 1.0)
    add(metrics, 2, loss, norm)
    add(metrics, 3, 1.0)
    with pytest.raises(NonFiniteError, match=r"step 2: .*(nan|inf)"):
        metrics.flush()
    assert [json.loads(line)["step"] for line in metrics.text().splitlines()] == [1]
