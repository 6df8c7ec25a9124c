"""`make chaos`: the whole flow under SIGKILL, at random moments of every stage, beside a run that nobody disturbs.

In: a corpus and a number of kills. Out: a Markdown table, or a `FaultError`. The decision that matters: moments are drawn on
the timeline of the undisturbed run, and which stage a kill hit is read from the store, the first one that is not
finished; what the command prints only says how far an attempt has come.
"""

import argparse
import bisect
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from flows import processes
from pipeline.storage import file_digest

ROOT = Path(__file__).parents[1]
START, TRAINING, REGISTRATION, END = "start", "training", "registration", "end"
STAGES = (START, "fetch", "vocabulary", "shards of train", "shards of valid", TRAINING, "export", REGISTRATION, END)
_PUBLISHED = (("corpus", 1), ("vocabulary", 1), ("shards", 1), ("shards", 2), ("run", 1), ("encoder", 1))
_SHARES = (2, 2, 2, 2, 2, 12, 2, 6, 0)  # how many of 30 kills are drawn in each stage
_TRAINING_BEGINS = 4  # tasks are finished before it
_NAME = "chaos"
_TICK = 0.005  # seconds
_GRACE_SECONDS = 10.0
_LONGEST_SECONDS = 1800.0  # an attempt

Progress = tuple[int, int]
"""Stages that an attempt has finished, -1 before its flow began, and the step that its training has come to."""


class FaultError(AssertionError):
    """What no kill may bring about."""


@dataclass(frozen=True)
class Flow:
    """The command, and the store that it fills."""

    store: Path
    corpus: str
    settings: tuple[str, ...] = ()

    def start(self, said: Path) -> "Attempt":
        """Start the command; what it prints goes to a file."""
        settings = (word for setting in ("training.device=cpu", *self.settings) for word in ("--set", setting))
        command = [sys.executable, "-m", "flows.cli", "run", "--corpus", self.corpus, "--model-name", _NAME, *settings]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "BERT_"))}
        changed = {
            "BERT_STORE": str(self.store),
            "PREFECT_API_URL": "",
            "PREFECT_HOME": str(self.store / "prefect"),
            "PYTHONPATH": str(ROOT),
        }
        self.store.mkdir(parents=True, exist_ok=True)
        with said.open("w") as output:
            return Attempt(self, said, subprocess.Popen(command, cwd=self.store, env=kept | changed, stdout=output, stderr=output))

    def published(self, stage: str) -> list[Path]:
        """The manifests of a stage's outputs."""
        return list((self.store / stage).glob("*/manifest.json"))

    def finished(self, stage: str) -> bool:
        """Whether the store says that a stage is done; the registration is with the last tag of its version."""
        if stage in (START, END):
            return False
        if stage != REGISTRATION:
            name, count = _PUBLISHED[STAGES.index(stage) - 1]
            return len(self.published(name)) >= count
        query = "SELECT 1 FROM model_version_tags WHERE key = 'complete'"
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{self.store / 'mlflow.db'}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchone() is not None
        return False  # no database yet, or one that is being written

    def newest_checkpoint(self) -> int:
        """The step of the newest published checkpoint, 0 where there is none."""
        return max((int(path.parent.name.removeprefix("step-")) for path in self.store.glob("checkpoints/*/*/manifest.json")), default=0)

    def living(self) -> set[int]:
        """Ids of all processes, whoever their parent is, that were started for this store."""
        mark, found = f"BERT_STORE={self.store}".encode(), set()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in entry.joinpath("environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        return found


class Attempt:
    """One start of the command."""

    def __init__(self, flow: Flow, said: Path, child: "subprocess.Popen[bytes]") -> None:
        self.flow, self.child, self._said = flow, child, said
        self.checkpoint = flow.newest_checkpoint()
        self._root = processes.find(child.pid)
        self._started, self._since = time.monotonic(), time.time()

    @property
    def seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started

    def said(self) -> str:
        """All that it has printed."""
        return self._said.read_text("utf-8", "replace")

    def progress(self) -> Progress:
        """How far it has come."""
        lines = self.said().splitlines()
        if not any("Beginning flow run" in line for line in lines):
            return -1, 0
        tasks = sum(bool(re.search(r"Task run '(?!find earlier|prepare).* - Finished in state ", line)) for line in lines)
        return tasks, self._step() if tasks == _TRAINING_BEGINS else 0

    def _step(self) -> int:
        """The last step that it has trained; what an earlier attempt left in the file does not count."""
        for path in self.flow.store.glob("work/*/metrics.jsonl"):
            with suppress(OSError), path.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime > self._since:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
                    steps = re.findall(rb'"kind": "train", "step": (\d+),.*\n', file.read())
                    return int(steps[-1]) if steps else 0
        return 0

    def running(self) -> bool:
        """Whether it still runs.

        :raises FaultError: it ended with an error, or takes too long.
        """
        if self.child.poll() not in (None, 0):
            raise FaultError(f"an attempt that was not killed ended with exit status {self.child.returncode}:\n{self.said()}")
        if self.seconds > _LONGEST_SECONDS:
            raise FaultError(f"an attempt did not end in {_LONGEST_SECONDS:.0f} s:\n{self.said()}")
        return self.child.returncode is None

    def finish(self) -> None:
        """Let it run to its end."""
        while self.running():
            time.sleep(_TICK)

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *error: object) -> None:
        if self.child.poll() is None:
            self.kill()

    def kill(self) -> bool:
        """SIGKILL the whole tree. Returns whether the command was killed, and had not ended by itself just before.

        :raises FaultError: the search for processes does not find the command.
        """
        if self.child.poll() is None and self.child.pid not in self.flow.living():
            raise FaultError("the search for processes of this store does not find the command while it runs")
        family = {self._root}
        while living := processes.descendants(family):
            family |= living
            for process in living:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        return self.child.wait() == -signal.SIGKILL

    def check(self) -> int | None:
        """What must hold once it has ended. Returns the step from which training went on, None where it did not come to that.

        :raises FaultError: a process was left, or training did not go on from the newest checkpoint.
        """
        if self.child.returncode != -signal.SIGKILL:
            self.running()
        deadline = time.monotonic() + _GRACE_SECONDS
        while left := self.flow.living():
            if time.monotonic() > deadline:
                raise FaultError(f"processes {sorted(left)} outlive their command by {_GRACE_SECONDS} s")
            time.sleep(_TICK)
        if not re.search(r"training [\d,]+ parameters", self.said()):
            return None
        found = re.search(r"from the checkpoint of step (\d+)", self.said())
        step = int(found[1]) if found else 0
        if step != self.checkpoint:
            raise FaultError(f"training went on from step {step}, the newest checkpoint was that of step {self.checkpoint}")
        return step


