"""Pairs: labels are never false."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.next_sentence import FOLLOWS, Bucket, make_pairs


def bucket(documents: list[list[int]]) -> Bucket:
    """Documents given as lists of numbers, equal where sentences are."""
    numbers = [number for number, document in enumerate(documents) for _ in document]
    _, identities = np.unique([value for document in documents for value in document], return_inverse=True)
    return Bucket(
        np.array(numbers, np.int64),
        identities.astype(np.int64),
        np.arange(len(documents), dtype=np.uint64) * np.uint64(7919),
        np.zeros(len(documents), np.uint64),
    )


@settings(max_examples=300)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_pair_is_labelled_next_exactly_when_b_follows_a(documents: list[list[int]], seed: int) -> None:
    made = bucket(documents)
    sentences = zip(made.document.tolist(), made.identity.tolist(), strict=True)
    following = {(a, b) for (one, a), (other, b) in itertools.pairwise(sentences) if one == other}
    pairs = make_pairs(made, seed)
    for a, b, label in zip(pairs.first, pairs.second, pairs.label, strict=True):
        identities = (int(made.identity[a]), int(made.identity[b]))
        assert (label == FOLLOWS) == (identities in following)
        if label == FOLLOWS:
            assert b == a + 1 and made.document[a] == made.document[b]
        else:
            assert identities[0] != identities[1]
    assert len(pairs.first) + pairs.without_negative == sum(max(len(document) - 1, 0) for document in documents)


@pytest.mark.parametrize("seed", range(20))
def test_one_document_of_three_sentences_has_honest_labels(seed: int) -> None:
    pairs = make_pairs(bucket([[0, 1, 2]]), seed)
    for a, b, label in zip(pairs.first, pairs.second, pairs.label, strict=True):
        assert (label == FOLLOWS) == (b == a + 1) and a != b


def test_one_document_of_two_sentences_has_no_honest_negative_and_says_so() -> None:
    pairs = make_pairs(bucket([[0, 1]]), seed=0)
    assert (len(pairs.first), pairs.without_negative) == (0, 1)


def test_the_coin_is_fair_and_negatives_are_spread_over_documents() -> None:
    documents = [[10 * d, 10 * d + 1, 10 * d + 2] for d in range(5_000)]
    made = bucket(documents)
    pairs = make_pairs(made, seed=0)
    random = pairs.label != FOLLOWS
    assert abs(random.mean() - 0.5) < 0.015  # three standard deviations at 10,000 pairs
    drawn = np.bincount(made.document[pairs.second[random]], minlength=5_000)
    assert drawn.max() <= 8 and abs(drawn.var() / drawn.mean() - 1) < 0.1  # as a Poisson variable of mean 1
