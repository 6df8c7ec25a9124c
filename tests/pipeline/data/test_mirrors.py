"""WikiText-2 from the store, from mirrors in turn, or, where that is allowed, the sample instead."""

import io
import logging
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import wikitext
from pipeline.data.corpus import fetch_corpus
from pipeline.data.wikitext import MIRRORS_VARIABLE
from pipeline.errors import CorpusError, DownloadError
from pipeline.storage import Store, digest
from tests.pipeline.data.corpora import write_folder, write_zip
from tests.pipeline.data.loopback import Server, dead_url, refusing_python, serve, status, stopping, whole

TEXTS = {split: f" = {split} = \n \n the crane {split} . it flies . \n \n" * 500 for split in ("train", "valid", "test")}
TOKENS = {f"wiki.{split}.tokens": text for split, text in TEXTS.items()}


@pytest.fixture(autouse=True)
def _small_wikitext(monkeypatch):
    """The same code on texts of a few kilobytes; the last test takes the real ones."""
    digests = {split: digest(text.encode()) for split, text in TEXTS.items()}
    monkeypatch.setattr(wikitext, "WIKITEXT2", replace(wikitext.WIKITEXT2, digests=digests))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serve() as server:
        yield server


@pytest.fixture
def zipped(tmp_path) -> bytes:
    return write_zip(tmp_path / "served.zip", {f"wikitext-2/{name}": text for name, text in TOKENS.items()}).read_bytes()


def use(monkeypatch, *addresses: str) -> None:
    monkeypatch.setenv(MIRRORS_VARIABLE, " , ".join(addresses))


def serve_all(server: Server, base: str, files: dict[str, bytes]) -> None:
    server.answers |= {f"{base}/{name}": whole(data) for name, data in files.items()}


def test_each_public_form_of_mirror(server, zipped, monkeypatch, tmp_path):
    serve_all(server, "/texts", {f"{split}.txt": text.encode() for split, text in TEXTS.items()})
    server.answers["/wikitext-2-v1.zip"] = refusing_python(zipped)
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"text": [line.strip() for line in TEXTS[split].splitlines()]}), buffer)
        serve_all(server, "/wikitext-2-v1", {f"{name}-00000-of-00001.parquet": buffer.getvalue()})
    keys = set()
    for path in ("/texts", "/wikitext-2-v1.zip", "/wikitext-2-v1"):
        use(monkeypatch, server.url(path))
        corpus = fetch_corpus(Store(str(tmp_path / path.strip("/"))), None)
        assert (corpus.name, corpus.source) == ("wikitext-2", server.url(path))
        keys.add(corpus.output.key)
    assert len(keys) == 1


def broken_mirrors(server: Server, zipped: bytes, tmp_path: Path) -> dict[str, str]:
    """Mirrors that cannot serve, and what the error has to say of each."""
    server.answers["/403.zip"] = status(403)
    server.answers["/half.zip"] = stopping(zipped, times=99, ranges=False)
    other = write_zip(tmp_path / "other.zip", {f"wikitext-2/{name}": f"{text}x" for name, text in TOKENS.items()})
    server.answers["/other.zip"] = whole(other.read_bytes())
    less = write_zip(tmp_path / "less.zip", {"wiki.train.tokens": TEXTS["train"], "wiki.valid.tokens": TEXTS["valid"]})
    server.answers["/less.zip"] = whole(less.read_bytes())
    server.answers["/login.zip"] = whole(b"<html>please log in</html>")
    return {
        dead_url("/wikitext-2.zip"): "no answer",
        server.url("/403.zip"): "answered 403",
        server.url("/404"): "no train split there; it answered 404",
        server.url("/half.zip"): f"stopped after {len(zipped) // 2} of {len(zipped)} bytes",
        server.url("/other.zip"): f"sha256 {digest((TEXTS['train'] + 'x' + chr(10)).encode())}, wanted WikiText-2's",
        server.url("/less.zip"): "no test split beside",
        server.url("/login.zip"): "not a readable zip",
    }


def test_after_each_kind_of_broken_mirror_comes_the_next(server, zipped, monkeypatch, store, tmp_path):
    server.answers["/good.zip"] = stopping(zipped, times=1)
    use(monkeypatch, *broken_mirrors(server, zipped, tmp_path), server.url("/good.zip"))
    corpus = fetch_corpus(store, "wikitext-2")
    assert corpus.source == server.url("/good.zip")
    assert Path(corpus.output.file("train.tokens")).read_text() == TEXTS["train"]
    assert [path for path in Path(store.root).rglob("*") if path.is_file() and str(path.parent) != corpus.output.address] == []


