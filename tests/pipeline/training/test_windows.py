"""Windows of a split: what is in memory, where a resume lands, and what several ranks count together."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.build import build_shards
from pipeline.errors import DamagedOutputError, TrainingError
from pipeline.shards import SHARD, Examples, concatenate, read_shards
from pipeline.storage import MANIFEST, Store
from pipeline.training.batches import BatchLoader
from pipeline.training.distributed import World
from pipeline.training.evaluate import evaluate
from pipeline.training.loop import Trainer, train
from pipeline.training.order import Order
from pipeline.training.parts import Part, read_parts
from pipeline.training.run import RunSettings
from pipeline.training.split import LoadedWindow, Split
from pipeline.training.windows import Windows
from tests.pipeline.training.runs import ALONE, PRESET, VOCABULARY, examples, publish_shards, publish_vocabulary, run_on

BUCKETS = [6, 9, 4, 11, 7, 8]
PEAK = """
import re, sys
from pathlib import Path
from pipeline.training.parts import read_parts
from pipeline.training.run import read_run
from tests.pipeline.training.runs import ALONE
(part,) = read_parts(read_run(Path(sys.argv[1])), ALONE)
rows = sum(len(part.rows(step).rows) for step in range(part.windows.order.window(0).end * int(sys.argv[2])))
held_out = sum(len(window.numbers) for window in part.valid.windows())
print(rows, held_out, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def bucket(seed: int, rows: int, masks: int = 2) -> Examples:
    return examples(np.random.default_rng(seed).integers(7, 17, rows).tolist(), seed, masks)


def run_of_buckets(folder: Path, rows: Sequence[int] = BUCKETS, masking: str = "static", **training: object) -> RunSettings:
    """A run on several buckets; the held-out split is the same ones."""
    preset = PRESET.override(shards={"masking": masking}, training=training)
    parts = [bucket(seed, count, 2 if masking == "static" else 0) for seed, count in enumerate(rows)]
    run = run_on(folder, parts[0], parts[0], preset=preset)
    store = Store(run.store)
    vocabulary = publish_vocabulary(store)
    sets = [publish_shards(store, part, vocabulary) for part in parts]
    addresses = [store.address("bucket", output.facts["buckets"][0]["key"]) for output in sets]
    return dataclasses.replace(run, train=addresses, valid=addresses).save()


def contents(run: RunSettings) -> list[list[int]]:
    """The token ids of each row, bucket after bucket."""
    whole = read_shards(run.train)
    return [row.tolist() for row in np.split(whole.input_ids, whole.offsets[1:-1])]


def only_part(run: RunSettings, world: World = ALONE) -> Part:
    (part,) = read_parts(run, world)
    return part


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("window")]


@pytest.mark.parametrize("most_rows", [1, 16, 45, 1000])
def test_every_row_comes_once_an_epoch_with_its_own_number(tmp_path: Path, most_rows: int) -> None:
    run = run_of_buckets(tmp_path, shuffle_buffer_rows=most_rows, batch_size=4)
    part, wanted = only_part(run), contents(run)
    step = 0
    for epoch in range(2):
        seen = []
        while part.windows.order.window(step).epoch == epoch:
            found = part.rows(step)
            assert found.epoch == epoch and found.numbers is not None and len(found.examples) <= max(most_rows, *BUCKETS)
            for row in found.rows:
                number = int(found.numbers[row])
                assert found.examples.input_ids[slice(*found.examples.offsets[row : row + 2])].tolist() == wanted[number]
                seen.append(number)
            step += 1
        assert sorted(seen) == list(range(len(wanted)))
    held_out = [number for window in part.valid.windows() for number in window.numbers.tolist()]
    assert held_out == list(range(len(wanted)))


