"""One file over HTTP into a local folder.

In: an http(s) address and a path to write. Out: the whole file there, or a `FetchError` that says what was
answered. The decision that matters: what can heal (a broken connection, a busy server) is tried again from where it
stopped, and what cannot (403, 404, no such host for long) ends at once, so that a dead mirror costs seconds.
"""

import base64
import http.client
import logging
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import BinaryIO

from ..addresses import without_credentials
from ..errors import DownloadError
from .connection import open_request, user_agent

ATTEMPTS = 3
SLOW_SECONDS = 3.0  # a host that took longer than this to refuse is not asked again
LONGEST_PAUSE = 10.0  # seconds that a busy server's Retry-After may ask for
_BLOCK = 1 << 16

logger = logging.getLogger(__name__)


class FetchError(DownloadError):
    """A file that was not fetched; `status` is the server's answer, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _PassingError(FetchError):
    """What may heal; `pause` is how many seconds the server asks to wait."""

    def __init__(self, message: str, status: int | None = None, pause: float = 0.0) -> None:
        super().__init__(message, status)
        self.pause = pause


@dataclass
class _Progress:
    """What stands in the file so far, and by what the server would know the same file again."""

    received: int = 0
    validator: str | None = None
    size: int | None = None


def fetch_file(url: str, target: Path, *, max_bytes: int) -> None:
    """Download a file whole.

    :param target: written as the bytes come; not whole until this returns.
    :param max_bytes: larger files are refused, by their announced size or while they come.
    :raises FetchError: says what was answered, without the address's credentials.
    """
    progress = _Progress()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with target.open("ab") as file:
                return _fetch_rest(url, file, progress, max_bytes)
        except _PassingError as error:
            if attempt == ATTEMPTS:
                raise FetchError(f"{error} ({ATTEMPTS} attempts)", error.status) from error
            pause = max(0.5 * attempt, min(error.pause, LONGEST_PAUSE))
            logger.info("%s: %s; trying again in %.1f s from byte %d", without_credentials(url), error, pause, progress.received)
            time.sleep(pause)
    raise AssertionError("unreachable")


def ask_about(url: str, *, seconds: float) -> tuple[int, Message]:
    """What a server says of a file without sending it: the status and headers that it answers to HEAD.

    :param seconds: to reach it, and for each wait for its answer.
    :raises FetchError: not an http or https address.
    :raises OSError: no answer.
    """
    request = _request(url, _Progress())
    request.method = "HEAD"
    try:
        with open_request(request, seconds=seconds) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, error.headers


def _fetch_rest(url: str, file: BinaryIO, progress: _Progress, max_bytes: int) -> None:
    """Ask for what is missing and append it."""
    with _open(url, progress) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            _start_again(file, progress)
            progress.validator = _validator(response.headers)
        length = response.headers.get("Content-Length")
        progress.size = progress.received + int(length) if length and length.isdecimal() else None
        _refuse_larger(progress.size or 0, max_bytes)
        while block := _read(response, progress):
            _refuse_larger(progress.received + len(block), max_bytes)
            file.write(block)
            progress.received += len(block)
    if progress.size is not None and progress.received < progress.size:
        raise _PassingError(f"stopped after {progress.received} of {progress.size} bytes")


def _open(url: str, progress: _Progress) -> http.client.HTTPResponse:
    began = time.monotonic()
    try:
        response = open_request(_request(url, progress))
    except urllib.error.HTTPError as error:
        raise _refusal(error, progress) from error
    except (http.client.InvalidURL, ValueError) as error:
        raise FetchError(f"not an address that can be asked: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        message = f"no answer: {str(reason) or type(reason).__name__}"
        raise (FetchError(message) if _is_hopeless(reason, time.monotonic() - began) else _PassingError(message)) from error
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        span = response.headers.get("Content-Range", "")
        if not progress.received or not span.startswith(f"bytes {progress.received}-"):
            response.close()
            progress.validator = None  # so the next attempt asks for the whole file
            raise _PassingError(f"answered with another range than asked for: {span!r}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise FetchError(f"sent the file {response.headers['Content-Encoding']}-encoded though it was asked for as it is")
    return response


def _is_hopeless(reason: object, seconds: float) -> bool:
    """Whether asking again would only cost time: no such host, a wrong certificate, or a host that let us wait."""
    no_such_host = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    return no_such_host or isinstance(reason, ssl.SSLCertVerificationError) or seconds > SLOW_SECONDS


def _request(url: str, progress: _Progress) -> urllib.request.Request:
    user, clean = _split_user(url)
    if not clean.startswith(("http://", "https://")):
        raise FetchError(f"{without_credentials(clean)}: not an http or https address")
    request = urllib.request.Request(clean, headers={"User-Agent": user_agent(), "Accept-Encoding": "identity"})  # noqa: S310 checked above
    if user is not None:
        # Unredirected: a server that redirects to another host must not hand it the password.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    if progress.received and progress.validator:
        request.add_header("Range", f"bytes={progress.received}-")
        request.add_header("If-Range", progress.validator)  # a file that changed meanwhile comes whole
    return request


def _split_user(url: str) -> tuple[str | None, str]:
    parts = urllib.parse.urlsplit(url)
    user, mark, host = parts.netloc.rpartition("@")
    path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~")  # a space in an address is a mistake that curl forgives too
    return (urllib.parse.unquote(user) if mark else None), urllib.parse.urlunsplit(parts._replace(netloc=host, path=path, fragment=""))


def _read(response: http.client.HTTPResponse, progress: _Progress) -> bytes:
    try:
        return response.read1(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        wanted = f" of {progress.size}" if progress.size is not None else ""
        raise _PassingError(f"stopped after {progress.received}{wanted} bytes: {error}") from error


def _refusal(error: urllib.error.HTTPError, progress: _Progress) -> FetchError:
    message = f"answered {error.code} {error.reason}"
    error.close()
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and progress.received:
        progress.validator = None  # the file is not what it was: the next attempt asks for it whole
        return _PassingError(message, error.code)
    if error.code in (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS) or error.code >= 500:
        pause = error.headers.get("Retry-After", "") if error.headers else ""
        return _PassingError(message, error.code, float(pause) if pause.isdecimal() else 0.0)
    return FetchError(message, error.code)


def _validator(headers: Message) -> str | None:
    """By what If-Range knows the file again: a strong ETag, else its date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _start_again(file: BinaryIO, progress: _Progress) -> None:
    file.seek(0)
    file.truncate()
    progress.received = 0


def _refuse_larger(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise FetchError(f"at least {size} bytes, wanted at most {max_bytes}")