@dataclass(frozen=True)
class Moment:
    """So many seconds after an attempt has come so far, or the end of a stage, whichever is first."""

    stage: str
    progress: Progress
    seconds: float

    def wait(self, attempt: Attempt) -> bool:
        """Wait for the moment. Returns whether the command still runs then."""
        reached = None
        while attempt.running():
            progress = attempt.progress()
            if reached is None and progress >= self.progress:
                reached = time.monotonic()
            passed = attempt.flow.finished(self.stage) or progress[0] > self.progress[0]
            if passed or (reached is not None and time.monotonic() - reached >= self.seconds):
                return True
            time.sleep(_TICK)
        return False


class Timeline:
    """When an undisturbed run came how far."""

    def __init__(self, attempt: Attempt) -> None:
        self._marks: list[tuple[float, Progress]] = [(0.0, (-1, 0))]
        while attempt.running():
            if (progress := attempt.progress()) > self._marks[-1][1]:
                self._marks.append((attempt.seconds, progress))
            time.sleep(_TICK)
        attempt.check()
        self.seconds = attempt.seconds

    def span(self, stage: str) -> tuple[float, float]:
        """When a stage began and when it ended, in seconds."""
        number = STAGES.index(stage) - 1
        begin, end = (next((at for at, progress in self._marks if progress >= (tasks, 0)), self.seconds) for tasks in (number, number + 1))
        return begin, end

    def draw(self, stage: str, rng: random.Random, *, early: bool = False) -> float:
        """A time in a stage; `early`: before the first step of training."""
        begin, end = self.span(stage)
        if stage == TRAINING:
            first = next(at for at, progress in self._marks if progress > (_TRAINING_BEGINS, 0))
            begin, end = (begin, first) if early else (first, end)
        return rng.uniform(begin, end)

    def plan(self, kills: int, rng: random.Random) -> list[float]:
        """Times of kills, in order, spread over the stages; a quarter of those in training before its first step."""
        times, drawn = [], 0
        for number, stage in enumerate(STAGES):
            wanted = kills * sum(_SHARES[: number + 1]) // sum(_SHARES)
            times += [self.draw(stage, rng, early=place % 4 == 0) for place in range(wanted - drawn)]
            drawn = wanted
        return sorted(times)

    def moment(self, at: float) -> Moment:
        """The moment at which an attempt has come as far as the undisturbed run had at a time."""
        mark, progress = self._marks[bisect.bisect_right([at for at, _ in self._marks], at) - 1]
        return Moment(STAGES[progress[0] + 1], progress, at - mark)


