"""HTTP connections with a name and time-outs.

In: a request. Out: an open response, over the environment's proxies where it names any. The decision that matters:
one time-out for reaching a host, over all its addresses, and another for each wait for bytes, so that a machine
without a network learns so in seconds and a slow file is not cut off.
"""

import http.client
import math
import socket
import ssl
import time
import urllib.request
from importlib import metadata
from typing import Any

CONNECT_SECONDS = 10.0  # to reach a host, over all its addresses
READ_SECONDS = 30.0  # without a byte


def user_agent() -> str:
    """Our name to servers; some answer 403 to Python's default."""
    try:
        return f"pretrain-bert/{metadata.version('pretrain-bert')}"
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "pretrain-bert/0"


def open_request(request: urllib.request.Request, *, seconds: float = math.inf) -> http.client.HTTPResponse:
    """Ask, follow redirects, and return the response, open.

    :param seconds: most to wait for a connection and for each of its bytes, where that is less than usual.
    :raises urllib.error.HTTPError: an answer other than 2xx.
    :raises OSError: no answer, `urllib.error.URLError` with its reason included.
    """
    opener = urllib.request.build_opener(_PlainHandler, _SecureHandler, _Redirects)
    response: http.client.HTTPResponse = opener.open(request, timeout=min(READ_SECONDS, seconds))
    return response


def _connect(address: tuple[str, int], seconds: float, *_: object) -> socket.socket:
    """Like `socket.create_connection`, which would wait its time-out for each address of a host in turn."""
    deadline = time.monotonic() + min(CONNECT_SECONDS, seconds)
    failure: OSError = TimeoutError("timed out")
    for family, kind, protocol, _name, where in socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(left, CONNECT_SECONDS / 2))  # a host whose IPv6 is dead leaves time for IPv4
            connection.connect(where)
            connection.settimeout(seconds)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


class _PlainConnection(http.client.HTTPConnection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._create_connection = _connect  # the one hook that direct connections and proxies' tunnels both call


class _SecureConnection(http.client.HTTPSConnection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._create_connection = _connect


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Python before 3.13 follows HEAD with GET, which would send the file."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *answer)
        if following is not None and req.get_method() == "HEAD":
            following.method = "HEAD"
        return following


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PlainConnection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req, context=ssl.create_default_context())
