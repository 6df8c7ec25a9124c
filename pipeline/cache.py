"""Files of a store elsewhere, kept on this machine.

In: the sha256 of a file, and a function that fetches it. Out: its bytes. The decision that matters: a file is named by its
sha256, which is compared whenever it is read, so that nothing in the folder is taken on trust: not what other processes
put there or delete, nor a disk that is full or damaged. What was not used for longest goes first. Beside what is kept, each
process has at most the file that it is writing.
"""

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from . import staging
from .storage import digest

_LOCKS = "locks"
_TURN_SECONDS = 60.0  # after which a process that holds a lock is taken for one that hangs
_POLL_SECONDS = 0.02
_NAME_LENGTH = len(digest(b""))

logger = logging.getLogger(__name__)


class Cache:
    """A folder of files, for all processes of a machine.

    :param most_bytes: of the files together; a larger file is not kept.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._refused = False

    def read(self, sha256: str, fetch: Callable[[], bytes]) -> bytes:
        """The bytes with a digest, from the folder or fetched; of several processes that want them one fetches.

        :param fetch: gives bytes with that digest, or raises.
        """
        if (kept := self._find(sha256)) is not None:
            return kept
        with self._turn(sha256[:2]):
            if (kept := self._find(sha256)) is not None:
                return kept
            data = fetch()
            self._keep(sha256, data)
            return data

    def _find(self, sha256: str) -> bytes | None:
        path = self._folder / sha256
        try:
            data = path.read_bytes()
        except OSError:  # not here, or its disk fails
            return None
        if digest(data) == sha256:
            with suppress(OSError):  # it may have gone meanwhile
                os.utime(path)
            return data
        logger.warning("%s: damaged; it is fetched anew", path)
        with suppress(OSError):
            path.unlink()
        return None

    def _keep(self, sha256: str, data: bytes) -> None:
        if self._refused or len(data) > self._most_bytes:
            return
        parent = self._folder / staging.FOLDER
        aside = parent / f"{staging.own_prefix()}{uuid.uuid4().hex}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            staging.sweep(parent)
            try:
                aside.write_bytes(data)
                with self._turn("room"):
                    self._make_room(len(data))
                    aside.replace(self._folder / sha256)
            finally:
                aside.unlink(missing_ok=True)
        except OSError as error:  # a full disk, most likely; training needs no cache
            self._refused = True
            logger.warning("%s: %s; from here on nothing is added, and what is not there is fetched", self._folder, error.strerror or error)

    def _make_room(self, size: int) -> None:
        """Delete what was not used for longest, until a file of this size fits."""
        found = []
        for path in self._folder.iterdir():
            if len(path.name) == _NAME_LENGTH:
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(length for _, length, _ in found)
        for _, length, path in sorted(found):
            if total + size <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= length

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Be the only one at something on this machine, as far as that can be had: two at once do no harm."""
        with ExitStack() as stack:
            with suppress(OSError):  # a folder that cannot be written to
                (self._folder / _LOCKS).mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((self._folder / _LOCKS / name).open("ab"))
                _lock(file.fileno())
            yield


def _lock(descriptor: int) -> None:
    """Wait for a lock, which the system frees when its holder dies, but not for ever."""
    deadline = time.monotonic() + _TURN_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)
        else:
            return
