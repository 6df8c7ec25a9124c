"""What is being built in a local store, and what was left there by processes that are no more.

In: the store's staging folder. Out: names for entries of this process; a folder without the dead ones'. The decision
that matters: a name says machine, process and when that began, so that only what nobody can go on with is deleted.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from . import lease

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


def _machine() -> str:
    return hashlib.sha256(lease.machine().encode()).hexdigest()[:12]
