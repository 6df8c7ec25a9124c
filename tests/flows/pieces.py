"""Pieces of work for builders that tests start: in a module of their own, which a builder imports quickly."""

import os
import signal
import time
from pathlib import Path

from pipeline.errors import CorpusError


def fail_at_one(piece: int) -> None:
    """Piece 1 fails; the others do not end."""
    if piece == 1:
        raise CorpusError("row 3: got nothing, wanted text")
    time.sleep(600)


def die(marker: Path) -> int:
    """The first time that it is called."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()
