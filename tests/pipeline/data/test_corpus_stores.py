"""Files and globs on object stores, in memory and on web servers; what has not changed there is not read again."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from pipeline.data import fingerprint, sources
from pipeline.data.corpus import fetch_corpus
from pipeline.settings import CorpusSettings
from pipeline.storage import Store
from tests.pipeline.data.corpora import fails, text_of, write_folder
from tests.pipeline.data.loopback import Server, serve, whole
from tests.pipeline.data.test_corpus_forms import json_lines, plain, zst

PARTS = [[(None, f"part {part} . document {number} .") for number in range(40)] for part in range(2)]
LINES = [text for part in PARTS for _, text in part]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on a real server on loopback."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    environment = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in (environment | {"ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    fs = fsspec.filesystem("s3")
    fs.clear_instance_cache()
    fs.mkdir("texts")
    yield "s3://texts"
    fs.clear_instance_cache()
    moto.stop()


def every_line(corpus) -> list[str]:
    return sorted(line for split in ("train", "valid") for line in text_of(corpus, split).decode().splitlines() if line)


@pytest.fixture(params=["s3", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("s3") if request.param == "s3" else f"memory://{tmp_path.name}"


def test_a_file_a_folder_and_a_glob_of_a_store(store, base):
    fs, path = fsspec.url_to_fs(base)
    for number, rows in enumerate(PARTS):
        fs.pipe_file(f"{path}/crawl/part-{number}.jsonl.zst", zst(json_lines(rows)))
    fs.pipe_file(f"{path}/crawl/README.md", b"not ours")
    folder = fetch_corpus(store, f"{base}/crawl")
    found = fetch_corpus(store, f"{base}/crawl/*.jsonl.zst")
    deep = fetch_corpus(store, f"{base}/**/part-*")
    one = fetch_corpus(store, f"{base}/crawl/part-1.jsonl.zst")
    assert (folder.name, found.name, one.name, one.source) == ("crawl", "crawl", "part-1", f"{base}/crawl/part-1.jsonl.zst")
    assert folder.output.key == found.output.key == deep.output.key != one.output.key
    assert (every_line(found), every_line(one)) == (sorted(LINES), sorted(LINES[40:]))
    assert fingerprint.take(f"{base}/crawl/*.jsonl.zst") is not None
    before = fetch_corpus(store, f"{base}/crawl/*.jsonl.zst")
    assert "not read again" in before.note
    fs.pipe_file(f"{path}/crawl/part-2.jsonl.zst", zst(json_lines([(None, "one more .")])))
    assert every_line(fetch_corpus(store, f"{base}/crawl/*.jsonl.zst")) == sorted([*LINES, "one more ."])
    fails(Store(f"{store.root}-2"), f"{base}/none/*.jsonl", r"none/\*.jsonl: nothing there; wanted a file")


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as server:
        yield server


def test_one_file_over_http(store, server):
    rows = PARTS[0]
    server.answers["/a/My%20Crawl.jsonl.gz"] = whole(gzip.compress(json_lines(rows)))
    server.answers["/b/book.txt"] = whole(plain(rows))
    server.answers["/b/cut.txt.gz"] = whole(gzip.compress(plain(rows))[:-20])
    crawl = fetch_corpus(store, server.url("/a/My Crawl.jsonl.gz?signature=secret"))
    book = fetch_corpus(store, server.url("/b/book.txt"))
    assert (crawl.name, book.name, crawl.source) == ("my-crawl", "book", server.url("/a/My Crawl.jsonl.gz"))
    assert crawl.output.key == book.output.key
    assert every_line(crawl) == sorted(LINES[:40])
    fails(Store(f"{store.root}-2"), server.url("/b/cut.txt.gz"), r"http://.*/b/cut.txt.gz: damaged")
    fails(Store(f"{store.root}-2"), server.url("/b/none.jsonl"), r"http://.*/b/none.jsonl: answered 404")
    fails(Store(f"{store.root}-2"), server.url("/b/book.txt"), "wanted at most 100", max_bytes=100)


def test_files_and_globs_that_have_not_changed_are_not_read_again(store, tmp_path, monkeypatch):
    opened, real = [], sources.open_source

    def counting(address, *arguments, **options):
        opened.append(address)
        return real(address, *arguments, **options)

    monkeypatch.setattr(sources, "open_source", counting)
    folder = write_folder(tmp_path / "mine", {f"part-{n}.jsonl.gz": gzip.compress(json_lines(rows)) for n, rows in enumerate(PARTS)})

    def reads(address: str, settings: CorpusSettings | None = None) -> int:
        for path in folder.iterdir():
            os.utime(path, (1_600_000_000, 1_600_000_000))
        before = len(opened)
        for _ in range(2):
            fetch_corpus(store, address, *[settings] * (settings is not None))
        return len(opened) - before

    for address in (f"{folder}/part-*.gz", f"{folder}/part-0.jsonl.gz"):
        assert reads(address) == 1
        assert reads(address, CorpusSettings(form="json_lines")) == 1, "other settings read anew"
        assert reads(address) <= 1
    (folder / "part-9.jsonl.gz").write_bytes(gzip.compress(json_lines(PARTS[0])))
    assert reads(f"{folder}/part-*.gz") == 1


def test_a_folder_whose_name_has_brackets_is_a_folder(store, tmp_path):
    folder = write_folder(tmp_path / "mine [v2]", {"a.jsonl": json_lines(PARTS[0])})
    assert fetch_corpus(store, str(folder)).name == "mine-v2"
    assert fetch_corpus(store, str(folder / "a.jsonl")).name == "a"