def test_ranks_share_the_rows_of_every_window_and_masks_are_drawn_by_their_numbers(tmp_path: Path) -> None:
    """Two ranks' batches together are those of one process, masks included; those of a split in one window are drawn alike."""
    run = run_of_buckets(tmp_path, masking="dynamic", shuffle_buffer_rows=16, batch_size=5)
    parts = [only_part(run) for _ in range(3)]
    worlds = [World(0, 1, ALONE.device), World(0, 2, ALONE.device), World(1, 2, ALONE.device)]
    loaders = [BatchLoader(part.rows, world, ahead=True) for part, world in zip(parts, worlds, strict=True)]
    whole = LoadedWindow.whole(read_shards(run.train))
    assert parts[0].masking is not None
    drawn = parts[0].masking.draw(whole.examples.input_ids, whole.examples.offsets, whole.numbers, 0)
    masked = [row.tolist() for row in np.split(drawn.input_ids, whole.examples.offsets[1:-1])]
    seen = []
    for step in range(parts[0].windows.order.window(0).end * 5):
        (alone,), rows = loaders[0].load(step)
        shares = [loader.load(step)[0][0] for loader in loaders[1:]]
        assert sum(len(share.labels) for share in shares) == len(alone.labels)
        assert sorted(torch.cat([share.labels for share in shares]).tolist()) == sorted(alone.labels.tolist())
        found = parts[0].rows(step)
        if found.epoch == 0:
            assert found.numbers is not None and rows == len(found.rows)
            numbers = found.numbers[found.rows]
            seen += numbers.tolist()
            assert sorted(alone.input_ids.tolist()) == sorted(token for number in numbers for token in masked[number])
    assert sorted(seen) == list(range(sum(BUCKETS)))
    for loader in loaders:
        loader.close()


class Watched(Split):
    """Notes which windows are read, and in which thread."""

    def load(self, buckets: Sequence[int]) -> LoadedWindow:
        self.read = [*getattr(self, "read", []), (tuple(buckets), threading.current_thread() is threading.main_thread())]
        return super().load(buckets)


