"""Processes that others started, and how to end them whole.

In: a process id. Out: who descends from it, and the end of them all. The decision that matters: a process is known by
its id and its start time, so that an id that was given to another process is never signalled.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """A process and when it started; `started` is opaque, equal for the same process only."""

    pid: int
    started: str


def running() -> dict[Process, int]:
    """Every process that is not a zombie, with its parent's id."""
    if not _PROC.joinpath("self/stat").exists():
        return _running_by_ps()
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may itself hold brackets and spaces.
                state, parent, *rest = entry.joinpath("stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                if state != "Z":
                    found[Process(int(entry.name), rest[17])] = int(parent)
    return found


def _running_by_ps() -> dict[Process, int]:
    listed = subprocess.run(["/bin/ps", "-axo", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=3) for line in listed.splitlines()]
    return {Process(int(pid), started): int(parent) for pid, parent, state, started in rows if not state.startswith("Z")}


def find(pid: int) -> Process | None:
    """The process that has an id now."""
    return next((process for process in running() if process.pid == pid), None)


def descendants(ancestors: Iterable[Process]) -> set[Process]:
    """The processes themselves and all that descend from them, as long as the line is unbroken."""
    parents = running()
    found = {process for process in ancestors if process in parents}
    while more := {process for process, parent in parents.items() if any(parent == known.pid for known in found)} - found:
        found |= more
    return found


def end(root: Process, grace_seconds: float, stop: signal.Signals = signal.SIGTERM) -> None:
    """Ask a process to end, wait, and kill what is left of it and of its descendants.

    :param stop: the signal that asks.

    A session of its own does not save a descendant: torchrun gives each rank one.
    """
    family = descendants([root])
    _signal([root], stop)
    if not _wait(family, grace_seconds):
        _signal(descendants(family), signal.SIGKILL)
        _wait(family, grace_seconds)


def _wait(processes: set[Process], seconds: float) -> bool:
    """Wait until none of the processes runs. Returns whether that came about."""
    deadline = time.monotonic() + seconds
    while processes & running().keys():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if find(process.pid) == process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
