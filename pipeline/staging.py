"""What is being built in a local store, and what was left there by processes that are no more.

In: the store's staging folder, or the path of a user's file. Out: names for entries of this process; a folder without the
dead ones'; a file that is whole or not there. The decision that matters: a name says machine, process and when that began,
so that only what nobody can go on with is deleted.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from . import lease
from .errors import PipelineError

FOLDER = ".staging"


def own_prefix() -> str:
    """How the names of this process's entries begin."""
    return f"{_machine()}-{os.getpid()}-{lease.started(os.getpid()) or 0}-"


def sweep(staging: Path) -> None:
    """Delete the entries of processes of this machine that are no more."""
    for path in staging.glob(f"{_machine()}-*-*-*"):
        _, pid, begun, *_ = path.name.split("-")
        if pid.isdecimal() and lease.started(int(pid)) not in (begun, None):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):  # it was a folder, and is gone
                path.unlink()


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file of the user's to write, which takes its name when it is whole; what a kill left beside it is deleted first.

    :raises PipelineError: it cannot be written.
    """
    sweep(path.parent)
    aside = path.with_name(f"{own_prefix()}{path.name}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}; wanted a place that can be written, with room") from error
    finally:
        aside.unlink(missing_ok=True)


def check_place(path: Path, source: str) -> None:
    """See, before any work, that a file may be written there.

    :param source: what is read meanwhile.
    :raises PipelineError: a folder has that name, or none that it would be in is there, or it is what is read.
    """
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise PipelineError(f"{path}: is what is read, and would be replaced; wanted another file")
    if path.is_dir() or not path.parent.is_dir():
        why = "a folder" if path.is_dir() else "its folder is not there"
        raise PipelineError(f"{path}: {why}; wanted a file in a folder of this machine")


def _machine() -> str:
    return hashlib.sha256(lease.machine().encode()).hexdigest()[:12]
