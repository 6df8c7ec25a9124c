"""A store on S3: a real server on loopback, and before it a proxy that is busy, hangs up or loses answers on demand."""

import contextlib
import errno
import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from pipeline import files, lease, retries
from pipeline.clean import survey
from pipeline.data.build import build_shards
from pipeline.data.documents import DocumentReader
from pipeline.data.tokenizer import Vocabulary
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import PipelineError, StoreUnavailableError
from pipeline.settings import Preset
from pipeline.shards import SHARD, read_shards, shard_buckets
from pipeline.storage import MANIFEST, Output, Store, digest, open_output, verify_digests
from pipeline.training.parts import read_parts
from pipeline.training.run import plan_run
from tests.conftest import build
from tests.pipeline.store_calls import RECIPE, contend, use, write
from tests.pipeline.training.runs import ALONE

BUSY = b"<Error><Code>ServiceUnavailable</Code><Message>back soon</Message></Error>"


@dataclass
class Trouble:
    """What goes wrong with the next requests of a method to paths that hold a text."""

    kind: str  # busy | hang up | lose (do it, then hang up) | cut (half of the body)
    left: float
    method: str
    path: str
    status: int


class Handler(BaseHTTPRequestHandler):
    server: "Proxy"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the client to acknowledge the head

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline:
            self.close_connection = True
        elif self.parse_request():
            self.answer()
            self.wfile.flush()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path))
        trouble = self.server.meet(self.command, self.path)
        if trouble and trouble.kind == "busy":
            self._reply(trouble.status, {}, BUSY if trouble.status == 503 else b"")
        elif trouble and trouble.kind == "hang up":
            self.close_connection = True
        else:
            self._forward(body, trouble)

    def _forward(self, body: bytes, trouble: Trouble | None) -> None:
        with self.server.one_at_a_time if "If-None-Match" in self.headers else contextlib.nullcontext():  # S3 creates at one stroke
            inner = http.client.HTTPConnection(*self.server.behind)
            inner.request(self.command, self.path, body, dict(self.headers))
            response = inner.getresponse()
            data = response.read()
            inner.close()
        if trouble and trouble.kind == "lose":
            self.close_connection = True
            return
        kept = {name: value for name, value in response.getheaders() if name.lower() not in ("connection", "transfer-encoding")}
        self._reply(response.status, kept, data, cut=trouble is not None)

    def _reply(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def log_message(self, *_: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = behind
        self.troubles: list[Trouble] = []
        self.requests: list[tuple[str, str]] = []
        self.one_at_a_time = threading.Lock()

    def trouble(self, kind: str, times: float = float("inf"), *, method: str = "", path: str = "", status: int = 503) -> None:
        self.troubles.append(Trouble(kind, times, method, path, status))

    def meet(self, method: str, path: str) -> Trouble | None:
        for trouble in self.troubles:
            if trouble.left > 0 and trouble.method in ("", method) and trouble.path in path:
                trouble.left -= 1
                return trouble
        return None

    def heal(self) -> None:
        self.troubles.clear()
        self.requests.clear()

    def handle_error(self, *_: object) -> None:
        pass  # clients that give up are part of the tests


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    proxy = Proxy(moto.get_host_and_port())
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    moto.stop()


@pytest.fixture
def s3(server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy without trouble, a bucket behind it, clients that try once, and short pauses."""
    server.heal()
    environment = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    environment["ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
    for name, value in environment.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0.02)
    fs = fsspec.filesystem("s3")
    fs.clear_instance_cache()
    with contextlib.suppress(FileExistsError):
        fs.mkdir("bert")
    yield server
    fs.clear_instance_cache()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 2.0)


@pytest.fixture
def store(s3: Proxy) -> Store:
    return Store(f"s3://bert/{uuid4().hex}")


def test_every_call_works_on_a_store_in_good_health(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, retries.logger.name):
        use(store)
    assert not [record for record in caplog.records if record.name == retries.logger.name]


@pytest.mark.parametrize("status", [503, 409])
def test_whatever_is_asked_of_a_busy_store_is_asked_again(
    s3: Proxy, store: Store, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each first request for a path is refused."""
    seen: set[tuple[str, str]] = set()

    def meet(method: str, path: str) -> Trouble | None:
        if (method, path) in seen:
            return None
        seen.add((method, path))
        return Trouble("busy", 1, method, path, status)

    monkeypatch.setattr(s3, "meet", meet)
    with caplog.at_level(logging.INFO, retries.logger.name):
        use(store)
    assert f"store {store.root} answered {status} " in caplog.text and "; trying again in 0.02 s" in caplog.text


def test_the_client_heals_a_short_outage_by_itself(
    s3: Proxy, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AWS_MAX_ATTEMPTS")
    s3.trouble("busy", 1)
    with caplog.at_level(logging.INFO, retries.logger.name):
        store.overwrite(f"{store.root}/note", b"1")
    assert s3.requests.count(("PUT", f"/{store.root.removeprefix('s3://')}/note")) == 2 and "trying again" not in caplog.text


def test_an_outage_that_lasts_is_one_clear_error(impatient: None, s3: Proxy, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    s3.trouble("busy")
    began = time.monotonic()
    with caplog.at_level(logging.INFO, retries.logger.name), pytest.raises(StoreUnavailableError) as raised:
        store.make(RECIPE, write)
    assert 0.2 < time.monotonic() - began < 10
    said = str(raised.value)
    assert said.startswith(f"{store.root}: the store answered 503 Service Unavailable, and no better for ")
    assert "run the same command again" in said
    waits = [float(record.getMessage().split()[-2]) for record in caplog.records if record.name == retries.logger.name]
    assert len(waits) > 2 and waits == sorted(waits) and waits[-1] > waits[0] and sum(waits) <= retries.PATIENCE_SECONDS
    s3.requests.clear()
    with pytest.raises(StoreUnavailableError):
        store.read(f"{store.root}/note")
    assert len(s3.requests) == 1, "a store that was given up is not waited for all over again"
    s3.heal()
    assert store.make(RECIPE, write).facts == {"rows": 2}


def test_nobody_listening_is_an_outage(
    impatient: None, s3: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.server_address[1]}")
    with caplog.at_level(logging.INFO, retries.logger.name), pytest.raises(StoreUnavailableError, match="Could not connect"):
        Store("s3://bert/nobody").read("s3://bert/nobody/note")
    assert "trying again" in caplog.text


def test_a_connection_that_breaks_is_made_anew(
    s3: Proxy, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More often than the client itself tries."""
    s3.trouble("hang up", 11)
    with caplog.at_level(logging.INFO, retries.logger.name):
        store.overwrite(f"{store.root}/note", b"1")
    assert "trying again" in caplog.text and store.read(f"{store.root}/note") == b"1"


def test_what_cannot_heal_is_not_tried_again(s3: Proxy, store: Store) -> None:
    store.read(f"{store.root}/note")
    s3.requests.clear()
    s3.trouble("busy", status=403)
    with pytest.raises(PipelineError, match=rf"{store.root}: the store refuses \(403 Forbidden\); check the credentials"):
        store.read(f"{store.root}/note")
    assert len(s3.requests) == 1
    s3.heal()
    assert store.read(f"{store.root}/note") is None and s3.requests.count(("HEAD", s3.requests[0][1])) == 1
    with pytest.raises(PipelineError, match=r"s3://nowhere/bert: .*bucket does not exist; create it"):
        Store("s3://nowhere/bert").make(RECIPE, write)


def test_missing_credentials_are_a_clear_error(s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(PipelineError, match=r"the store refuses .*credentials"):
        Store("s3://bert/x").find("a", "b")


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (ConnectionRefusedError(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.EBUSY, "Service Unavailable"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EINVAL, "The specified bucket is not valid."), False),
        (OSError(errno.EIO, "An error occurred (502)"), False),
        (FileNotFoundError(), False),
        (FileExistsError(), False),
        (PermissionError(), False),
        (TypeError("a bug"), False),
    ],
)
def test_only_what_can_heal_is_tried_again(error: Exception, heals: bool) -> None:
    assert retries.can_heal(error) is heals


@pytest.mark.parametrize("then", [None, 1])
def test_a_file_whose_creation_got_no_answer_is_ours(s3: Proxy, store: Store, then: int | None) -> None:
    """The client asks again, unseen, and is told that the file exists; or a 503 comes between, and the store asks again."""
    store.children(store.root)
    s3.trouble("lose", 1, method="PUT")
    if then:
        s3.trouble("busy", then, method="PUT")
    assert store.create(f"{store.root}/leases/a.1", b"my token")
    assert not store.create(f"{store.root}/leases/a.1", b"another's")
    assert len([method for method, _ in s3.requests if method == "PUT"]) == 3 + bool(then)


def test_a_lease_whose_answer_got_lost_is_held_without_waiting(s3: Proxy, store: Store) -> None:
    s3.trouble("lose", 1, method="PUT", path="/leases/")
    began = time.monotonic()
    with store.lease("run", "abc") as held:
        held.check()
    assert time.monotonic() - began < lease.STALE_SECONDS / 3


def test_never_two_at_once(s3: Proxy, store: Store, tmp_path: Path) -> None:
    s3.trouble("busy", 5, method="PUT")
    contend(store, tmp_path / "log")


@pytest.mark.parametrize("away", ["sub/b.bin", ""])
def test_a_publication_that_is_cut_leaves_no_manifest_and_is_healed_by_the_next(
    impatient: None, s3: Proxy, store: Store, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is never taken, or nothing is any more, the lease's removal included, once the first file is there."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    meet = s3.meet
    monkeypatch.setattr(s3, "meet", lambda *request: meet(*request) if ("PUT", path("a.txt")) in s3.requests[:-1] else None)

    def path(name: str) -> str:
        return f"/{store.address('things', RECIPE.key).removeprefix('s3://')}/{name}"

    s3.trouble("busy", path=away)
    with pytest.raises(StoreUnavailableError, match=rf"{store.root}: the store answered 503"):
        store.make(RECIPE, write)
    monkeypatch.setattr(s3, "meet", meet)
    s3.heal()
    address = store.address("things", RECIPE.key)
    assert store.children(address) == ["a.txt"] and store.find("things", RECIPE.key) is None
    with pytest.raises(PipelineError, match=f"no {MANIFEST} here"):
        open_output(address)
    made = store.make(RECIPE, write)
    assert not made.found
    verify_digests(made)


@pytest.mark.parametrize("times", [1, 6])
def test_a_file_that_comes_by_half_is_fetched_again(s3: Proxy, store: Store, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.make(RECIPE, write)
    s3.trouble("cut", times, method="GET", path="b.bin")
    with store.local(made) as folder:
        assert (folder / "sub" / "b.bin").read_bytes() == bytes(1000)
    verify_digests(made)


def test_a_block_that_comes_by_half_is_asked_for_again_from_its_offset(
    s3: Proxy, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than the client tries; what came before is not fetched again."""
    monkeypatch.setattr(files, "_BLOCK", 1000)
    text = "".join(f"{number} .\n" for number in range(1000)).encode()
    store.overwrite(f"{store.root}/train.tokens", text)
    s3.requests.clear()
    s3.trouble("cut", 8, method="GET", path="train.tokens")
    address = f"{store.root}/train.tokens"
    with files.open_file(address) as file:
        head = file.read(1500)
        fetched = len(s3.requests)
        assert fetched > 8 and head + file.read() == text
        assert file.seek(-3, 2) and file.read() == text[-3:]
    assert b"".join(DocumentReader(address, "paragraph").blocks()) == text
    assert files.read_file(address) == text and files.file_digest(address) == digest(text)


def test_published_outputs_are_read_with_patience(
    s3: Proxy, store: Store, small_preset: Preset, publish: Callable[..., Output], text: Callable[[int, int], str], tmp_path: Path
) -> None:
    """Every reader, each of whose files is refused more often than the client itself tries."""
    corpus = publish(store, text(40, 1), text(10, 2))
    built = build(store, corpus, small_preset)
    for name in ("train.tokens", "tokenizer.json", "examples.parquet"):
        s3.trouble("busy", 2, method="GET", path=name)
    assert b"".join(DocumentReader.of(corpus, "train", small_preset.text).blocks()).decode() == text(40, 1)
    assert len(Vocabulary.open(built.vocabulary)) == built.vocabulary.facts["size"]
    buckets = shard_buckets(store, built.train)
    assert len(read_shards(buckets)) == built.train.facts["counts"]["rows"]
    assert not [trouble for trouble in s3.troubles if trouble.left], "each was met"


def test_a_store_that_is_away_is_not_taken_for_damage(impatient: None, s3: Proxy, store: Store) -> None:
    """Else a vocabulary that is there would be made again."""
    vocabulary = Output(f"{store.root}/vocabulary/abc", {})
    s3.trouble("busy", path="tokenizer.json")
    with pytest.raises(StoreUnavailableError):
        Vocabulary.open(vocabulary)


def test_training_reads_each_shard_once_from_s3_and_then_from_this_machine(
    s3: Proxy, store: Store, tmp_path: Path, small_preset: Preset, publish: Callable[..., Output], text: Callable[[int, int], str]
) -> None:
    """Windows of two to three buckets over three epochs; a shard that comes by half is asked for again, a damaged copy fetched anew."""
    preset = small_preset.override(shards={"buckets": 6}, training={"shuffle_buffer_rows": 40, "steps": 1000})
    corpus = publish(store, text(40, 1), text(10, 2))
    vocabulary = build_vocabulary(store, corpus, preset)
    train, valid = (build_shards(store, corpus, vocabulary, split, preset) for split in ("train", "valid"))
    run = plan_run(store, preset, train, valid, tmp_path / "work")
    s3.requests.clear()
    s3.trouble("cut", 1, method="GET", path=SHARD)
    (part,) = read_parts(run, ALONE)

    def fetched() -> int:
        return sum(method == "GET" and path.endswith(SHARD) for method, path in s3.requests)

    assert fetched() == len(run.train) + len(run.valid) + 1
    steps = [step for step in range(200) if part.windows.order.window(step).epoch < 3]
    assert sum(len(part.rows(step).rows) for step in steps) == 3 * len(part.train)
    assert fetched() == len(run.train) + len(run.valid) + 1
    kept = [path for path in (tmp_path / "work" / "cache").iterdir() if len(path.name) == 64]
    assert len(kept) == len(run.train) + len(run.valid)
    for path in kept:
        path.write_bytes(b"damaged")
    assert sum(len(part.rows(step).rows) for step in steps) == 3 * len(part.train)
    assert fetched() == 2 * len(run.train) + len(run.valid) + 1
    assert survey(Store(str(tmp_path)), Store(str(tmp_path))) == [], "a cache is no output to tidy away"
    (without,) = read_parts(replace(run, work=str(tmp_path / "other" / "x"), training=replace(run.training, cache_gigabytes=0.0)), ALONE)
    assert fetched() == 3 * len(run.train) + 2 * len(run.valid) + 1 and without.unigram_loss == part.unigram_loss
    assert not (tmp_path / "other").exists()


def test_shards_on_s3_are_those_of_a_local_store(
    store: Store, tmp_path: Path, small_preset: Preset, publish: Callable[..., Output], text: Callable[[int, int], str]
) -> None:
    made: list[Any] = []
    for place in (store, Store(str(tmp_path / "local"))):
        corpus = publish(place, text(40, 1), text(10, 2))
        vocabulary = build_vocabulary(place, corpus, small_preset)
        shards = build_shards(place, corpus, vocabulary, "train", small_preset)
        verify_digests(shards)
        made.append((shards.key, shards.facts["contents"], shards.facts["counts"]))
    assert made[0] == made[1]
