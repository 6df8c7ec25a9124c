"""Several ranks take the steps of one process, share its checkpoints, and outlive the death of one of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.storage import MANIFEST
from pipeline.training.agent import MAX_RESTARTS
from pipeline.training.loop import Trainer
from tests.pipeline.training.runs import ALONE, PRESET, examples, rows_of, run_on, stepped, unequal_rows

LENGTHS = [7, 12, 9, 16, 8, 8, 14, 10, 7, 11, 13]  # batches of 8 and 3: ranks have unequal numbers of rows, one of four has none
STEPS = 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are found, and tied to their agent, on Linux alone")
RANKS = Path(__file__).with_name("ranks.py")
# At the deck's rate, with gradients clipped; several batches a step on a rank.
STEADY = PRESET.override(
    model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    training={"steps": STEPS, "learning_rate": 1e-4, "max_gradient_norm": 0.5, "micro_batch_size": 1},
)


@dataclass(frozen=True)
class Found:
    """What a training gave."""

    started: int
    losses: list[list[float]]
    figures: dict[str, float]
    weights: dict[str, torch.Tensor]

    def assert_near(self, wanted: "Found") -> None:
        assert [loss for row in self.losses for loss in row] == pytest.approx([loss for row in wanted.losses for loss in row], rel=1e-5)
        assert self.figures == pytest.approx(wanted.figures, rel=1e-5)
        assert set(self.weights) == set(wanted.weights)
        for name, value in self.weights.items():
            if not name.endswith("qkv.bias"):  # a key's bias has no gradient but rounding, which Adam blows up to full steps
                torch.testing.assert_close(value, wanted.weights[name], atol=2e-6, rtol=1e-4)


def steady_run(folder: Path, kind: str = "ddp"):
    rows = examples(LENGTHS)
    return run_on(folder, rows, rows, preset=STEADY.override(training={"data_parallel": kind}))


def alone(folder: Path, until: int = STEPS, *, save: bool = False) -> Found:
    trainer = Trainer(steady_run(folder), ALONE)
    started = trainer.step
    stepped(trainer, until - started)
    figures = trainer.evaluate()
    if save:
        trainer.save()
    losses = [[row["mlm_loss"], row["next_sentence_loss"], row["gradient_norm"]] for row in rows_of(trainer) if row["kind"] == "train"]
    return Found(started, losses, figures, {name: value.detach().clone() for name, value in trainer.model.state_dict().items()})


def by_ranks(count: int, folder: Path, jobs: dict[str, dict[str, Any]]) -> dict[str, Found]:
    """Do some jobs, each of a name, with one start of so many ranks."""
    listed = [{"weights": str(folder / f"{name}.safetensors"), "until": STEPS, **job} for name, job in jobs.items()]
    (folder / "jobs.json").write_text(json.dumps(listed), "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", str(RANKS)]
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(folder / "jobs.json")], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: Found(**line, weights=load_file(folder / f"{name}.safetensors")) for name, line in zip(jobs, lines, strict=True)}


def run_file(run) -> str:
    return f"{run.work}/run.json"


def test_two_ranks_take_the_steps_of_one_and_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    """Each has all weights or a part. Then a rank with 1 mask of loss 10 and one with 9 of loss 0: together 1, not 5."""
    wanted = alone(tmp_path / "alone")
    for kind in ("ddp", "fsdp"):
        alone(tmp_path / f"from one {kind}", 9, save=True)
    unequal = STEADY.override(training={"batch_size": 2, "micro_batch_size": 0})
    run = run_on(tmp_path / "unequal", unequal_rows(), examples([8]), preset=unequal)
    jobs: dict[str, dict[str, Any]] = {"unequal": {"run": run_file(run), "until": 1, "word_6": True}}
    for kind in ("ddp", "fsdp"):
        names = (kind, f"from one {kind}", f"to one {kind}")
        jobs |= {name: {"run": run_file(steady_run(tmp_path / name, kind))} for name in names}
        jobs[f"to one {kind}"] |= {"until": 9, "save": True}
    found = by_ranks(2, tmp_path, jobs)
    for kind in ("ddp", "fsdp"):
        found[kind].assert_near(wanted)
        assert found[f"from one {kind}"].started == 9
        found[f"from one {kind}"].assert_near(wanted)
        resumed = alone(tmp_path / f"to one {kind}")
        assert resumed.started == 9
        resumed.assert_near(wanted)
    assert found["unequal"].losses[0][0] == pytest.approx(1.0, abs=1e-3)


def test_four_ranks_of_which_one_has_no_row_take_the_steps_of_one(tmp_path: Path) -> None:
    wanted = alone(tmp_path / "alone")
    found = by_ranks(4, tmp_path, {kind: {"run": run_file(steady_run(tmp_path / kind, kind))} for kind in ("ddp", "fsdp")})
    for kind in ("ddp", "fsdp"):
        found[kind].assert_near(wanted)


def start(run, *options: str, ranks: int = 2) -> "subprocess.Popen[str]":
    """Start an agent with its ranks."""
    command = [sys.executable, "-m", "pipeline.training", run_file(run), f"--ranks={ranks}", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_of(agent: "subprocess.Popen[str]") -> dict[int, int]:
    """Rank -> process id of the ranks that live."""
    found = {}
    for pid in map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()):
        try:
            values = dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry)
        except OSError:
            continue
        if "RANK" in values:
            found[int(values["RANK"])] = pid
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(holds: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.01)
    return found


def finished_weights(run) -> dict[str, torch.Tensor]:
    return load_file(Path(run.store) / "run" / run.key / "model.safetensors")


@linux
def test_a_killed_rank_is_started_again_and_the_run_is_the_same_bit_for_bit(small_built, train, tmp_path: Path) -> None:
    settings = {"steps": 60, "checkpoint_every_steps": 10}
    run = small_built.write_run(tmp_path / "killed", **settings)
    agent = start(run)
    wait_for(lambda: list((Path(run.store) / "checkpoints" / run.key).glob(f"*/{MANIFEST}")))
    os.kill(ranks_of(agent)[1], signal.SIGKILL)
    said, errors = agent.communicate(timeout=240)
    assert agent.returncode == 0, errors
    assert said.count("going on from the checkpoint of step") == 1, said
    found = finished_weights(run)
    small_built.store.delete(small_built.store.address("run", run.key))
    whole = small_built.write_run(tmp_path / "whole", **settings)
    assert train(whole, "--ranks=2").returncode == 0
    for name, value in finished_weights(whole).items():
        assert torch.equal(found[name], value), name


@linux
def test_a_killed_agent_takes_its_ranks_along(small_built, tmp_path: Path) -> None:
    agent = start(small_built.write_run(tmp_path / "work", steps=100_000))
    pids = wait_for(lambda: len(found := ranks_of(agent)) == 2 and found)
    agent.kill()
    agent.communicate(timeout=120)
    wait_for(lambda: not any(map(lives, pids.values())))


@linux
def test_a_rank_that_dies_again_and_again_ends_the_training(small_built, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=100_000)
    agent, killed, seen = start(run), set(), set()
    while agent.poll() is None:
        ranks = ranks_of(agent)
        seen |= set(ranks.values())
        if pid := ranks.get(1):
            with suppress(ProcessLookupError):  # it was killed, and is gone by now
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.01)
    _, errors = agent.communicate(timeout=60)
    last = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert agent.returncode == 1 and len(last) == 1, errors
    assert f"ended {MAX_RESTARTS + 1} times" in last[0] and "rank 1 by SIGKILL" in last[0]
    assert len(killed) == MAX_RESTARTS + 1 and not any(map(lives, seen))
    assert not (Path(run.store) / "leases").exists() or not list((Path(run.store) / "leases").iterdir())


def test_an_error_that_a_rank_tells_is_told_once_and_not_tried_again(small_built, train, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=200, learning_rate=1e30, warmup_ratio=1.0, checkpoint_every_steps=1, log_every=1)
    done = train(run, "--ranks=2")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1 and "wanted finite numbers" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.count("training ") == 1, "once"


def test_two_machines_that_share_a_store_alone_train_one_run_though_one_goes_and_comes_back(small_built, tmp_path: Path) -> None:
    """Both are this one; the second learns of the run by its plan."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {"steps": 60, "checkpoint_every_steps": 10}
    run = small_built.write_run(tmp_path / "first", nodes=2, rendezvous=f"127.0.0.1:{port}", **settings)
    first = start(run, ranks=1)
    try:
        assert first.stdout
        line = next(line for line in first.stdout if "--plan" in line)
        command = [sys.executable, *line.replace("FOLDER", str(tmp_path / "second")).split()[1:], "--ranks=1"]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_for(lambda: list((Path(run.store) / "checkpoints" / run.key).glob(f"*/{MANIFEST}")))
        second.kill()
        second.communicate(timeout=120)
        again = subprocess.run(command, capture_output=True, text=True, timeout=240)
        said, errors = first.communicate(timeout=240)
    finally:
        first.kill()
    assert (first.returncode, again.returncode) == (0, 0), errors + again.stderr
    assert "going on from the checkpoint of step" in said and "step 60/60" in said
    assert "step 60/60" not in again.stdout, "the first machine alone says how it goes"
    output = small_built.store.find("run", run.key)
    assert output is not None and [output.manifest["recorded"][name] for name in ("ranks", "nodes")] == [2, 2]
    assert [json.loads(row)["step"] for row in (Path(run.work) / "metrics.jsonl").read_text().splitlines()] == [*range(1, 61), 60]
