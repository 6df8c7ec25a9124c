"""HTTP connections with a name and time-outs.

In: a request. Out: an open response, over the environment's proxies where it names any. The decision that matters:
one time-out for reaching a host, over all its addresses, and another for each wait for bytes, so that a machine
without a network learns so in seconds and a slow file is not cut off.
"""

import http.client
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


def open_request(request: urllib.request.Request) -> http.client.HTTPResponse:
    """Ask, follow redirects, and return the response, open.

    :raises urllib.error.HTTPError: an answer other than 2xx.
    :raises OSError: no answer, `urllib.error.URLError` with its reason included.
    """
    response: http.client.HTTPResponse = urllib.request.build_opener(_PlainHandler, _SecureHandler).open(request)
    return response


def _connect(address: tuple[str, int], *_: object) -> socket.socket:
    """Like `socket.create_connection`, which would wait its time-out for each address of a host in turn."""
    deadline = time.monotonic() + CONNECT_SECONDS
    failure: OSError = TimeoutError("timed out")
    for family, kind, protocol, _name, where in socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(left, CONNECT_SECONDS / 2))  # a host whose IPv6 is dead leaves time for IPv4
            connection.connect(where)
            connection.settimeout(READ_SECONDS)
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


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PlainConnection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req, context=ssl.create_default_context())