@dataclass
class Report:
    """What became of the attempts."""

    hits: list[str] = field(default_factory=list)
    attempts: int = 0
    went_on_from: list[int] = field(default_factory=list)

    def note(self, attempt: Attempt) -> None:
        """Check an attempt that has ended and count it."""
        self.attempts += 1
        if (step := attempt.check()) is not None:
            self.went_on_from.append(step)


def kill_at(flow: Flow, moment: Moment, said: Path, report: Report) -> bool:
    """Start an attempt and kill it at a moment. Returns whether it came to that."""
    with flow.start(said) as attempt:
        struck = moment.wait(attempt) and attempt.kill()
    report.note(attempt)
    if struck:
        begun = attempt.progress() >= (0, 0)
        hit = next((stage for stage in STAGES[1:-1] if not flow.finished(stage)), END) if begun else START
        report.hits.append(hit)
        told = f"kill {len(report.hits):>3} aimed at {moment}, hit {hit}, checkpoint {flow.newest_checkpoint()}"
        print(told, file=sys.stderr, flush=True)
    return struck


def finish(flow: Flow, said: Path, report: Report) -> None:
    """Let an attempt run to its end."""
    with flow.start(said) as attempt:
        attempt.finish()
    report.note(attempt)


def kill_often(flow: Flow, timeline: Timeline, kills: int, rng: random.Random, folder: Path) -> Report:
    """Kill attempt after attempt, then let one finish. A kill whose stage is done by then moves on to a later stage."""
    report, times = Report(), timeline.plan(kills, rng)
    while len(report.hits) < kills:
        if report.attempts > 3 * kills:
            raise FaultError(f"only {len(report.hits)} of {report.attempts} attempts could be killed")
        moment = timeline.moment(times.pop(0)) if times else None
        if moment is None or flow.finished(moment.stage):
            later = next(stage for stage in (TRAINING, REGISTRATION, END) if not flow.finished(stage))
            bisect.insort(times, timeline.draw(later, rng))
            continue
        kill_at(flow, moment, folder / f"attempt-{report.attempts:03}.log", report)
    finish(flow, folder / "last.log", report)
    return report


def outcome(flow: Flow) -> dict[str, Any]:
    """All that kills may not change: digests of files, read anew, and the figures of each step."""
    read = {name: [json.loads(path.read_text("utf-8")) for path in flow.published(name)] for name in ("shards", "run")}
    files = {
        f"{name}/{path.parent.name}/{entry.name}": file_digest(str(entry))
        for name in ("corpus", "vocabulary", "bucket", "run", "encoder")
        for path in flow.published(name)
        for entry in path.parent.iterdir()
        if entry.suffix in (".tokens", ".json", ".parquet", ".safetensors") and entry.name not in ("manifest.json", "run.json")
    }
    [metrics] = flow.store.glob("run/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    return {
        "shards": {manifest["facts"]["split"]: manifest["facts"]["contents"] for manifest in read["shards"]},
        "files": files,
        "steps": [(row["step"], row["mlm_loss"], row["next_sentence_loss"]) for row in rows if row["kind"] == "train"],
        "held out": [row for row in rows if row["kind"] == "held_out"],
    }


def _lines(values: Any) -> set[str]:
    return set(map(repr, values.items() if isinstance(values, dict) else values))


