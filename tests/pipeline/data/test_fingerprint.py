"""A corpus whose files have not changed is not read again; in doubt it is."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.data import canonical, corpus, fingerprint, seen, sources, wikitext
from pipeline.data.corpus import fetch_corpus
from pipeline.storage import MANIFEST, Store, digest
from tests.pipeline.data.corpora import TEST, TRAIN, VALID, text_of, write_folder, write_parquet, write_zip
from tests.pipeline.data.loopback import dead_url

TEXTS = {"train.txt": TRAIN, "valid.txt": VALID}
OTHER = TRAIN.replace("crane", "heron")  # of the same size
OLD = 1_600_000_000.0


@pytest.fixture(autouse=True)
def reads(monkeypatch) -> list[str]:
    """The addresses whose content was opened."""
    opened, real = [], sources.open_source

    def counting(address, *arguments, **options):
        opened.append(address)
        return real(address, *arguments, **options)

    monkeypatch.setattr(sources, "open_source", counting)
    return opened


def aged(path: Path) -> Path:
    """A file, or a folder's files, last written long ago."""
    for file in [path, *path.iterdir()] if path.is_dir() else [path]:
        os.utime(file, (OLD, OLD))
    return path


def records(store: Store) -> list[Path]:
    return sorted(Path(store.root, seen.SEEN).glob("*"))


def parquet(folder: Path) -> Path:
    folder.mkdir()
    for part, text in (("train-00000-of-00002", TRAIN), ("train-00001-of-00002", TEST), ("validation-00000-of-00001", VALID)):
        write_parquet(folder / f"{part}.parquet", text.splitlines())
    return folder


def in_memory(name: str, data: dict[str, bytes]) -> str:
    for path, value in data.items():
        fsspec.filesystem("memory").pipe_file(f"/{name}{path}", value)
    return f"memory://{name}"


