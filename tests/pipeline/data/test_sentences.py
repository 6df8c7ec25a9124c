"""Documents split into sentences: long paragraphs, and quotation marks that nobody closed."""

import pyarrow as pa
import pytest
from sentencex import segment

from pipeline.data.sentences import split_sentences
from pipeline.settings import load_preset

TEXT = load_preset("mini").text


def prose(text: str) -> list[str]:
    """The sentences of one document."""
    return split_sentences(pa.array([text], pa.large_string()), TEXT).text.to_pylist()


def test_a_long_paragraph_has_the_sentences_of_the_whole() -> None:
    text = " ".join(f"The crane number {number} left Dr. Smith. “It came back.” Then it slept!" for number in range(2000))
    assert len(text) > 100_000
    assert prose(text) == [part.strip() for part in segment("en", text)]


def test_quotation_marks_that_are_never_closed_do_not_take_forever() -> None:
    text = "“He said so. " * 50_000  # the library alone takes minutes
    assert "".join(prose(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("unit", ["word ", "字"])
def test_a_paragraph_without_a_sentence_end_keeps_all_its_text(unit: str) -> None:
    text = unit * 50_000
    found = prose(text)
    assert len(found) > 1 and "".join(found).replace(" ", "") == text.replace(" ", "")
    assert all(part.split(" ")[0] == part.split(" ")[-1] for part in found) or unit == "字"