def compare(disturbed: Flow, undisturbed: Flow) -> dict[str, Any]:
    """The outcome of both.

    :raises FaultError: they differ, or a step is missing or there twice.
    """
    ours, wanted = outcome(disturbed), outcome(undisturbed)
    for part in wanted:
        if ours[part] != wanted[part]:
            raise FaultError(f"{part} differ:\n{_lines(ours[part]) ^ _lines(wanted[part])}")
    steps = [step for step, *_ in ours["steps"]]
    if steps != list(range(1, len(steps) + 1)):
        raise FaultError(f"steps of the finished run: got {steps}, wanted each once, in order")
    return ours


def check_registry(flow: Flow, steps: int) -> tuple[list[int], Counter[str]]:
    """Exactly one version, complete, whose run has the whole curve.

    :returns: steps that stand more than once in the curve, and how many runs have which status.
    :raises FaultError: it is otherwise.
    """
    client = MlflowClient(f"sqlite:///{flow.store / 'mlflow.db'}")
    versions = client.search_model_versions(f"name = '{_NAME}'")
    if len(versions) != 1:
        raise FaultError(f"versions of {_NAME}: got {[version.version for version in versions]}, wanted exactly one")
    version = client.get_model_version(_NAME, versions[0].version)
    champion = client.get_model_version_by_alias(_NAME, "champion").version
    if champion != version.version or not version.description or version.tags.get("complete") != "true":
        raise FaultError(f"version {version.version} is not complete: champion {champion}, {version.tags}, {version.description!r}")
    seen = Counter(metric.step for metric in client.get_metric_history(version.run_id, "train/mlm_loss"))
    if set(seen) != set(range(1, steps + 1)):
        raise FaultError(f"the curve in MLflow lacks steps {sorted(set(range(1, steps + 1)) - set(seen))}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return sorted(step for step, count in seen.items() if count > 1), Counter(run.info.status for run in runs)


def markdown(report: Report, compared: dict[str, Any], twice: Sequence[int], runs: Counter[str], seconds: float) -> str:
    """The outcome as a table."""
    files, hits = Counter(name.split("/")[0] for name in compared["files"]), Counter(report.hits)
    [weights] = (digest for name, digest in compared["files"].items() if name.startswith("run/"))
    rows = {
        "kills": f"{len(report.hits)}: " + ", ".join(f"{stage} {hits[stage]}" for stage in STAGES if hits[stage]),
        "attempts": f"{report.attempts}; each that was not killed exited with 0; no process outlived its command",
        "training went on from step": ", ".join(map(str, report.went_on_from)),
        "shards": f"identical: contents of {len(compared['shards'])} sets, {files['bucket']} bucket files",
        "other files": "identical: " + ", ".join(f"{name} {count}" for name, count in files.items() if name not in ("bucket", "run")),
        "final weights": f"identical: sha256 {weights[:16]}…",
        "losses": f"identical: {len(compared['steps'])} steps, each once, and {len(compared['held out'])} evaluations",
        "MLflow": f"one version, complete; its curve has every step, {len(twice)} of them twice; runs: "
        + ", ".join(f"{count} {status}" for status, count in runs.items()),
        "time": f"{seconds / 60:.1f} min",
    }
    return "\n".join(["| what | outcome |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="how many kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="training steps (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="a new folder for both stores and all output (default: a temporary one)")
    args = parser.parse_args()
    began = time.monotonic()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=not args.folder)
    corpus = os.environ.get("WIKITEXT2") or "sample"
    steps = (f"training.steps={args.steps}", "training.log_every=1", "training.checkpoint_every_steps=2")
    settings = (*steps, "training.batch_size=32", "training.evaluate_every=50", "vocabulary.min_count=50")
    undisturbed, disturbed = (Flow(folder / name, corpus, settings) for name in ("undisturbed", "disturbed"))
    print(f"both stores and all output: {folder}", file=sys.stderr)
    with undisturbed.start(folder / "undisturbed.log") as attempt:
        timeline = Timeline(attempt)
    report = kill_often(disturbed, timeline, args.kills, random.Random(args.seed), folder)
    compared = compare(disturbed, undisturbed)
    twice, runs = check_registry(disturbed, args.steps)
    print(markdown(report, compared, twice, runs, time.monotonic() - began))


if __name__ == "__main__":
    main()
