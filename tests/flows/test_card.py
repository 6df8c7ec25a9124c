"""The model card says what was measured, and what is not known."""

from dataclasses import replace
from typing import Any

import pytest

from flows.card import Subject, model_card, samples_table
from flows.markdown import duration, plain, table
from pipeline.samples import SampleEncoding, Samples
from pipeline.settings import load_preset

HELD_OUT = {"mlm_loss": 4.525, "unigram_loss": 6.478, "mlm_accuracy": 0.354, "next_sentence_loss": 0.659, "next_sentence_accuracy": 0.6}
RUN: dict[str, Any] = {
    "steps": 2000,
    "mlm_loss_mean": 5.851,
    "next_sentence_loss_mean": 0.688,
    "pairs_per_second": 55.8,
    "seconds": 1146.6,
    "pairs": 64_000,
    "held_out": HELD_OUT,
    "parameters": 5_479_746,
    "device": "cpu (x86_64)",
}
COUNTS = {"documents": 629, "sentences": 81_000, "tokens": 2_051_910, "unknown_tokens": 5, "rows": 77_000}
SAMPLE = SampleEncoding("a crane", None, ["[CLS]", "a", "cra", "##ne", "[SEP]"], [1, 5, 256], [0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [])


@pytest.fixture
def subject() -> Subject:
    return Subject(load_preset("mini"), "wikitext-2", COUNTS, 8000, RUN, {"precision": "bf16"}, None, Samples([SAMPLE, SAMPLE], 0.9, 0.8))


def test_a_card_has_figures_beside_what_guessing_gives(subject: Subject) -> None:
    card = model_card(subject, "bert-mini", "3")
    assert card.startswith("# bert-mini, version 3\n")
    assert 'load_model("models:/bert-mini/3")' in card
    assert "| held-out loss, masked words | 4.525 | 6.478, the unigram level |" in card
    assert "0.693, as guessing gives" in card
    assert "nothing else" not in card
    assert "from random weights" in card
    assert "AutoModel.from_pretrained" in card, "a BERT that transformers knows"
    assert "matrix products: bf16" in card, "as the device gave it, not as the preset says"
    assert "| vector of crane | 0.9000 |" in card


def test_a_card_admits_that_nothing_was_learnt(subject: Subject) -> None:
    run = RUN | {"held_out": HELD_OUT | {"mlm_loss": 6.5}}
    assert "not below the unigram level" in model_card(replace(subject, run=run), "bert-mini", "1")


def test_a_run_without_a_pair_task_has_no_figure_of_one(subject: Subject) -> None:
    held_out = {name: value for name, value in HELD_OUT.items() if not name.startswith("next")}
    preset = subject.preset.override(shards={"pairs": "none"})
    card = model_card(replace(subject, preset=preset, run=RUN | {"held_out": held_out}, start="abc"), "bert-mini", "1")
    assert "next sentence" not in card
    assert "weights of encoder `abc`" in card


@pytest.mark.parametrize(
    ("corpus", "licence"), [("wikitext-2", "ShareAlike"), ("wikitext-103", "ShareAlike"), ("sample", "Python"), ("own", "not known")]
)
def test_the_licence_of_the_corpus_is_that_of_its_text_or_not_known(subject: Subject, corpus: str, licence: str) -> None:
    (line,) = (line for line in model_card(replace(subject, corpus=corpus), "x", "1").splitlines() if "licence of the corpus" in line)
    assert licence in line


def test_the_sample_encodings_are_columns_of_one_length(subject: Subject) -> None:
    assert {len(column) for column in samples_table(subject.samples).values()} == {2}


def test_words_of_a_corpus_are_no_markup() -> None:
    assert plain("a|b <i> *c* _d_ `e` & ~f~ \\") == r"a\|b &lt;i> \*c\* \_d\_ \`e\` &amp; \~f\~ " + "\\\\"
    assert table(("a", "b"), [("1", "2")], right=(1,)).splitlines() == ["| a | b |", "| --- | ---: |", "| 1 | 2 |"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.6, "1 min 0 s"), (750, "12 min 30 s"), (90_000, "25 h 0 min")]
)
def test_a_duration_has_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
