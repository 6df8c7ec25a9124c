"""Training as the flow starts it: a child process, real shards, real kills."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import TrainingError
from pipeline.export import export_encoder
from pipeline.shards import SHARD, read_shards
from pipeline.storage import MANIFEST
from pipeline.training import __main__ as command
from pipeline.training.run import plan_run


def metrics(run) -> list[dict]:
    finished = Path(run.store) / "run" / run.key / "metrics.jsonl"
    return [json.loads(line) for line in finished.read_text().splitlines()]


def losses(run) -> list[tuple]:
    return [(row["step"], row["mlm_loss"], row["next_sentence_loss"]) for row in metrics(run) if row["kind"] == "train"]


def held_out(run) -> dict[str, float]:
    return {name: value for name, value in metrics(run)[-1].items() if name != "kind"}


def weights_digest(run) -> str:
    return hashlib.sha256((Path(run.store) / "run" / run.key / "model.safetensors").read_bytes()).hexdigest()


def test_a_run_writes_its_folder_and_learns(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=60, evaluate_every=20, learning_rate=3e-3)
    done = train(run)
    assert done.returncode == 0, done.stderr
    assert "step 60/60" in done.stdout and "pairs/s" in done.stdout and "held-out MLM loss" in done.stdout
    output = small_built.store.find("run", run.key)
    assert output is not None and output.facts["steps"] == 60 and output.facts["pairs_per_second"] > 0
    rows = metrics(run)
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 61))
    assert [row["step"] for row in rows if row["kind"] == "held_out"] == [20, 40, 60]
    steps = [row for row in rows if row["kind"] == "train"]
    assert steps[-1]["mlm_loss_mean"] == pytest.approx(sum(row["mlm_loss"] for row in steps) / 60)
    assert sum(row["mlm_loss"] for row in steps[-5:]) < sum(row["mlm_loss"] for row in steps[:5]) - 1.5
    held_out = output.facts["held_out"]
    assert set(held_out) == {"mlm_loss", "mlm_accuracy", "next_sentence_loss", "next_sentence_accuracy", "unigram_loss"}
    assert not small_built.store.children(f"{run.store}/checkpoints/{run.key}"), "a finished run needs no checkpoint"
    again = train(run)
    assert again.returncode == 0 and "nothing to do" in again.stdout


def test_one_seed_gives_the_same_weights_and_another_gives_others(small_built, train, tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = small_built.write_run(tmp_path / name, steps=6, seed=seed)
        assert train(run).returncode == 0
        digests.append(weights_digest(run))
        shutil.rmtree(Path(run.store) / "run" / run.key)
    assert digests[0] == digests[1] != digests[2]


def test_a_killed_run_goes_on_from_its_checkpoint_bit_for_bit(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "whole", steps=40, evaluate_every=7)
    assert train(run).returncode == 0
    wanted, wanted_losses = weights_digest(run), losses(run)
    shutil.rmtree(Path(run.store) / "run" / run.key)

    run = small_built.write_run(tmp_path / "killed", steps=40, evaluate_every=7, checkpoint_every_steps=3)
    child = subprocess.Popen([sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"], stdout=subprocess.DEVNULL)
    checkpoints = Path(run.store) / "checkpoints" / run.key
    deadline = time.monotonic() + 60
    while len(list(checkpoints.glob(f"*/{MANIFEST}"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (Path(run.store) / "run" / run.key / MANIFEST).exists(), "killed too late to prove anything"
    newest = sorted(checkpoints.glob(f"*/{MANIFEST}"))[-1].parent
    (newest / "state.safetensors").write_bytes(b"damaged")  # is passed over for the one before it
    resumed = train(run)
    assert resumed.returncode == 0, resumed.stderr
    assert "passed over" in resumed.stdout and "going on from the checkpoint of step" in resumed.stdout
    assert losses(run) == wanted_losses
    assert weights_digest(run) == wanted


def test_two_at_once_train_one_run_once(small_built, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=150)
    command = [sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    waited = [text for text in said if "nothing to do" in text]
    assert len(waited) == 1 and "step 150/150" not in waited[0], said
    assert [row["step"] for row in metrics(run) if row["kind"] == "train"] == list(range(1, 151))


def test_non_finite_gradients_stop_the_run_with_the_step_and_keep_the_checkpoint(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=200, learning_rate=1e30, warmup_ratio=1.0, checkpoint_every_steps=1, log_every=1)
    done = train(run)
    assert done.returncode == 1
    assert done.stderr.startswith("error: step ") and "wanted finite numbers" in done.stderr and "Traceback" not in done.stderr
    assert "NonFiniteError" in (Path(run.work) / "training.log").read_text()
    assert small_built.store.find("run", run.key) is None
    kept = sorted((Path(run.store) / "checkpoints" / run.key).glob(f"*/{MANIFEST}"))
    assert kept
    state = load_file(kept[-1].parent / "state.safetensors")
    assert all(torch.isfinite(value).all() for name, value in state.items() if name.startswith("model."))


def test_a_flipped_byte_in_a_shard_stops_before_the_first_step(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work")
    shard = Path(run.train[0]) / SHARD
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    done = train(run)
    assert done.returncode == 1 and "error:" in done.stderr and str(shard) in done.stderr
    assert "Traceback" not in done.stderr + done.stdout and "step 1" not in done.stdout


def test_an_update_that_overflows_is_found_before_anything_is_saved(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=1, learning_rate=1e38)
    done = train(run)
    assert done.returncode == 1 and done.stderr.startswith("error: step 1: "), done.stderr
    assert small_built.store.find("run", run.key) is None and not list(Path(run.store).glob("checkpoints/*/*/manifest.json"))


def test_an_unfinished_checkpoint_never_costs_a_whole_one(small_built, train, tmp_path: Path) -> None:
    """Newer folders without a manifest, as a kill leaves them, are no checkpoints."""
    run = small_built.write_run(
        tmp_path / "work", steps=200, learning_rate=1e30, warmup_ratio=1.0, checkpoint_every_steps=1, keep_checkpoints=1
    )
    assert train(run).returncode == 1
    checkpoints = Path(run.store) / "checkpoints" / run.key
    (kept,) = checkpoints.glob(f"*/{MANIFEST}")
    (checkpoints / "step-000000190").mkdir()
    (checkpoints / "step-000000190" / "state.safetensors").write_bytes(b"half")
    again = train(run)
    assert again.returncode == 1 and "step-000000190 is passed over" in again.stdout
    assert "going on from the checkpoint of step" in again.stdout and kept.exists()


@pytest.mark.parametrize("content", [None, "{", "[]", '{"store": "x"}'])
def test_a_run_file_that_is_none_is_one_clear_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    done = subprocess.run([sys.executable, "-m", "pipeline.training", str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {path}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": [1]}, "train: got 1 in it, wanted str"),
        ({"inputs": {"train": None}}, "inputs: got None in it, wanted str"),
        ({"train": []}, "train: got [], wanted some buckets"),
        ({"valid": []}, "valid: got [], wanted some buckets"),
        ({"vocabulary_size": -3}, "vocabulary_size: got -3, wanted 1 or more"),
        ({"vocabulary_size": True}, "vocabulary_size: got True, wanted int"),
        ({"store": ""}, "names no store or no work folder, as a plan does"),
        ({"work": ""}, "names no store or no work folder, as a plan does"),
    ],
)
def test_a_run_file_that_was_edited_is_one_clear_error(
    changed: dict[str, object], message: str, small_built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    run = small_built.write_run(tmp_path / "work")
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(json.loads(run.text()) | changed))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["training", str(path)])
    assert command.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: {message}")
    assert not (tmp_path / "training.log").exists() and small_built.store.find("run", run.key) is None


def test_ranks_with_sharded_weights_publish_the_run_of_one_process(small_built, train, tmp_path: Path) -> None:
    """Dropout off, ragged batches."""
    preset = small_built.preset.override(model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    built = type(small_built)(**{**vars(small_built), "preset": preset})
    # The last batch of an epoch has one row, so that one rank has none.
    rows = len(read_shards(built.write_run(tmp_path / "size").train))
    size = next(size for size in range(2, rows) if rows % size == 1)
    steps = rows // size + 3
    one = built.write_run(tmp_path / "one", steps=steps, batch_size=size)
    assert train(one).returncode == 0
    alone = load_file(Path(one.store) / "run" / one.key / "model.safetensors"), losses(one), held_out(one)
    shutil.rmtree(Path(one.store) / "run" / one.key)
    several = built.write_run(tmp_path / "several", steps=steps, batch_size=size, data_parallel="fsdp")
    assert several.key == one.key
    done = train(several, "--ranks=2")
    assert done.returncode == 0, done.stderr
    recorded = built.store.find("run", several.key).manifest["recorded"]
    assert [recorded[name] for name in ("ranks", "nodes", "data_parallel")] == [2, 1, "fsdp"]
    together = load_file(Path(several.store) / "run" / several.key / "model.safetensors"), losses(several), held_out(several)
    for mine, theirs in zip(together[1], alone[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    assert together[2] == pytest.approx(alone[2], rel=1e-4)
    for name, value in together[0].items():
        if name.endswith("qkv.bias"):  # a key's bias has no gradient but rounding, which Adam blows up to full steps
            continue
        torch.testing.assert_close(value, alone[0][name], atol=2e-4, rtol=1e-3)


def trained_encoder(built, train, work: Path, **training):
    run = built.write_run(work, **training)
    assert train(run).returncode == 0
    finished = built.store.find("run", run.key)
    assert finished is not None
    return export_encoder(built.store, finished, built.vocabulary, built.corpus)


def test_a_warm_start_goes_on_from_the_encoders_weights(small_built, train, tmp_path: Path) -> None:
    encoder = trained_encoder(small_built, train, tmp_path / "first", steps=40, learning_rate=3e-3)
    settings = {"steps": 2, "learning_rate": 1e-9}
    preset = small_built.preset.override(training=settings)
    cold = small_built.write_run(tmp_path / "cold", **settings)
    warm = plan_run(small_built.store, preset, small_built.train, small_built.valid, tmp_path / "warm", encoder).save()
    assert warm.key != cold.key and warm.inputs["encoder"] == encoder.key
    assert train(cold).returncode == train(warm).returncode == 0
    assert losses(cold)[0][1] - losses(warm)[0][1] > 0.5
    first = small_built.store.find("run", encoder.manifest["inputs"]["run"])
    started, ended = (load_file(f"{address}/model.safetensors") for address in (first.address, f"{warm.store}/run/{warm.key}"))
    for name, value in started.items():
        torch.testing.assert_close(ended[name], value, atol=1e-6, rtol=0)


def test_a_warm_start_with_another_vocabulary_or_shape_is_refused_with_both(small_built, train, tmp_path: Path) -> None:
    encoder = trained_encoder(small_built, train, tmp_path / "first", steps=1)
    store, preset = small_built.store, small_built.preset
    wider = preset.override(model={"hidden_size": 32})
    with pytest.raises(TrainingError, match=rf"encoder {encoder.key} has hidden_size 16 \(wanted 32\)"):
        plan_run(store, wider, small_built.train, small_built.valid, tmp_path / "wider", encoder).save()
    every_word = preset.override(vocabulary={"min_count": 1})
    words = build_vocabulary(store, small_built.corpus, every_word)
    shards = [build_shards(store, small_built.corpus, words, split, every_word) for split in ("train", "valid")]
    with pytest.raises(TrainingError, match=f"has vocabulary {small_built.vocabulary.key}, the shards .* have {words.key}"):
        plan_run(store, preset, *shards, tmp_path / "words", encoder).save()
    assert not (tmp_path / "wider").exists() and not (tmp_path / "words").exists()


def test_a_damaged_encoder_stops_a_warm_start(small_built, train, tmp_path: Path) -> None:
    encoder = trained_encoder(small_built, train, tmp_path / "first", steps=1)
    run = plan_run(small_built.store, small_built.preset, small_built.train, small_built.valid, tmp_path / "warm", encoder).save()
    weights = Path(encoder.address) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    done = train(run)
    assert done.returncode == 1 and str(weights) in done.stderr and "Traceback" not in done.stderr


def test_training_that_was_taken_over_publishes_nothing(small_built, tmp_path: Path) -> None:
    """Its lease is gone, as when it was suspended for longer than leases last."""
    run = small_built.write_run(tmp_path / "work", steps=100_000, checkpoint_every_steps=50)
    child = subprocess.Popen(
        [sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and any("pairs/s" in line for line in child.stdout)
        (lease,) = Path(run.store, "leases").iterdir()
        other = json.loads(lease.read_text()) | {"owner": "another", "host": "far", "machine": "far"}
        lease.with_name(f"run-{run.key}.2").write_text(json.dumps(other))
        lease.unlink()
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 1 and said.startswith(f"error: run-{run.key}: process ") and "on far has taken this over" in said
    assert small_built.store.find("run", run.key) is None
