"""Canonical text: the same bytes however the text came in pieces, and what was met on the way is counted."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import decoding
from pipeline.data.canonical import Part, SplitText, canonicalise
from pipeline.data.counts import Counts
from pipeline.data.decoding import decode, whole_lines
from pipeline.data.documents import TEXT, WIKITEXT
from pipeline.errors import CorpusError
from pipeline.storage import digest

ODD = st.text(st.sampled_from("ab \t\n\r\x00\x0b\x1c\x85\xa0\u2028\u3000\ufeffüß日本שם.="), max_size=60)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def part(data: bytes, size: int = 1 << 20, label: str = "x") -> Part:
    return Part(label, lambda counts: decode(pieces(data, size), label, counts))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_mark_at_the_head_line_ends_and_split_characters(tmp_path, size):
    text = "\ufeffx . \u00fc\U0001f600\r\ny \ufeff . \r z\u2028.\r\n\r\nlast\r"
    found, counts = canonicalise([part(text.encode(), size)], tmp_path / "x")
    written = (tmp_path / "x").read_bytes()
    assert written.decode() == "x . \u00fc\U0001f600\ny \ufeff . \r z\u2028.\n\nlast\r\n"
    assert found == SplitText(len(written), 4, 3, digest(written))
    assert (counts.files, counts.byte_order_marks, counts.crlf_line_ends, counts.control_characters) == (1, 1, 3, 2)


def plain(text: str) -> str:
    """The oracle: documents of stripped paragraphs, by the definition."""
    lines = "\n".join(line.strip() for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"))
    return "\n\n".join(document for document in re.split(r"\n{2,}", lines.strip("\n")) if document)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(ODD, min_size=1, max_size=3), size=st.integers(1, 9))
def test_text_is_paragraphs_stripped_and_one_empty_line_between_documents(tmp_path_factory, texts, size):
    path = tmp_path_factory.getbasetemp() / "odd"
    wanted = "\n\n".join(filter(None, map(plain, texts)))
    parts = [part(text.encode(), size) for text in texts]
    if not wanted:
        with pytest.raises(CorpusError, match=r"no text \(\d files, all blank\)"):
            canonicalise(parts, path, TEXT)
        return
    found, counts = canonicalise(parts, path, TEXT)
    assert path.read_bytes().decode() == wanted + "\n"
    assert (found.lines, counts.documents) == (wanted.count("\n") + 1, wanted.count("\n\n") + 1)
    if not wanted.startswith("\ufeff"):
        again = [part(path.read_bytes(), size)]
        assert canonicalise(again, path.with_suffix(".2"), TEXT)[0] == found, "canonical text is its own canonical text"


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab \t日\n"), max_size=200), size=st.integers(1, 50))
def test_long_lines_are_cut_at_white_space_wherever_the_text_was_cut(text, size):
    counts = Counts()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(decoding, "LONGEST_LINE", 12)
        data = b"".join(whole_lines(decode(pieces(text.encode(), size), "x", Counts()), counts))
        assert b"".join(whole_lines(pieces(text.encode(), 1 << 20), Counts())) == data
    lines = data.decode().split("\n")
    assert max(len(line.encode()) for line in lines) <= 12
    assert data.decode().replace("\n", "") == text.replace("\n", "")
    assert counts.cut_lines == data.count(b"\n") - text.count("\n") - bool(text and not text.endswith("\n"))
    for line, following in itertools.pairwise(lines):
        if len(line.encode()) > 9 and f"{line}\n{following}" not in text and following:
            assert line[-1] in " \t" or not re.search(r"[ \t]", line)


def test_a_line_of_20_mb_is_two(tmp_path):
    data = b"word " * (20 << 18) + b"\nnext\n"
    found, counts = canonicalise([part(data)], tmp_path / "x", TEXT)
    lines = (tmp_path / "x").read_bytes().split(b"\n")
    assert (found.lines, counts.cut_lines, counts.documents) == (3, 1, 1)
    assert [line.count(b"word") for line in lines] == [(16 << 20) // 5, (20 << 18) - (16 << 20) // 5, 0, 0]


def test_characters_are_counted_by_script(tmp_path):
    right_to_left = "\u05e9\u05dc\u05d5\u05dd", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629"  # Hebrew, Arabic
    others = "日本語", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u03b1\u03b2\u03b3"  # Japanese, Cyrillic, Greek
    text = f"plain é µ ñ ª Ⅷ 5 {' '.join(others)}\t{' '.join(right_to_left)} \x00\x07\x7f\x85\n"
    _, counts = canonicalise([part(text.encode())], tmp_path / "x", WIKITEXT)
    assert counts.non_latin_letters == len("".join(others + right_to_left))
    assert counts.right_to_left_letters == len("".join(right_to_left))
    assert counts.control_characters == 4
    assert (tmp_path / "x").read_bytes() == text.encode(), "all are kept"


MEMORY = """
import gzip, json, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from pipeline.data import held_out
from pipeline.data.canonical import canonicalise
from pipeline.data.sources import open_source

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) >> 10

def read(size):
    folder = Path(sys.argv[1], str(size))
    folder.mkdir()
    row = "the crane flies over the river and the old bridge . it is far away . " * 20
    rows = size // len(row)
    with open(folder / "a.jsonl", "w") as file:
        file.writelines(json.dumps({"text": row}) + "\\n" for _ in range(rows))
    with gzip.open(folder / "a.txt.gz", "wt", 1) as file:
        file.writelines(row + "\\n\\n" for _ in range(rows))
    with pq.ParquetWriter(folder / "a.parquet", pa.schema([("text", pa.string())]), use_dictionary=False) as file:
        for _ in range(2):
            file.write_table(pa.table({"text": [row + str(n) for n in range(rows // 2)]}))
    before = peak()
    for name in ("a.jsonl", "a.txt.gz", "a.parquet"):
        work = folder / f"work-{name}"
        work.mkdir()
        with open_source(str(folder / name), work) as source:
            found, _ = canonicalise(source.parts["train"], work / "train.tokens", source.form)
            assert found.bytes >= size * 0.9, found
        if name == "a.parquet":  # the others repeat one document
            held_out.hold_out(work / "train.tokens", work / "valid.tokens", source.form)
    return peak() - before

read(4 << 20)
print(read(20 << 20))
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16, "MiB more for five times the text"
