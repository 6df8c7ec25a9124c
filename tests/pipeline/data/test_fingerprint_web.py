"""A corpus on a web server that says it has not changed is not sent again; in doubt it is."""

import contextlib
import email.utils
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.data import fingerprint
from pipeline.data.corpus import fetch_corpus
from pipeline.data.seen import SEEN
from pipeline.errors import CorpusError
from tests.pipeline.data.corpora import TEST, TRAIN, VALID, write_zip
from tests.pipeline.data.loopback import Answer, Handler, Server, serve, status, whole

TEXTS = {"train.txt": TRAIN, "valid.txt": VALID}


class HeadHandler(Handler):
    """Answers HEAD by the server's `heads`, and GET as before."""

    def do_HEAD(self) -> None:  # noqa: N802 as http.server calls it
        path = self.path.partition("?")[0]
        self.server.asked.append((path, dict(self.headers)))
        self.server.heads.get(path, status(404))(self)


@contextlib.contextmanager
def head_server() -> Iterator[Server]:
    with serve() as server:
        server.RequestHandlerClass, server.heads, server.asked = HeadHandler, {}, []
        yield server


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with head_server() as server:
        yield server


@pytest.fixture
def zipped(tmp_path) -> bytes:
    return write_zip(tmp_path / "served.zip", dict(TEXTS)).read_bytes()


def date(seconds_ago: float) -> str:
    return email.utils.formatdate(time.time() - seconds_ago, usegmt=True)


def said(**headers: str) -> Answer:
    return status(200, {name.replace("_", "-"): value for name, value in headers.items()})


def put(server: Server, path: str, data: bytes, **headers: str) -> None:
    server.answers[path] = whole(data)
    server.heads[path] = said(Content_Length=str(len(data)), **headers)


TRUSTED = {
    "ETag": lambda: {"ETag": '"1"'},
    "weak ETag": lambda: {"ETag": 'W/"1"', "Last_Modified": date(60)},
    "Last-Modified": lambda: {"Last_Modified": date(60)},
    "new, with ETag": lambda: {"ETag": '"1"', "Last_Modified": date(0)},
}


@pytest.mark.parametrize("headers", TRUSTED.values(), ids=TRUSTED)
def test_a_web_server_is_asked_but_sends_nothing_again(store, server, zipped, headers):
    put(server, "/mine.zip", zipped, **headers())
    corpora = [fetch_corpus(store, server.url("/mine.zip")) for _ in range(3)]
    assert (len(server.requests), len(server.asked)) == (1, 3)
    assert [found.output.found for found in corpora] == [False, True, True]
    assert {(found.output.key, found.name, found.source) for found in corpora} == {(corpora[0].output.key, "mine", corpora[0].source)}
    assert server.asked[0][1]["User-Agent"] == server.requests[0][1]["User-Agent"]


@pytest.mark.parametrize("change", [{"ETag": '"2"'}, {"ETag": '"1"', "Content_Length": "7"}, {"ETag": '"1"', "Last_Modified": date(60)}])
def test_what_a_web_server_says_otherwise_is_read(store, server, zipped, change):
    put(server, "/mine.zip", zipped, ETag='"1"')
    fetch_corpus(store, server.url("/mine.zip"))
    server.heads["/mine.zip"] = said(**change)
    assert fetch_corpus(store, server.url("/mine.zip")).output.found
    assert len(server.requests) == 2


UNTRUSTED = {
    **{str(code): status(code, {"ETag": '"1"'}) for code in (401, 403, 404, 405, 429, 500, 501)},
    "no content": status(204, {"ETag": '"1"'}),
    "nothing said": said(Content_Length="10"),
    "no size": said(Last_Modified=date(60)),
    "no date": said(Last_Modified="yesterday", Content_Length="10"),
    "just changed": lambda handler: said(Last_Modified=date(0), Content_Length="10")(handler),
    "weak, just changed": lambda handler: said(ETag='W/"1"', Last_Modified=date(0))(handler),
    "hangs up": lambda handler: handler.connection.close(),
    "elsewhere": status(302, {"Location": "/login"}),
}


@pytest.mark.parametrize("answer", UNTRUSTED.values(), ids=UNTRUSTED)
def test_a_web_server_that_does_not_say_is_read_every_time(store, server, zipped, answer):
    put(server, "/mine.zip", zipped)
    server.heads["/mine.zip"] = answer
    for _ in range(2):
        fetch_corpus(store, server.url("/mine.zip"))
    assert len(server.requests) == 2
    assert not Path(store.root, SEEN).exists()


def test_a_web_server_is_not_waited_for(store, server, zipped, monkeypatch):
    monkeypatch.setattr(fingerprint, "ANSWER_SECONDS", 0.2)
    put(server, "/mine.zip", zipped)
    server.heads["/mine.zip"] = lambda _: time.sleep(3)
    began = time.monotonic()
    fetch_corpus(store, server.url("/mine.zip"))
    assert time.monotonic() - began < 2


def test_below_a_base_address_each_file_counts(store, server):
    for name, text in TEXTS.items():
        put(server, f"/mine/{name}", text.encode(), ETag=f'"{name}"')

    def sent() -> int:
        """How many files a fetch has sent."""
        before = len([path for path, _ in server.requests if path in server.heads])
        fetch_corpus(store, server.url("/mine/"))
        return len([path for path, _ in server.requests if path in server.heads]) - before

    assert [sent(), sent()] == [2, 0]
    assert [path for path, _ in server.asked[:4]] == [f"/mine/{name}" for name in ("wiki.train.tokens", *TEXTS, "test.txt")]
    put(server, "/mine/test.txt", TEST.encode(), ETag='"3"')
    assert [sent(), sent()] == [3, 0]
    put(server, "/mine/valid.txt", TEST.encode(), ETag='"4"')
    assert [sent(), sent()] == [3, 0]
    server.heads["/mine/valid.txt"] = status(403)
    assert [sent(), sent()] == [3, 3]


def test_a_corpus_that_went_away_is_an_error_as_before(store, server, zipped):
    put(server, "/mine.zip", zipped, ETag='"1"')
    fetch_corpus(store, server.url("/mine.zip"))
    server.answers.clear()
    server.heads.clear()
    with pytest.raises(CorpusError, match="answered 404"):
        fetch_corpus(store, server.url("/mine.zip"))


def test_redirects_are_followed_without_the_file_or_the_password(store, server, zipped):
    with head_server() as other:
        put(other, "/there.zip", zipped, ETag='"1"')
        server.answers["/mine.zip"] = server.heads["/mine.zip"] = status(302, {"Location": other.url("/there.zip")})
        address = server.url("/mine.zip?signature=hidden").replace("//", "//me:hidden@")
        corpora = [fetch_corpus(store, address) for _ in range(2)]
        assert ([len(other.asked), len(other.requests)], corpora[1].output.found) == ([2, 1], True)
        assert all("Authorization" in headers for _, headers in server.asked)
        assert not any("Authorization" in headers for _, headers in other.asked)
    written = b"".join(path.read_bytes() for path in Path(store.root).rglob("*") if path.is_file())
    assert list(Path(store.root, SEEN).iterdir())
    assert corpora[0].source.encode() in written
    assert b"hidden" not in written + corpora[1].note.encode() + corpora[1].source.encode()
