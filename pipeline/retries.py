"""Patience with a store that is away for a while.

In: an fsspec file system that is not on this machine. Out: the same, its calls made again while what went wrong can heal:
no connection, a time-out, an answer such as 503. The decision that matters: a thread has one outage at a time, so that
when it has been given up, what follows (a lease that is handed back) tries once and does not wait all over again.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import PipelineError, StoreUnavailableError

PATIENCE_SECONDS = 60.0  # from the first call that failed; after that no other is begun
FIRST_PAUSE_SECONDS = 0.5  # doubled from one try to the next
LONGEST_PAUSE_SECONDS = 8.0
_BUSY = {408, 409, 429, 500, 502, 503, 504}  # 409: what S3 answers to one of two that create the same at once
_AWAY = {"ConnectionError", "TimeoutError", "gaierror", "HTTPClientError", "ClientConnectionError", "ClientPayloadError"}
_AWAY_ERRNO = {errno.EBUSY, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
_REFUSED = {"PermissionError", "NoCredentialsError"}
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")
logger = logging.getLogger(__name__)


class _Outage(threading.local):
    """As each thread has met it: its first call and its last failure. What others do elsewhere does not end it."""

    began = failed = float("-inf")
    given_up = False


class RetryingFileSystem:
    """An fsspec file system whose calls are patient.

    A call may have been executed though its answer got lost, and clients repeat calls too, unseen: whoever creates a file
    only if it is absent has to compare what stands there then.
    """

    def __init__(self, fs: Any, address: str) -> None:
        self._fs, self._address = fs, address
        self._outage = _Outage()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # those of copies and pickles, asked for before there is a file system
            raise AttributeError(name)
        return lambda *args, **kwargs: self.run(lambda fs: getattr(fs, name)(*args, **kwargs))

    def run(self, operation: Callable[[Any], T]) -> T:
        """Call an operation with the plain file system until it succeeds; it must bear to be begun again.

        :raises StoreUnavailableError: the store was away for longer than `PATIENCE_SECONDS`.
        :raises PipelineError: the store refuses.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            begun = time.monotonic()
            self._fs.invalidate_cache()  # a listing from before would hide what others wrote, and what a lost answer was about
            try:
                result = operation(self._fs)
            except Exception as error:  # fsspec's file systems raise what they like
                if _is_refusal(error):
                    todo = "check the credentials and what they may do, or give another address"
                    raise PipelineError(f"{self._address}: the store refuses ({_answer(error)}); {todo}") from error
                if not can_heal(error):
                    raise
                self._wait(begun, pause, error)
            else:
                self._outage.failed = float("-inf")
                return result
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _wait(self, begun: float, pause: float, error: Exception) -> None:
        now = time.monotonic()
        outage = self._outage
        if begun - outage.failed > PATIENCE_SECONDS:
            outage.began, outage.given_up = begun, False
        outage.failed = now
        outage.given_up |= now + pause - outage.began > PATIENCE_SECONDS
        if outage.given_up:
            raise StoreUnavailableError(
                f"{self._address}: the store answered {_answer(error)}, and no better for {now - outage.began:.0f} s; "
                "see that it is up and can be reached from here, then run the same command again, which goes on from what is published"
            ) from error
        logger.info("store %s answered %s; trying again in %.3g s", self._address, _answer(error), pause)
        time.sleep(pause)


def can_heal(error: BaseException) -> bool:
    """Whether the same call may succeed later, by the status a server sent, or else by the kind of error below it all."""
    if isinstance(error, _FINAL):
        return False
    if status := _status(error):
        return status in _BUSY
    return any(getattr(link, "errno", None) in _AWAY_ERRNO or _kinds(link) & _AWAY for link in _chain(error))


def _is_refusal(error: BaseException) -> bool:
    return bool(_kinds(error) & _REFUSED) and not getattr(error, "filename", None)  # with a file's name it is the local disk that refuses


def _answer(error: BaseException) -> str:
    status, text = _status(error), getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{status} {text}" if status else text


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error, or what caused it, tells of, as the clients of S3, Google, Azure and the web name it."""
    for link in _chain(error):
        if _kinds(link) & _AWAY:  # below it, parsers have statuses of their own for an answer that broke off
            return None
        response = getattr(link, "response", None)
        told = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        for status in (told, *(getattr(link, name, None) for name in ("status", "status_code", "code"))):
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _kinds(error: BaseException) -> set[str]:
    """The names of an error's classes: the clients that define them need not be installed."""
    return {kind.__name__ for kind in type(error).__mro__}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
