"""Documents are held out whole, by their digests alone."""

from pathlib import Path

import pytest

from pipeline.data import documents, held_out
from pipeline.data.documents import TEXT, WIKITEXT
from pipeline.errors import CorpusError

ARTICLES = {
    WIKITEXT: [f" = T {n} = \n \n one {n} . two . \n \n = = Part = = \n \n three {n} . \n \n" for n in range(1000)],
    TEXT: [f"= T {n} =\none {n} . two .\nthree {n} .\n" for n in range(1000)],
}
BETWEEN = {WIKITEXT: "", TEXT: "\n"}


def divide(folder: Path, text: str, form: str) -> tuple[str, str, str]:
    train, valid = folder / "train", folder / "valid"
    train.write_text(text, "utf-8")
    in_train, in_valid, by = held_out.hold_out(train, valid, form)
    assert (in_train.bytes, in_valid.bytes) == (train.stat().st_size, valid.stat().st_size)
    return train.read_text("utf-8"), valid.read_text("utf-8"), by


@pytest.mark.parametrize("form", ARTICLES)
def test_whole_documents_are_held_out(tmp_path, form):
    articles, between = ARTICLES[form], BETWEEN[form]
    train, valid, by = divide(tmp_path, between.join(articles), form)
    held = [article for article in articles if article in valid]
    assert by == "document"
    assert 70 < len(held) < 130
    assert valid == between.join(held)
    assert train == between.join(article for article in articles if article not in held)
    reordered = divide(tmp_path, between.join(reversed(articles)), form)
    assert reordered[1] == between.join(reversed(held)), "order changes nothing"


def test_what_stands_before_the_first_title_stays_as_it_is(tmp_path):
    train, valid, _ = divide(tmp_path, " \n\n" + "".join(ARTICLES[WIKITEXT][:100]), WIKITEXT)
    assert train.startswith(" \n\n = T ")
    assert valid.startswith(" = T ")


def test_where_documents_leave_nothing_paragraphs_are_held_out(tmp_path):
    lines = [f"paragraph {number}" for number in range(2000)]
    train, valid, by = divide(tmp_path, "\n".join(lines) + "\n", TEXT)
    kept, held = train.split("\n")[:-1], valid.split("\n")[:-1]
    assert by == "paragraph"
    assert kept == [line for line in lines if line not in held]
    assert held == [line for line in lines if line not in kept]
    assert 150 < len(held) < 250


def test_a_document_larger_than_the_longest_is_taken_for_several(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(documents, "_BLOCK", 100)
    text = "".join(f"paragraph {number} .\n" for number in range(5000))
    train, valid, by = divide(tmp_path, text, TEXT)
    assert by == "document"
    assert sorted(line for line in (train + valid).split("\n") if line) == sorted(text.split("\n")[:-1])


@pytest.mark.parametrize("form", ARTICLES)
def test_one_paragraph_cannot_be_divided(tmp_path, form):
    with pytest.raises(CorpusError, match="train has 1 paragraphs; wanted enough to hold out one in 10"):
        divide(tmp_path, "a .\n", form)
