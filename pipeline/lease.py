"""Leases: who is at an output now, among processes and machines that share nothing but the store.

In: small files that are created only if absent. Out: a `Lease` while one process holds a name; others wait. The decision
that matters: a lease is a numbered file. Whoever takes it over from an owner that gives no sign creates the next number,
which only one can do, so that no clock has to be right and nothing has to be changed in place by two.
"""

import functools
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from .errors import LeaseLostError

RENEW_SECONDS = 5.0
STALE_SECONDS = 30.0  # without a sign, after which an owner is taken for dead; on its own machine that is seen at once
POLL_SECONDS = 0.5
TOKEN = "BERT_LEASE"  # noqa: S105 an environment variable: the lease that a parent holds for its child

logger = logging.getLogger(__name__)


class Files(Protocol):
    """What a lease needs of a store."""

    def create(self, address: str, data: bytes) -> bool: ...
    def overwrite(self, address: str, data: bytes) -> None: ...
    def read(self, address: str) -> bytes | None: ...
    def remove(self, address: str) -> None: ...
    def children(self, address: str) -> list[str]: ...


@dataclass(frozen=True)
class _Sign:
    """What a lease's file says: whose it is, and a number that grows as long as the owner lives."""

    owner: str
    machine: str
    host: str
    pid: int
    started: str
    beat: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def data(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes | None) -> "_Sign | None":
        try:
            return cls(**json.loads(data or b""))
        except (ValueError, TypeError):
            return None

    @property
    def is_dead(self) -> bool:
        """Whether the owner was a process of this machine that is no more."""
        return self.machine == machine() and started(self.pid) not in (self.started, None)


class Lease:
    """A name that is held. `token` lets a child process act under it."""

    def __init__(self, files: Files, folder: str, name: str, number: int, sign: _Sign) -> None:
        self._files, self._folder, self._name, self._number, self._sign = files, folder, name, number, sign
        self._ended = threading.Event()

    @property
    def token(self) -> str:
        return self._sign.owner

    def check(self) -> None:
        """See that nobody has taken it over.

        :raises LeaseLostError: somebody has, or it is gone.
        """
        held = max(_numbers(self._files, self._folder, self._name), default=0)
        if not held:
            todo = "if the store was moved or deleted, bring it back; the same command goes on from what is there"
            raise LeaseLostError(f"{self._name}: its lease in {self._folder} is gone; {todo}")
        sign = _Sign.read(self._files.read(_address(self._folder, self._name, held)))
        if held != self._number or sign is None or sign.owner != self.token:
            raise LeaseLostError(
                f"{self._name}: {sign or 'another process'} has taken this over, since this one gave no sign for {STALE_SECONDS:.0f} "
                "seconds; it goes on there, and what it makes is found by the same command"
            )

    @contextmanager
    def kept(self) -> Iterator["Lease"]:
        """Renew it in the background, and give it up at the end."""
        thread = threading.Thread(target=self._renew, name=f"lease of {self._name}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()
            try:
                self.check()  # numbers begin again, so this one may be another's by now
                self._files.remove(_address(self._folder, self._name, self._number))
            except Exception as error:  # file systems raise what they like; it becomes stale instead
                logger.debug("%s: not given up: %s", self._name, error)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            self._sign = replace(self._sign, beat=self._sign.beat + 1)
            try:
                self.check()
                self._files.overwrite(_address(self._folder, self._name, self._number), self._sign.data())
            except Exception as error:  # a store that is away for a while; of a loss the holder learns by `check`
                logger.debug("%s: not renewed: %s", self._name, error)


@contextmanager
def hold(files: Files, folder: str, name: str) -> Iterator[Lease]:
    """Hold a name, waiting while another process does. Under a parent's lease (`TOKEN`), it is held already."""
    if inherited := _inherited(files, folder, name):
        yield inherited
        return
    with _acquire(files, folder, name).kept() as lease:
        yield lease


def _inherited(files: Files, folder: str, name: str) -> Lease | None:
    number = max(_numbers(files, folder, name), default=0)
    sign = _Sign.read(files.read(_address(folder, name, number)))
    return Lease(files, folder, name, number, sign) if sign and sign.owner == os.environ.get(TOKEN) else None


def _acquire(files: Files, folder: str, name: str) -> Lease:
    sign = _Sign(uuid.uuid4().hex, machine(), socket.gethostname(), os.getpid(), started(os.getpid()) or "")
    seen: tuple[int, bytes | None] = (0, None)
    looked_at = seen_at = time.monotonic()
    told = False
    while True:
        newest = max(_numbers(files, folder, name), default=0)
        data = files.read(_address(folder, name, newest)) if newest else None
        now = time.monotonic()
        if (newest, data) != seen or now - looked_at > RENEW_SECONDS:  # who did not look for long cannot say that nothing came
            seen, seen_at = (newest, data), now
        looked_at = now
        owner = _Sign.read(data)
        if not newest or (owner and owner.is_dead) or now - seen_at > STALE_SECONDS:
            if _take(files, folder, name, newest, data, sign):
                if newest:
                    logger.warning("%s: %s gave no sign any more; going on in its place", name, owner or "its owner")
                return Lease(files, folder, name, newest + 1, sign)
        elif not told:
            logger.info("%s: %s is at it; waiting", name, owner or "an unknown process")
            told = True
        time.sleep(POLL_SECONDS)


def _take(files: Files, folder: str, name: str, old: int, data: bytes | None, sign: _Sign) -> bool:
    """Create the number after `old` and see that nobody else moved meanwhile; else step back.

    Lower numbers than `old` are of takers that were killed between the two steps below.

    :param data: what `old` said when it was judged.
    """
    mine = _address(folder, name, old + 1)
    if not files.create(mine, sign.data()):
        return False
    numbers = sorted(_numbers(files, folder, name))
    moved = [number for number in numbers if number >= max(old, 1)] != [*filter(None, [old]), old + 1]
    if moved or (old and files.read(_address(folder, name, old)) != data):
        files.remove(mine)
        return False
    for number in numbers[:-1]:
        files.remove(_address(folder, name, number))
    return True


def _address(folder: str, name: str, number: int) -> str:
    return f"{folder}/{name}.{number}"


def _numbers(files: Files, folder: str, name: str) -> list[int]:
    parts = [entry.rpartition(".") for entry in files.children(folder)]
    return [int(number) for known, _, number in parts if known == name and number.isdecimal()]


def holders(files: Files, folder: str) -> list[str]:
    """Who holds a lease now; takes as long as two renewals where another machine's process may."""
    names = files.children(folder)
    before = {name: files.read(f"{folder}/{name}") for name in names}
    signs = {name: sign for name, data in before.items() if (sign := _Sign.read(data)) and not sign.is_dead}
    if any(sign.machine != machine() for sign in signs.values()):
        time.sleep(2 * RENEW_SECONDS)
    living = [
        name for name, sign in signs.items() if sign.machine == machine() or files.read(f"{folder}/{name}") not in (before[name], None)
    ]
    return [f"{signs[name]} at {name.rpartition('.')[0]}" for name in living]


@functools.cache
def machine() -> str:
    """Where process ids mean the same: a boot of a machine, and within it a name space of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def started(pid: int) -> str | None:
    """When a process started, as the system counts it; empty where it is no more, None where the system does not tell."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:  # it is no more, the system hides it, or has no such files
        return None if _lives(pid) else ""
    return "" if state in "ZX" else rest[18]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
