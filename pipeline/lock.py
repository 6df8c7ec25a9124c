"""A file that one process of this machine holds, and others wait for.

In: its path, and what its holder says of itself. Out: nothing; the file is held for the while. The decision that matters:
the system frees it when its holder dies, however it dies.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path, does: str, on_wait: Callable[[str], object], *, for_all_users: bool = False) -> Iterator[None]:
    """Hold a file.

    :param does: what the holder does with it, as in "trains run 7cd6"; whoever waits is told.
    :param on_wait: gets "process 123 trains run 7cd6", once, where another process holds it.
    :param for_all_users: other users of this machine may hold it too.
    """
    with suppress(FileExistsError):  # made apart: a file of another user's is not opened with O_CREAT in a folder for all
        path.touch(exist_ok=False)
        if for_all_users:
            path.chmod(0o666)
    with path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(file.read().strip() or "another process")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} {does}\n")
        file.flush()
        yield
