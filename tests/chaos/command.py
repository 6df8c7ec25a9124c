"""The command under test: started, watched through its store, and killed whole."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from flows import processes

ROOT = Path(__file__).parents[2]
START, TRAINING, REGISTRATION, END = "start", "training", "registration", "end"
STAGES = (START, "fetch", "vocabulary", "shards of train", "shards of valid", TRAINING, "export", REGISTRATION, END)
_PUBLISHED = (("corpus", 1), ("vocabulary", 1), ("shards", 1), ("shards", 2), ("run", 1), ("encoder", 1))
TRAINING_BEGINS = 4  # tasks are finished before it
NAME = "chaos"
TICK = 0.005  # seconds
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
    home: str = "prefect"

    def start(self, said: Path, **changed: str) -> "Attempt":
        """Start the command, with some environment variables changed; what it prints goes to a file."""
        settings = (word for setting in ("training.device=cpu", *self.settings) for word in ("--set", setting))
        command = [sys.executable, "-m", "flows.cli", "run", "--corpus", self.corpus, "--model-name", NAME, *settings]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "BERT_"))}
        changed |= {
            "BERT_STORE": str(self.store),
            "PREFECT_API_URL": "",
            "PREFECT_HOME": str(self.store / self.home),
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
        return tasks, self._step() if tasks == TRAINING_BEGINS else 0

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
            time.sleep(TICK)

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
            time.sleep(TICK)
        if not re.search(r"training [\d,]+ parameters", self.said()):
            return None
        found = re.search(r"from the checkpoint of step (\d+)", self.said())
        step = int(found[1]) if found else 0
        if step != self.checkpoint:
            raise FaultError(f"training went on from step {step}, the newest checkpoint was that of step {self.checkpoint}")
        return step