def test_the_next_window_is_read_from_the_middle_on_and_none_before_or_after_what_is_trained(tmp_path: Path) -> None:
    run = run_of_buckets(tmp_path, [8] * 6, shuffle_buffer_rows=16, batch_size=2)
    split = Watched(run.train, run, ALONE)
    order = Order(split.rows, 2, 0, 16)
    windows, start, steps = Windows(split, order, 48), 24 + 16, 48  # from the third window of the second epoch
    asked: list[tuple[tuple[int, ...], bool]] = []
    for step in range(start, steps):
        _, loaded, rows = windows.rows(step)
        assert len(loaded.examples) == 16 and len(rows) == 2
    assert split.read == [(order.window(start).buckets, True)]
    windows, split.read = Windows(split, order, 48), []
    for step in range(48):
        windows.rows(step)
        window = order.window(step)
        asked += [(window.buckets, step < 8)] if step == window.first else []
        expected = len(asked) + (step >= (window.first + window.end) // 2 and window.end < 48)
        assert len(split.read) <= expected
    assert split.read == asked and not threads()


def test_what_goes_wrong_while_reading_ahead_is_raised_where_the_window_is_wanted(tmp_path: Path) -> None:
    run = run_of_buckets(tmp_path, [8] * 6, shuffle_buffer_rows=16, batch_size=2)
    part = only_part(run)
    shard = Path(run.train[part.windows.order.window(8).buckets[1]]) / SHARD
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    for step in range(8):
        part.rows(step)
    with pytest.raises(DamagedOutputError, match=rf"{shard}: sha256 "):
        part.rows(8)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_held_out_figures_are_those_of_all_rows_and_of_one_window_to_the_last_digit(tmp_path: Path, masking: str) -> None:
    found = {most: Trainer(run_of_buckets(tmp_path / str(most), masking=masking, shuffle_buffer_rows=most), ALONE) for most in (9, 1000)}
    figures = {most: trainer.evaluate() for most, trainer in found.items()}
    assert figures[9] == pytest.approx(figures[1000], rel=1e-5)
    assert figures[9]["unigram_loss"] == figures[1000]["unigram_loss"]
    trainer = found[1000]
    whole = LoadedWindow.whole(concatenate([bucket(seed, count, 2 * (masking == "static")) for seed, count in enumerate(BUCKETS)]))
    direct = evaluate(trainer.model, [whole], trainer.settings.batch_size, ALONE, trainer.parts[0].masking)
    assert figures[1000] == direct | {"unigram_loss": figures[1000]["unigram_loss"]}
    for one in found.values():
        one.loader.close()


def test_a_run_killed_in_the_third_window_of_its_second_epoch_ends_as_an_undisturbed_one(
    small_built, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Masks are drawn, dropout is on; windows of two to three of eight buckets."""
    store = small_built.store
    preset = small_built.preset.override(shards={"buckets": 8, "masking": "dynamic"}, training={"shuffle_buffer_rows": 40})
    shards = [build_shards(store, small_built.corpus, small_built.vocabulary, split, preset) for split in ("train", "valid")]
    built = dataclasses.replace(small_built, preset=preset, train=shards[0], valid=shards[1])
    rows = [entry["rows"] for entry in shards[0].facts["buckets"] if entry["rows"]]
    order = Order(rows, 4, 0, 40)
    second = [order.window(step) for step in range(400) if order.window(step).epoch == 1]
    third = next(window for window in second if window.number == 2)
    killed_at, steps = third.first + 2, second[-1].end + 12
    assert third.first < killed_at < third.end and second[-1].number >= 2
    settings = {"steps": steps, "batch_size": 4, "evaluate_every": 30}

    def outcome(run: RunSettings) -> tuple[bytes, list[str]]:
        finished = store.find("run", run.key)
        assert finished is not None
        lines = Path(finished.file("metrics.jsonl")).read_text().splitlines()
        timed = {"seconds", "pairs_per_second"}
        kept = [json.dumps({name: value for name, value in json.loads(line).items() if name not in timed}) for line in lines]
        weights = Path(finished.file("model.safetensors")).read_bytes()
        store.delete(finished.address)
        return weights, kept

    run = built.write_run(tmp_path / "whole", **settings)
    train(run, ALONE)
    wanted = outcome(run)
    run = built.write_run(tmp_path / "killed", checkpoint_every_steps=1, keep_checkpoints=1000, **settings)
    command = [sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})  # as many threads as here
    checkpoints = Path(run.store) / "checkpoints" / run.key
    deadline = time.monotonic() + 120
    while not (checkpoints / f"step-{killed_at:09d}" / MANIFEST).exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.find("run", run.key) is None, "killed too late to prove anything"
    for newer in checkpoints.iterdir():
        if newer.name > f"step-{killed_at:09d}":  # of the moments until the signal came
            (newer / MANIFEST).unlink(missing_ok=True)
    with caplog.at_level("INFO"):
        train(run, ALONE)
    assert f"going on from the checkpoint of step {killed_at}" in caplog.messages
    assert outcome(run) == wanted


def test_memory_does_not_grow_with_the_number_of_windows(tmp_path: Path) -> None:
    """10,000 rows of 60 tokens a bucket, two to a window: four buckets, then forty, of both splits."""
    rows = 10_000
    lengths = np.full(200, 60)
    part = concatenate([examples(lengths, seed, 8) for seed in range(rows // 200)])
    preset = PRESET.override(shards={"max_length": 64}, model={"max_position_embeddings": 64})
    preset = preset.override(training={"shuffle_buffer_rows": 2 * rows, "batch_size": 1000, "steps": 1_000_000})
    run = run_on(tmp_path, part, part, preset=preset)
    peaks = {}
    for count in (4, 40):
        several = dataclasses.replace(run, train=run.train * count, valid=run.valid * count, work=str(tmp_path / str(count))).save()
        command = [sys.executable, "-c", PEAK, f"{several.work}/run.json", str(count // 2)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | {"PYTHONPATH": os.getcwd()})
        assert done.returncode == 0, done.stderr
        *seen, peak = map(int, done.stdout.split())
        assert seen == [count * rows, count * rows]
        peaks[count] = peak / 1024
    bucket_mb = sum(getattr(part, entry.name).nbytes for entry in dataclasses.fields(Examples)) / 2**20
    assert peaks[40] < peaks[4] + 24 * bucket_mb, f"{peaks}; a bucket takes {bucket_mb} MB, and 72 more of them were read"


def test_a_shard_that_one_rank_finds_damaged_ends_all_of_them_before_the_first_step(tmp_path: Path) -> None:
    """Each of two ranks reads every second shard at the start; no launcher ends the other here."""
    run = run_of_buckets(tmp_path, shuffle_buffer_rows=16)
    shard = Path(run.train[3]) / SHARD
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment | {"RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, 1]
    (why,) = [line for _, error in said for line in error.splitlines() if line.startswith("error: ")]
    assert why.startswith(f"error: {shard}: sha256 "), "the rank that found it says so"
    assert not [text for both in said for text in both if "Traceback" in text or "step 1" in text]


def test_a_shard_that_is_not_what_its_manifest_says_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = run_of_buckets(tmp_path)
    manifest = Path(run.train[2]) / MANIFEST
    values = json.loads(manifest.read_text())
    for counts, said in (({"rows": 5}, "4 rows, its manifest says 5"), ({}, "does not say how many rows")):
        manifest.write_text(json.dumps(values | {"facts": {"counts": counts}}))
        with pytest.raises(DamagedOutputError, match=rf"{run.train[2]}/.*{said}"):
            read_parts(run, ALONE)
    manifest.write_text(json.dumps(values))
    small = dataclasses.replace(run, vocabulary_size=len(VOCABULARY) - 40)
    with pytest.raises(TrainingError, match=rf"{run.train[0]}/{SHARD}: got token \d+, wanted tokens below 10"):
        read_parts(small, ALONE)