def test_after_the_last_one_error_names_each_and_a_way_out(server, zipped, monkeypatch, store, tmp_path):
    broken = broken_mirrors(server, zipped, tmp_path)
    use(monkeypatch, *broken)
    for address in (None, "wikitext-2"):
        with pytest.raises(DownloadError) as caught:
            fetch_corpus(store, address, allow_sample=address is not None)
        lines = str(caught.value).splitlines()
        assert "none of 7 mirrors" in lines[0]
        for line, (mirror, answer) in zip(lines[1:-1], broken.items(), strict=True):
            assert mirror in line
            assert answer in line
        assert "CORPUS=path" in lines[-1]
        assert [path for path in Path(store.root).rglob("*") if path.is_file()] == []


def test_a_mirror_may_be_any_address_and_its_password_is_never_shown(server, monkeypatch, tmp_path, store):
    server.answers["/a.zip"] = status(403)
    secret = server.url("/a.zip?key=hidden").replace("//", "//me:hidden@")
    use(monkeypatch, secret)
    with pytest.raises(DownloadError, match=r"/a.zip: answered 403") as caught:
        fetch_corpus(store, None)
    assert "hidden" not in str(caught.value)
    use(monkeypatch, secret, str(write_folder(tmp_path / "team", TOKENS)))
    assert fetch_corpus(store, None).name == "wikitext-2"


def test_published_it_is_found_without_a_network(monkeypatch, tmp_path, store):
    mine = fetch_corpus(store, str(write_folder(tmp_path / "downloads", TOKENS)))
    assert mine.name == "wikitext-2"
    use(monkeypatch, dead_url("/wikitext-2.zip"))
    for address in (None, "", "wikitext-2"):
        corpus = fetch_corpus(store, address)
        assert (corpus.name, corpus.output.key, corpus.source) == ("wikitext-2", mine.output.key, str(tmp_path / "downloads"))


def test_damaged_it_is_fetched_again(server, zipped, monkeypatch, tmp_path, store, caplog):
    mine = fetch_corpus(store, str(write_folder(tmp_path / "downloads", TOKENS)))
    Path(mine.output.file("train.tokens")).write_text("cut")
    server.answers["/good.zip"] = whole(zipped)
    use(monkeypatch, server.url("/good.zip"))
    assert fetch_corpus(store, None).output.key == mine.output.key
    assert Path(mine.output.file("train.tokens")).read_text() == TEXTS["train"]
    assert "damaged" in caplog.text


def test_the_sample_stands_in_only_where_that_is_allowed(monkeypatch, store, caplog):
    mirror = dead_url("/wikitext-2.zip")
    use(monkeypatch, mirror)
    with caplog.at_level(logging.WARNING):
        corpus = fetch_corpus(store, None, allow_sample=True)
    assert corpus.name == "sample"
    assert "WikiText-2 could not be fetched" in corpus.note
    assert "\n" not in corpus.note
    assert mirror in caplog.text
    assert "no answer" in caplog.text
    assert "built-in sample" in caplog.text
    with pytest.raises(CorpusError):
        fetch_corpus(store, None)
    with pytest.raises(CorpusError):
        fetch_corpus(store, "wikitext-2", allow_sample=True)


def test_no_network_is_known_in_well_under_a_minute(monkeypatch, store):
    """The public addresses, through a proxy that is dead, as they are without a network."""
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("https_proxy", dead_url("/"))
    began = time.monotonic()
    with pytest.raises(DownloadError, match="none of 3 mirrors"):
        fetch_corpus(store, None)
    assert time.monotonic() - began < 15


def test_the_real_one_in_every_form_is_one_corpus(monkeypatch, tmp_path, wikitext2):
    monkeypatch.undo()
    store = Store(str(tmp_path / "store"))
    began = time.monotonic()
    found = fetch_corpus(store, wikitext2)
    assert time.monotonic() - began < 5
    splits = {split: Path(found.output.file(f"{split}.tokens")) for split in TEXTS}
    assert {split: path.stat().st_size for split, path in splits.items()} == {"train": 10_797_148, "valid": 1_121_681, "test": 1_256_449}
    assert [found.output.facts[split]["lines"] for split in ("train", "valid", "test")] == [36_718, 3_760, 4_358]
    assert {split: found.output.facts[split]["sha256"] for split in TEXTS} == dict(wikitext.WIKITEXT2.digests)
    (tmp_path / "mine").mkdir()
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        rows = [line.strip() for line in splits[split].read_text("utf-8").split("\n")[:-1]]
        pq.write_table(pa.table({"text": rows}), tmp_path / "mine" / f"{name}-00000-of-00001.parquet")
    texts = write_folder(tmp_path / "texts", {f"{split}.txt": path.read_bytes() for split, path in splits.items()})
    for address in (tmp_path / "mine", texts):
        corpus = fetch_corpus(Store(str(tmp_path / f"store-{address.name}")), str(address))
        assert (corpus.name, corpus.output.key) == ("wikitext-2", found.output.key)
    use(monkeypatch, dead_url("/wikitext-2.zip"))
    assert fetch_corpus(store, None).output.key == found.output.key