FORMS: dict[str, Callable[[Path], str]] = {
    "folder": lambda path: str(aged(write_folder(path / "mine", TEXTS))),
    "zip": lambda path: str(aged(write_zip(path / "mine.zip", {f"in/{name}": text for name, text in TEXTS.items()}))),
    "Parquet": lambda path: str(aged(parquet(path / "mine"))),
    "file://": lambda path: f"file://{aged(write_folder(path / 'mine', TEXTS))}/",
    "fsspec folder": lambda path: in_memory(f"{path.name}/mine", {f"/{name}": text.encode() for name, text in TEXTS.items()}),
    "fsspec zip": lambda path: in_memory(f"{path.name}/mine.zip", {"": write_zip(path / "m.zip", dict(TEXTS)).read_bytes()}),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_unchanged_it_is_read_once(store, tmp_path, reads, form):
    address = form(tmp_path)
    first, second = fetch_corpus(store, address), fetch_corpus(store, address)
    assert reads == [address]
    assert (first.output.found, second.output.found) == (False, True)
    assert (second.name, second.source, second.output.key) == ("mine", first.source, first.output.key)
    assert second.note.startswith(f"{first.note} (not read again: unchanged since 20")
    assert fetch_corpus(store, address).note == second.note


def test_relative_and_absolute_are_one_address(store, tmp_path, reads, monkeypatch):
    folder = aged(write_folder(tmp_path / "mine", TEXTS))
    monkeypatch.chdir(folder)
    names = {fetch_corpus(store, address).name for address in (".", "../mine", str(folder), f"{folder}/", "./")}
    assert (names, len(reads)) == ({"mine"}, 2)  # `..` is not resolved: it may follow a link


def test_a_file_beside_changes_nothing_and_a_new_split_does(store, tmp_path, reads):
    folder = aged(write_folder(tmp_path / "mine", TEXTS))
    key = fetch_corpus(store, str(folder)).output.key
    (folder / "README").write_text("not ours")
    assert fetch_corpus(store, str(folder)).output.key == key
    assert len(reads) == 1
    (folder / "test.txt").write_text(TEST)
    assert fetch_corpus(store, str(folder)).output.key != key
    (folder / "test.txt").unlink()
    assert fetch_corpus(store, str(folder)).output.key == key


def in_place(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def by_another(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text, "utf-8")
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("write", [in_place, by_another])
def test_other_text_of_the_same_size_and_date_is_read(store, tmp_path, write):
    folder = aged(write_folder(tmp_path / "mine", TEXTS))
    for text in (TRAIN, OTHER, TRAIN, OTHER):
        before = (folder / "train.txt").stat()
        write(folder / "train.txt", text)
        os.utime(folder / "train.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (folder / "train.txt").stat().st_size == before.st_size
        assert text_of(fetch_corpus(store, str(folder)), "train").decode() == text
    assert records(store)


def test_the_same_text_touched_or_elsewhere_is_the_same_corpus(store, tmp_path, reads):
    folder = aged(write_folder(tmp_path / "mine", TEXTS))
    first = fetch_corpus(store, str(folder))
    os.utime(folder / "train.txt", (OLD + 1, OLD + 1))
    touched = fetch_corpus(store, str(folder))
    moved = fetch_corpus(store, str(shutil.copytree(folder, tmp_path / "yours")))
    assert len(reads) == 3
    assert {corpus.output.key for corpus in (first, touched, moved)} == {first.output.key}
    assert (touched.output.found, moved.output.found, moved.name) == (True, True, "yours")
    assert "not read again" not in touched.note + moved.note


def test_what_was_written_just_now_may_change_again(store, tmp_path, reads):
    folder = write_folder(tmp_path / "mine", TEXTS)
    fetch_corpus(store, str(folder))
    assert records(store) == []
    time.sleep(fingerprint.SETTLED_SECONDS)
    for _ in range(2):
        fetch_corpus(store, str(folder))
    assert len(reads) == 2


def test_a_change_while_it_is_read_is_seen_the_next_time(store, tmp_path, monkeypatch):
    folder, real = aged(write_folder(tmp_path / "mine", TEXTS)), canonical.canonicalise

    def slow(*arguments):
        found = real(*arguments)
        in_place(folder / "train.txt", OTHER)
        aged(folder)
        return found

    monkeypatch.setattr(canonical, "canonicalise", slow)
    assert text_of(fetch_corpus(store, str(folder)), "train").decode() == TRAIN
    monkeypatch.setattr(canonical, "canonicalise", real)
    assert text_of(fetch_corpus(store, str(folder)), "train").decode() == OTHER


@pytest.mark.parametrize("damage", ["deleted", "cut", "no manifest"])
def test_an_output_that_is_not_whole_is_made_again(store, tmp_path, caplog, damage):
    address = FORMS["folder"](tmp_path)
    first = fetch_corpus(store, address)
    if damage == "deleted":
        store.delete(first.output.address)
    elif damage == "cut":
        Path(first.output.file("train.tokens")).write_text("cut")
    else:
        Path(first.output.file(MANIFEST)).unlink()
    again = fetch_corpus(store, address)
    assert (again.output.key, again.output.found, text_of(again, "train").decode()) == (first.output.key, False, TRAIN)
    assert ("damaged" in caplog.text) == (damage == "cut")
    assert fetch_corpus(store, address).output.found


def altered(record: dict[str, str], **values: object) -> bytes:
    return json.dumps({**record, **values}).encode()


STRANGE: dict[str, Callable[[dict[str, str]], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda record: altered(record)[:40],
    "not text": lambda _: b"\xff\xfe",
    "a list": lambda _: b"[1]",
    "a number": lambda _: b"7",
    "without a key": lambda record: json.dumps({name: value for name, value in record.items() if name != "key"}).encode(),
    "another key": lambda record: altered(record, key="0" * 20),
    "a path for a key": lambda record: altered(record, key=f"../corpus/{record['key']}"),
    "of another source": lambda record: altered(record, source="/elsewhere"),
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_a_record_that_is_damaged_or_foreign_is_ignored_and_mended(store, tmp_path, reads, caplog, strange):
    address = FORMS["folder"](tmp_path)
    key = fetch_corpus(store, address).output.key
    (record,) = records(store)
    record.write_bytes(strange(json.loads(record.read_text())))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert fetch_corpus(store, address).output.key == key
    assert (len(reads), caplog.text) == (2, "")


def test_a_place_for_records_that_cannot_be_written_costs_only_reading(store, tmp_path, reads):
    address = FORMS["folder"](tmp_path)
    Path(store.root).mkdir()
    Path(store.root, seen.SEEN).write_text("in the way")
    for _ in range(2):
        fetch_corpus(store, address)
    assert len(reads) == 2


def test_another_format_is_made_anew(store, tmp_path, monkeypatch):
    address = FORMS["folder"](tmp_path)
    first = fetch_corpus(store, address)
    monkeypatch.setattr(corpus, "FORMAT", corpus.FORMAT + 1)
    assert fetch_corpus(store, address).output.key != first.output.key


def test_wikitext_that_is_found_says_so(store, tmp_path, monkeypatch):
    texts = TEXTS | {"test.txt": TEST}
    digests = {name.removesuffix(".txt"): digest(text.encode()) for name, text in texts.items()}
    monkeypatch.setattr(wikitext, "WIKITEXT2", replace(wikitext.WIKITEXT2, digests=digests))
    own = fetch_corpus(store, str(write_folder(tmp_path / "downloads", texts)))
    found = fetch_corpus(store, None)
    assert (own.output.found, found.output.found, found.output.key) == (False, True, own.output.key)


class TaggedFileSystem(MemoryFileSystem):
    """Lists as object stores do: with a date, a tag where there is one, and from a cache."""

    protocol = "tagged"
    told: Mapping[str, object] = {}
    listings: ClassVar[dict[str, list]] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("tagged:/"))

    def ls(self, path, detail=True, **options):
        if path not in self.listings:
            self.listings[path] = [{**info, **self.told} for info in super().ls(path, detail=True, **options)]
        return self.listings[path] if detail else [info["name"] for info in self.listings[path]]

    def invalidate_cache(self, path=None):
        self.listings.clear()


def test_what_an_object_store_lists(store, reads, monkeypatch):
    fsspec.register_implementation("tagged", TaggedFileSystem, clobber=True)
    fs = fsspec.filesystem("tagged")
    for name, text in TEXTS.items():
        fs.pipe_file(f"/mine/{name}", text.encode())

    def reads_of_two(**told):
        monkeypatch.setattr(TaggedFileSystem, "told", told)
        before = len(reads)
        for _ in range(2):
            fetch_corpus(store, "tagged://mine")
        return len(reads) - before

    now = float(int(time.time())) + 60  # so that it stays new
    assert reads_of_two(LastModified=now) == 2, "it may change again within this second"
    assert reads_of_two(LastModified=now, ETag='"1"') == 1
    assert reads_of_two(LastModified=now, ETag='"2"') == 1
    assert reads_of_two(LastModified=now, ETag='"2"', last_accessed=time.time()) == 0
    assert reads_of_two(LastModified=now - 120) == 1
    monkeypatch.setattr(TaggedFileSystem, "modified", AbstractFileSystem.modified)
    assert reads_of_two() == 2, "it says nothing"


def test_no_fingerprint_where_nothing_is_known(tmp_path):
    (tmp_path / "none").mkdir()
    zipped = aged(write_zip(tmp_path / "mine.zip", dict(TEXTS)))
    both = aged(write_folder(tmp_path / "both", TEXTS | {"wiki.train.tokens": TRAIN}))
    nothing = [str(tmp_path / "nowhere"), str(tmp_path / "none"), str(both), "nosuchscheme://x", dead_url("/x.zip"), "http://[::1/f"]
    for address in [*nothing, f"zip://::{zipped}"]:
        assert fingerprint.take(address) is None, address
