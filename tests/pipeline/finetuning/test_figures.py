"""Figures of merit: those of SQuAD's own script, and scikit-learn's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from pipeline.finetuning.figures import answer_figures, class_figures, normalized, word_f1


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "f1"),
    [
        ("the Denver Broncos!", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos", "The Broncos"], 1, 1),  # the best of the answers counts
        ("Denver Broncos team", ["Denver Broncos"], 0, 0.8),  # 2 of 3 and 2 of 2
        ("Santa Clara", ["Levi's Stadium"], 0, 0),
        ("the the cat", ["cat cat"], 0, 2 / 3),  # a word counts as often as both have it
        ("", [], 1, 1),  # no answer, and none was given
        ("something", [], 0, 0),
        ("", ["something"], 0, 0),
        ("a", ["the"], 1, 1),  # nothing is left of either
    ],
)
def test_answers_are_compared_as_squads_script_does(predicted: str, answers: list[str], exact: float, f1: float) -> None:
    assert answer_figures([predicted], [answers]) == pytest.approx({"exact_match": exact, "f1": f1})


def test_answers_are_normalized() -> None:
    assert normalized("  The U.S.  (an Army) — and a half ") == "us army — and half"
    assert word_f1("a b", "b a") == word_f1("b", "b") == 1.0


def test_figures_are_means_over_questions() -> None:
    assert answer_figures(["x", "y"], [["x"], ["z"]]) == {"exact_match": 0.5, "f1": 0.5}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=30))
def test_class_figures_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    labels, predicted = zip(*pairs, strict=True)
    found = class_figures(predicted, labels)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))
