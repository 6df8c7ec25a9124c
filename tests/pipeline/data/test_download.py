import base64
import time
from pathlib import Path

import pytest

from pipeline.data import connection
from pipeline.data.download import ATTEMPTS, FetchError, fetch_file
from tests.pipeline.data.loopback import Server, dead_url, in_turn, refusing_python, serve, status, stopping, whole

DATA = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serve() as server:
        yield server


def fetch(url: str, folder: Path, max_bytes: int = 10**7) -> bytes:
    fetch_file(url, folder / "file", max_bytes=max_bytes)
    return (folder / "file").read_bytes()


def test_a_file_comes_whole(server: Server, tmp_path):
    server.answers["/f"] = whole(DATA)
    assert fetch(server.url("/f"), tmp_path) == DATA


def test_our_name_is_not_pythons_default(server: Server, tmp_path):
    server.answers["/f"] = refusing_python(DATA)
    assert fetch(server.url("/f"), tmp_path) == DATA
    assert server.requests[0][1]["User-Agent"].startswith("pretrain-bert/")


def test_a_download_that_stopped_goes_on_from_there(server: Server, tmp_path):
    server.answers["/f"] = stopping(DATA, times=1)
    assert fetch(server.url("/f"), tmp_path) == DATA
    assert server.requests[1][1]["Range"] == f"bytes={len(DATA) // 2}-"


@pytest.mark.parametrize("answer", [{"ranges": False}, {"tag": None}, {"tag": 'W/"weak"'}], ids=["no ranges", "no tag", "weak tag"])
def test_without_ranges_it_starts_again(server: Server, tmp_path, answer):
    server.answers["/f"] = stopping(DATA, times=1, **answer)
    assert fetch(server.url("/f"), tmp_path) == DATA


def test_a_file_that_changed_meanwhile_comes_whole(server: Server, tmp_path):
    server.answers["/f"] = in_turn(stopping(DATA, times=9, tag='"old"'), stopping(DATA[::-1], times=0, tag='"new"'))
    assert fetch(server.url("/f"), tmp_path) == DATA[::-1]


def test_one_that_always_stops_is_an_error_that_says_where(server: Server, tmp_path):
    server.answers["/f"] = stopping(DATA, times=99, ranges=False)
    with pytest.raises(FetchError, match=rf"stopped after {len(DATA) // 2} of {len(DATA)} bytes.*{ATTEMPTS} attempts"):
        fetch(server.url("/f"), tmp_path)
    assert len(server.requests) == ATTEMPTS


def test_a_stalled_server_is_left_and_asked_again(server: Server, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "READ_SECONDS", 0.2)

    def stall(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.send_header("ETag", '"v1"')
        handler.end_headers()
        handler.wfile.write(DATA[:1000])
        time.sleep(1)

    server.answers["/f"] = in_turn(stall, stopping(DATA, times=0))
    assert fetch(server.url("/f"), tmp_path) == DATA
    assert server.requests[1][1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410])
def test_a_refusal_is_not_asked_again(server: Server, tmp_path, code):
    server.answers["/f"] = status(code)
    with pytest.raises(FetchError, match=f"answered {code}") as caught:
        fetch(server.url("/f"), tmp_path)
    assert caught.value.status == code
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_a_busy_server_is_asked_again(server: Server, tmp_path, code):
    server.answers["/f"] = in_turn(status(code), whole(DATA))
    assert fetch(server.url("/f"), tmp_path) == DATA


def test_a_busy_server_says_how_long_to_wait(server: Server, tmp_path):
    server.answers["/f"] = in_turn(status(429, {"Retry-After": "1"}), whole(DATA))
    began = time.monotonic()
    fetch(server.url("/f"), tmp_path)
    assert time.monotonic() - began >= 1


def test_a_dead_address_fails_in_seconds(tmp_path):
    began = time.monotonic()
    with pytest.raises(FetchError, match=r"no answer: .*refused"):
        fetch(dead_url("/f"), tmp_path)
    assert time.monotonic() - began < 5


def test_too_large_by_its_announcement_and_while_it_comes(server: Server, tmp_path):
    server.answers["/f"] = whole(DATA)
    server.answers["/silent"] = lambda handler: (handler.send_response(200), handler.end_headers(), handler.wfile.write(DATA))
    for path in ("/f", "/silent"):
        with pytest.raises(FetchError, match=r"at least .* wanted at most 1000"):
            fetch(server.url(path), tmp_path, max_bytes=1000)
        assert (tmp_path / "file").stat().st_size <= 1000


def test_an_encoded_body_is_refused(server: Server, tmp_path):
    server.answers["/f"] = status(200, {"Content-Encoding": "gzip"})
    with pytest.raises(FetchError, match="gzip-encoded"):
        fetch(server.url("/f"), tmp_path)
    assert server.requests[0][1]["Accept-Encoding"] == "identity"


def test_a_password_goes_to_its_server_only(server: Server, tmp_path):
    with serve() as other:
        other.answers["/f"] = whole(DATA)
        server.answers["/f"] = status(302, {"Location": other.url("/f")})
        url = server.url("/f").replace("http://", "http://me:se%40cret@")
        assert fetch(url, tmp_path) == DATA
        assert server.requests[0][1]["Authorization"] == f"Basic {base64.b64encode(b'me:se@cret').decode()}"
        assert "Authorization" not in other.requests[0][1]


@pytest.mark.parametrize("url", ["http://[::1/f", "ftp://127.0.0.1/f", "http://127.0.0.1:port/f", "file:///etc/passwd"])
def test_an_address_that_is_none(url, tmp_path):
    with pytest.raises(FetchError, match="not an"):
        fetch(url, tmp_path)
