"""Documents are the same however the text is cut into blocks, and by the same rule as Python's."""

import sys
from pathlib import Path

import pytest

from pipeline.data import documents
from pipeline.data.documents import TEXT, WIKITEXT, DocumentReader

PARAGRAPHS = [f"sentence {number} \u2013 ö . another {number * number}" for number in range(50)]
ARTICLES = {
    WIKITEXT: "".join(f" = T {n} = \n \n = = Part = = \n \n one {n} . \n \n 1 = 1 \n two {n} . \n \n" for n in range(30)),
    TEXT: "\n\n".join(f"= T {n} =\none {n} .\n= = Part = =\n1 = 1\ntwo {n} ." for n in range(30)) + "\n",
}
FOUND = {WIKITEXT: "one {} .\n1 = 1\ntwo {} .", TEXT: "one {} .\n= = Part = =\n1 = 1\ntwo {} ."}


def find_all(reader: DocumentReader) -> list[str]:
    return [text for data in reader.blocks() for text in reader.find(data).to_pylist()]


def test_white_space_is_cut_off_as_python_does() -> None:
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF and chr(c) != "\n"]
    lines = [f"{c} x . y {c}" for c in points] + ["no document", "", " . ", "ends . "]
    found = DocumentReader("", "paragraph").find("\n".join(lines).encode()).to_pylist()
    assert found == [line.strip() for line in lines if " . " in line]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_blocks_of_any_size_hold_the_same_documents(block: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_bytes(("\n \n".join(PARAGRAPHS) + end).encode())
    monkeypatch.setattr(documents, "_BLOCK", block)
    reader = DocumentReader(str(path), "paragraph")
    assert find_all(reader) == PARAGRAPHS


@pytest.mark.parametrize("form", ARTICLES)
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_articles_of_each_form(form: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_text(ARTICLES[form], "utf-8")
    monkeypatch.setattr(documents, "_BLOCK", block)
    reader = DocumentReader(str(path), "article", form)
    assert find_all(reader) == [FOUND[form].format(n, n) for n in range(30)]
    pieces = [piece for data in reader.blocks() for piece in reader.articles(data)]
    assert b"".join(pieces) == path.read_bytes()
    assert len(pieces) == 30


def test_a_line_that_begins_as_a_title_does_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_text(" = T = \n one . \n = a = 1 and b \n two . \n", "utf-8")
    for block in range(1, 30):
        monkeypatch.setattr(documents, "_BLOCK", block)
        assert find_all(DocumentReader(str(path), "article")) == ["one .\n= a = 1 and b\ntwo ."]


def test_a_document_that_is_too_long_is_taken_for_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(documents, "_BLOCK", 100)
    path = tmp_path / "text"
    path.write_text("".join(f"line {number} .\n" for number in range(1000)), "utf-8")
    found = find_all(DocumentReader(str(path), "article", TEXT))
    assert len(found) > 5
    assert "\n".join(found) == path.read_text().strip()
    assert max(map(len, found)) < 1200


@pytest.mark.parametrize("kind", ["paragraph", "article"])
@pytest.mark.parametrize("form", ARTICLES)
def test_parts_together_hold_the_documents_of_the_whole(kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LOOK", 50)
    path = tmp_path / "text"
    path.write_text(ARTICLES[form], "utf-8")
    whole = DocumentReader(str(path), kind, form)
    size = path.stat().st_size
    for most in (1, 7, 100, size // 3, size - 1, size):
        parts = whole.parts(most)
        assert [text for part in parts for text in find_all(part)] == find_all(whole)
        assert [(part.start, part.end) for part in parts] == [
            (a.end if a else 0, b.end) for a, b in zip([None, *parts[:-1]], parts, strict=True)
        ]
        assert parts[-1].end == size and (len(parts) > 1) == (most < size)


def test_parts_cut_a_document_that_is_too_long_where_the_whole_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(documents, "_BLOCK", 128)
    path = tmp_path / "text"
    lengths = [3, 700, 2, 1, 90, 400, 5]
    path.write_text("\n\n".join("\n".join(f"line {a} {b} ." for b in range(length)) for a, length in enumerate(lengths)) + "\n", "utf-8")
    whole = DocumentReader(str(path), "article", TEXT)
    found = find_all(whole)
    assert len(found) > len(lengths)
    for most in (1, 100, 997, 2_000, 10_000):
        assert [text for part in whole.parts(most) for text in find_all(part)] == found


def test_an_empty_file_is_one_part_without_a_document(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    (part,) = DocumentReader(str(tmp_path / "text"), "article").parts(10)
    assert find_all(part) == []
