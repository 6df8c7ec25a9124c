"""The same rows in every form, and one line where a table cannot be read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from pipeline.errors import TableError
from pipeline.tables import is_table, read_table

ROWS = [("a crane is flying", 1, "x"), ("he just\nleft", 0, "y"), ('"quoted", he said', 2, "z")]
TABLE = pa.table({"text": [row[0] for row in ROWS], "label": [row[1] for row in ROWS], "other": [row[2] for row in ROWS]})
LINES = "".join(json.dumps(dict(zip(("text", "label", "other"), row, strict=True))) + "\n" for row in ROWS)
WRITERS: dict[str, Callable[[Path], object]] = {
    "a.csv": lambda path: pacsv.write_csv(TABLE, path),
    "a.jsonl": lambda path: path.write_text(LINES, "utf-8"),
    "a.ndjson": lambda path: path.write_text("\ufeff" + LINES + "\n", "utf-8"),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "a.parquet": lambda path: pq.write_table(TABLE, path),
}


def rows(address: Path | str, *columns: str) -> list[tuple[str | None, ...]]:
    return [tuple(row.values()) for batch in read_table(str(address), columns) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_rows_in_every_form(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert is_table(name)
    assert rows(tmp_path / name, "label", "text") == [(str(label), text) for text, label, _ in ROWS]


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\nhe said "no\t1\n"yes" she said\t0\n', "utf-8")
    assert rows(tmp_path / "a.tsv", "text", "label") == [('he said "no', "1"), ('"yes" she said', "0")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_blank_line_of_one_column_is_an_empty_value(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"text\r\na\r\n\r\nb\r\n")
    assert rows(tmp_path / name, "text") == [("a",), ("",), ("b",)], "rows keep their numbers"
    (tmp_path / name).write_text("text\tb\na\t1\n\n\t2\n".replace("\t", "\t" if name == "a.tsv" else ","), "utf-8")
    assert rows(tmp_path / name, "text", "b") == [("a", "1"), ("", "2")], "of several it is no row"


def test_nulls_stay_and_booleans_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null, "label": true}\n{"text": "a", "label": 1.5}\n', "utf-8")
    assert rows(tmp_path / "a.jsonl", "text", "label") == [(None, "true"), ("a", "1.5")]
    pq.write_table(pa.table({"text": pa.array([None, "a"]), "label": [True, False]}), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet", "text", "label") == [(None, "true"), ("a", "false")]


def test_a_float_is_the_same_text_in_every_form(tmp_path: Path) -> None:
    floats = [1.0, -2.0, 0.1, 1e20, None]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"label": value}) + "\n" for value in floats), "utf-8")
    wanted = rows(tmp_path / "a.jsonl", "label")
    for kind in (pa.float32(), pa.float64()):
        pq.write_table(pa.table({"label": pa.array(floats, kind)}), tmp_path / "a.parquet")
        assert rows(tmp_path / "a.parquet", "label") == wanted


def test_strings_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    offsets, values = (pa.py_buffer(values) for values in (b"\0\0\0\0\2\0\0\0\4\0\0\0", b"\xff\xfeab"))
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, values])}), tmp_path / "a.parquet")
    with pytest.raises(TableError, match=r"a.parquet: not readable \(.*UTF-?8"):
        rows(tmp_path / "a.parquet", "text")


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    for end in ("", "\n"):
        (tmp_path / "a.csv").write_text(f"text,label{end}", "utf-8")
        assert rows(tmp_path / "a.csv", "text") == []


def test_line_ends_of_old_macs_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\ra,1\rb,2\r")
    with pytest.raises(
        TableError, match=r"a.csv: its first line is not readable \(.*\); wanted names of columns, and lines that end in LF"
    ):
        rows(tmp_path / "a.csv", "text")


def test_many_rows_come_in_batches(tmp_path: Path) -> None:
    for name, write in (("a.parquet", pq.write_table), ("a.csv", pacsv.write_csv)):
        write(pa.table({"text": [f"row {number} of many rows" * 3 for number in range(50_000)]}), tmp_path / name)
        batches = list(read_table(str(tmp_path / name), ["text"]))
        assert sum(batch.num_rows for batch in batches) == 50_000
        assert max(batch.num_rows for batch in batches) < 25_000


WRONG: dict[str, tuple[bytes, str]] = {
    "a.csv": (b"text,label\na,1\n", r"a.csv: its columns are text, label; wanted one column `pair`"),
    "b.csv": (b"", r"b.csv: empty; wanted a first line"),
    "c.csv": (b"text,pair\na,b,c\n", r"c.csv: not readable \(CSV parse error: .*Expected 2 columns, got 3"),
    "d.csv": (b"text,pair\n\xff,b\n", r"d.csv: not readable \(.*UTF8"),
    "e.csv": (b'"text","a,b","text"\na,1,b\n', r"e.csv: its columns are text, a,b, text; wanted one column `text`"),
    "f.jsonl": (b'{"text": "\\ud800", "pair": "b"}\n', r"f.jsonl: line 1: `text` has half a surrogate pair, wanted Unicode"),
    "a.jsonl": (b'{"text": "a", "pair": "b"}\n{"text": "a"}\n', r"a.jsonl: line 2: its columns are text; wanted one column `pair`"),
    "b.jsonl": (b'{"text": "a", "pair": ["b"]}\n', r"b.jsonl: line 1: `pair` is a JSON list, wanted a string"),
    "c.jsonl": (b"[1]\n", r"c.jsonl: line 1: a JSON list; wanted an object"),
    "d.jsonl": (b"{\n", r"d.jsonl: line 1: not JSON"),
    "e.jsonl": (b"\xff\n", r"e.jsonl: line 1: not JSON \(.*utf-8"),
    "a.jsonl.gz": (b"no gzip", r"a.jsonl.gz: not readable as gzip"),
    "a.parquet": (b"no parquet", r"a.parquet: not readable"),
    "a.xlsx": (b"", r"a.xlsx: not a known kind of table; wanted a name that ends in .tsv, .csv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_line_where_it_cannot_be_read(tmp_path: Path, name: str) -> None:
    content, told = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=told) as caught:
        rows(tmp_path / name, "text", "pair")
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        rows(tmp_path / "a.csv", "text")
    pq.write_table(pa.table({"text": [["a"]]}), tmp_path / "a.parquet")
    with pytest.raises(TableError, match="column `text` is list"):
        rows(tmp_path / "a.parquet", "text")
