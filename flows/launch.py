"""Training as a child of its task.

In: a run that was written to its work folder. Out: lines and metrics to callbacks while it trains, then a published run
or a `TrainingError`. The decision that matters: whatever ends the task ends the child too, and with it
every rank; even a SIGKILL of the task does, through the kernel.
"""

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import pipeline
from pipeline.errors import TrainingError
from pipeline.lease import TOKEN
from pipeline.lock import locked
from pipeline.training.run import FILE, METRICS, RunSettings

from . import processes

OUTPUT = "output.log"
GRACE_SECONDS = 4.0  # a cancelled run is to be gone within 10 seconds, whatever its training does
POLL_SECONDS = 1.0  # also how often metrics go out, so that a fast run sends them in batches
_LAST_WORDS = 5  # lines

# Ties a command to the life of its parent (prctl 1, PR_SET_PDEATHSIG, which an exec keeps), then becomes it. SIGTERM,
# so that torchrun can end its ranks.
_TIE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

OnLine = Callable[[str], object]
OnMetrics = Callable[[list[dict[str, Any]]], object]

logger = logging.getLogger(__name__)


def train(run: RunSettings, on_line: OnLine, on_metrics: OnMetrics, *, count: int | None = None, lease: str | None = None) -> None:
    """Train a run in a child of this process.

    :param on_line: gets each line that the child prints.
    :param on_metrics: gets new lines of `metrics.jsonl`, about once a second.
    :param count: how many processes train together; None: one for each GPU, or one.
    :param lease: token of the lease on the run that this process holds; None: the child takes its own.
    :raises TrainingError: training failed; the message is the child's own where it gave one.
    """
    work = Path(run.work)
    held = {TOKEN: lease} if lease else {}
    with alone_on(visible_gpus(run.training.device), run.key, on_line):
        launch(command(work / FILE, count), work, on_line, on_metrics, environment() | held)


@contextmanager
def alone_on(gpus: Sequence[str], run: str, on_line: OnLine) -> Iterator[None]:
    """Be the only one of this machine to train on some GPUs, of all that this project trains there.

    The launcher holds them, not the ranks, whose start would time out while they wait.

    :param gpus: names, the same for all who use them. :param run: key of the run, which whoever waits is told.
    """
    with ExitStack() as held:
        for gpu in sorted(gpus):  # in one order, so that of two who want some of the same, one gets them all
            lock = Path(tempfile.gettempdir()) / f"pretrain-bert-gpu-{gpu.replace(os.sep, '-')}.lock"

            def tell(who: str, gpu: str = gpu) -> None:
                on_line(f"GPU {gpu}: {who}; waiting for it")

            held.enter_context(locked(lock, f"trains run {run} on it", tell, for_all_users=True))
        yield


def visible_gpus(wanted: str) -> list[str]:
    """The GPUs that training takes, as CUDA_VISIBLE_DEVICES names them, else their numbers. Does not initialise CUDA."""
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]


def command(run_file: Path, count: int | None = None) -> list[str]:
    """The training command; of several processes it is the agent, which starts them."""
    return [sys.executable, "-m", "pipeline.training", str(run_file), *([f"--ranks={count}"] if count else [])]


def environment() -> dict[str, str]:
    """This process's environment, in which the child imports the same `pipeline`, whatever the working folder holds."""
    ours = str(Path(pipeline.__path__[0]).parent)
    path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    changed = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    return dict(os.environ) | changed


def launch(
    command: Sequence[str],
    work: Path,
    on_line: OnLine,
    on_metrics: OnMetrics,
    environment: Mapping[str, str] | None = None,
    takes_memory: str = "training.micro_batch_size",
) -> None:
    """Run a command to its end; its lines go to one callback, its `metrics.jsonl` to the other.

    :param takes_memory: the setting that a kill for want of memory is put down to.
    :raises TrainingError: it failed.
    """
    metrics, errors = Follower(work / METRICS), deque[str](maxlen=_LAST_WORDS)
    said = ""
    with _child(command, environment) as child, (work / OUTPUT).open("a", encoding="utf-8") as output:
        next_read = time.monotonic() + POLL_SECONDS
        for is_error, line in _lines(child):
            if line:
                output.write(f"{line}\n")
                if not is_error:
                    on_line(line)
                elif line.startswith("error: "):
                    said = line.removeprefix("error: ")
                else:
                    errors.append(line)
            if time.monotonic() >= next_read:
                metrics.pass_on(on_metrics)
                next_read = time.monotonic() + POLL_SECONDS
        metrics.pass_on(on_metrics)
    if child.returncode:
        raise TrainingError(said or _last_words(child.returncode, errors, work / OUTPUT, takes_memory))


@contextmanager
def _child(command: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a process group of its own that ends, whole, where the block is left early."""
    tie = [sys.executable, "-I", "-c", _TIE, str(os.getpid())] if sys.platform == "linux" else []
    child = subprocess.Popen(
        [*tie, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a Ctrl-C comes to us alone, and we end the child
    )
    try:
        yield child
    except BaseException:  # cancelling a task raises one that is no Exception
        if child.poll() is None and (found := processes.find(child.pid)):
            logger.warning("ending the training process")
            processes.end(found, GRACE_SECONDS)
        raise
    finally:
        child.wait()


def _lines(child: "subprocess.Popen[bytes]") -> Iterator[tuple[bool, str]]:
    """Whether a line is from standard error, and the line, as they come; an empty one where none came for a while."""
    lines: queue.Queue[tuple[bool, str]] = queue.Queue()

    def read(stream: Any, is_error: bool) -> None:
        for line in stream:
            lines.put((is_error, line.decode("utf-8", "replace").rstrip()))

    readers = [
        threading.Thread(target=read, args=(stream, is_error), daemon=True)
        for stream, is_error in ((child.stdout, False), (child.stderr, True))
    ]
    for reader in readers:
        reader.start()
    ended = False
    while not (ended and lines.empty()):
        try:
            yield lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            yield False, ""
        if not ended and child.poll() is not None:
            # What outlives the child may hold its pipes open, so its end is the end once what it said was read.
            for reader in readers:
                reader.join(POLL_SECONDS)
            ended = True


def _last_words(status: int, errors: Sequence[str], output: Path, takes_memory: str) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    if status == -signal.SIGKILL:
        how += f", as the kernel does where memory runs out; lower {takes_memory}"
    words = f"; its last words: {' / '.join(errors)}" if errors else ""
    return f"training {how}{words}; everything it said is in {output}"


class Follower:
    """Reads what is appended to a file of JSON lines; a line without its end waits for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._position = 0, 0

    def pass_on(self, on_metrics: OnMetrics) -> None:
        """Hand new lines, where there are any, to a callback."""
        if rows := self.read():
            on_metrics(rows)

    def read(self) -> list[dict[str, Any]]:
        """The lines that were finished since the last call."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._position:  # a resumed run writes its old lines anew
                    self._file, self._position = found.st_ino, 0
                file.seek(self._position)
                whole = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._position += len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines()]
