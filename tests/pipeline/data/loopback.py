"""A web server on loopback that behaves as real ones do on bad days."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Looks the path up in the server's `answers`; 404 for the rest. Keeps each request's headers."""

    server: "Server"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((path, dict(self.headers)))
        self.server.answers.get(path, status(404))(self)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    def handle_error(self, *_: object) -> None:
        pass  # clients that hang up are part of the tests

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def dead_url(path: str) -> str:
    """An address on which nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}{path}"


def _reply(handler: Handler, code: int, headers: dict[str, str], body: bytes) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, headers: dict[str, str] | None = None) -> Answer:
    return lambda handler: _reply(handler, code, headers or {}, b"no")


def whole(data: bytes) -> Answer:
    return lambda handler: _reply(handler, 200, {"Content-Length": str(len(data))}, data)


def refusing_python(data: bytes) -> Answer:
    """403 for Python's default User-Agent."""

    def answer(handler: Handler) -> None:
        (status(403) if handler.headers["User-Agent"].startswith("Python-urllib") else whole(data))(handler)

    return answer


def stopping(data: bytes, *, times: int, tag: str | None = '"v1"', ranges: bool = True) -> Answer:
    """Hang up half-way through what was asked for, the first `times` times; then send it all."""
    left = [times]

    def answer(handler: Handler) -> None:
        start, wanted = 0, handler.headers.get("Range")
        if ranges and wanted and handler.headers.get("If-Range") == tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        body = data[start:]
        headers = {"Content-Length": str(len(body))} | ({"ETag": tag} if tag else {})
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        left[0] -= 1
        _reply(handler, 206 if start else 200, headers, body[: len(body) // 2] if left[0] >= 0 else body)

    return answer


def in_turn(*answers: Answer) -> Answer:
    """One answer after another; the last one stays."""
    rest = list(answers)
    return lambda handler: (rest.pop(0) if len(rest) > 1 else rest[0])(handler)
