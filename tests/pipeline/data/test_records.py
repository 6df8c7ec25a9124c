"""What is wrong with a row is named with its file and line, and odd text comes through whole."""

import gzip
import json
import lzma
import resource
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import records
from pipeline.data.corpus import fetch_corpus
from pipeline.data.counts import Counts
from pipeline.data.forms import Budget, File
from pipeline.errors import PipelineError
from pipeline.settings import CorpusSettings
from tests.pipeline.data.corpora import fails, text_of, write_folder, write_parquet, write_zip
from tests.pipeline.data.test_corpus_forms import zst

GOOD = b'{"text": "a ."}\n'


WRONG = {
    "not JSON": (GOOD + b'{"text": "a', r"line 2: not JSON \(.*\); wanted an object such as {\"text\": \"…\"} on each line"),
    "plain text": (b"hello\n", "line 1: not JSON"),
    "an array": (b'[{"text": "a"}]', "line 1: a JSON list; wanted an object"),
    "an array over lines": (b'[\n{"text": "a"}\n]', "line 1: not JSON"),
    "no such column": (
        GOOD * 2 + b"\n" + b'{"title": "t", "body": "a"}',
        "line 4: its columns are title, body; wanted a column `text`, or its name in corpus.text_column",
    ),
    "no columns": (b"{}", "line 1: its columns are none"),
    "a number": (b'{"text": 7}', "line 1: `text` is a JSON int, wanted a string or null"),
    "nested too deep": (b'{"text": ' + b"[" * 100_000, "line 1: not JSON"),
    "half a character in a name": (b'{"a\\ud83d": "a"}', r"line 1: its columns are a\\ud83d; wanted a column `text`"),
    "half a character": (b'{"text": "a \\ud83d"}', r"line 1: `text` has half of a character \(\\ud83d\)"),
    "not UTF-8": (GOOD + b'{"text": "\xfc"}', r"line 2: byte 26 \(0xfc\) is not UTF-8"),
    "after a mark": (b"\xef\xbb\xbf" + b'{"text": "\xfc"}', r"line 1: byte 13 \(0xfc\) is not UTF-8"),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), r"line 1: byte 0 \(0xff\) is not UTF-8"),
    "nothing": (b"", r"no text \(1 files, all blank\)"),
    "blank": (b'{"text": null}\n\n{"text": " \\n"}', r"no text \(2 rows, 2 of them empty\)"),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_line_is_named(store, tmp_path, data, message):
    fails(store, write_folder(tmp_path / "mine", {"train.jsonl": data}), f"mine/train.jsonl: {message}")


def test_a_line_without_end_is_refused(store, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_ROW", 3 << 20)
    fails(store, write_folder(tmp_path / "mine", {"a.json": b'{"text": "' + b"a" * (5 << 20)}), "a.json: a line of more than 3145728 bytes")


def test_a_title_has_to_be_there_and_text(store, tmp_path):
    settings = CorpusSettings(title_column="name")
    folder = write_folder(tmp_path / "mine", {"train.jsonl": b'{"text": "a", "title": "b"}'})
    wanted = "line 1: its columns are text, title; wanted a column `name`, or its name in corpus.title_column"
    fails(store, folder, wanted, settings=settings)
    write_parquet(folder / "test.parquet", ["a"])
    fails(store, folder / "test.parquet", "its columns are text; wanted a column `name` of strings", settings=settings)


DAMAGED = {
    "gz, cut": ("gz", gzip.compress(GOOD * 9000)[:-20]),
    "gz, flipped": ("gz", gzip.compress(GOOD * 9000)[:-8] + bytes(8)),
    "gz, other": ("gz", b"no gzip at all"),
    "xz, cut": ("xz", lzma.compress(GOOD * 9000)[:-20]),
    "xz, other": ("xz", b"no xz at all"),
    "xz, second stream": ("xz", lzma.compress(GOOD * 10) + b"\0" * 4 + lzma.compress(GOOD)[:14] + bytes(99)),
    "xz, rest": ("xz", lzma.compress(GOOD * 10) + b"something else"),
    "zst, cut": ("zst", zst(GOOD * 9000)[:-5]),
    "zst, other": ("zst", b"no zstd at all"),
}


@pytest.mark.parametrize(("ending", "data"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("form", ["jsonl", "txt", "parquet"])
def test_what_is_damaged_is_named(store, tmp_path, ending, data, form):
    name = f"train.{form}.{ending}"
    fails(store, write_folder(tmp_path / "mine", {name: data}), rf"mine/{name}: damaged, or packed in a way that cannot be unpacked \(.+\)")
    fails(store, write_zip(tmp_path / "mine.zip", {f"in/{name}": data}), rf"mine.zip: in/{name}: damaged")


def test_packed_in_several_pieces(store, tmp_path):
    """As parallel packers write them."""
    pieces = [b'{"text": "one ."}\n', b'{"text": "two ."}\n']
    for ending, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("zst", zst)):
        files = {f"train.jsonl.{ending}": b"".join(map(pack, pieces)), f"valid.jsonl.{ending}": pack(GOOD)}
        assert text_of(fetch_corpus(store, str(write_folder(tmp_path / ending, files))), "train") == b"one .\n\ntwo .\n"


@pytest.mark.parametrize("form", ["jsonl", "txt"])
def test_a_small_file_does_not_unpack_to_a_large_one(store, tmp_path, form):
    for ending, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("zst", zst)):
        folder = write_folder(tmp_path / ending, {f"train.{form}.{ending}": pack(GOOD * 100_000)})
        fails(store, folder, rf"train.{form}.{ending}: unpacks to more than 1000000 bytes", max_bytes=1_000_000)


def test_a_full_disk_is_not_taken_for_a_damaged_file(store, tmp_path):
    write_parquet(tmp_path / "rows.parquet", [f"{number} a b c" for number in range(30_000)])
    packed = tmp_path / "rows.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows.parquet").read_bytes()))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        with pytest.raises(PipelineError, match="File too large; free some space"):
            fetch_corpus(store, str(packed))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_parquet_that_is_not_utf8_names_file_and_column(store, tmp_path):
    write_parquet(tmp_path / "mine.parquet", ["good", "n\u00f8t"])
    data = (tmp_path / "mine.parquet").read_bytes()
    (tmp_path / "mine.parquet").write_bytes(data.replace("\u00f8".encode(), b"\xff\xff"))
    fails(store, tmp_path / "mine.parquet", "mine.parquet: column `text` holds what is not UTF-8")


TEXT = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.text("a \n\r\t.", max_size=10))


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6), ascii_only=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\n\n \n"]))
def test_any_text_comes_through_json_lines(tmp_path_factory, rows, ascii_only, end):
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    lines = [json.dumps({"text": text, "title": title}, ensure_ascii=ascii_only) for title, text in rows]
    path.write_bytes(end.join(lines).encode())
    file = File("x", "json_lines", "", lambda: path.open("rb"), False, path)
    counts = Counts()
    assert list(records.json_rows(file, CorpusSettings(title_column="title"), Budget(0), counts)) == rows
    documents = b"".join(records.documents(rows, counts)).decode().split("\n\n")[:-1]
    texts = [(title, text) for title, text in rows if text and text.strip()]
    assert (counts.rows, counts.empty_documents, len(documents)) == (len(rows), len(rows) - len(texts), len(texts))
    for (title, text), document in zip(texts, documents, strict=True):
        heading = [f"= {' '.join(title.split())} ="] if title and title.strip() else []
        assert document.split("\n") == heading + [line.strip() for line in text.split("\n") if line.strip()]
