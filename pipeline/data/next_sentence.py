"""Sentences -> pairs for next-sentence prediction (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

In: the sentences of a bucket's documents. Out: pairs (A, B) with a label. The decision that matters: a label is never
false. A negative is a random sentence of a random document of the bucket, but never the sentence A itself and never one
that follows A anywhere in the bucket; sentences that look alike to the model count as the same. The deck draws from any
document, the paper from another, which here is one of another text.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ragged import I64, offsets_of
from ..randomness import U64, Purpose, below, coin, streams

FOLLOWS, RANDOM = 0, 1  # next_sentence_label, in BERT's and transformers' sense; the deck's is the opposite
NONE = -1  # in place of a negative: there is no honest one
_ATTEMPTS = 16


@dataclass(frozen=True)
class Bucket:
    """The sentences of a bucket's documents, in order.

    :param document: int64 [S], rising; the document of each sentence.
    :param identity: int64 [S], from 0 without a gap; equal where two sentences have the same tokens.
    :param digests: uint64 [D]; 64 bits of each document's digest, equal ones next to each other.
    :param occurrence: uint64 [D]; how many equal documents stand before it.
    """

    document: I64
    identity: I64
    digests: U64
    occurrence: U64

    def streams(self, seed: int, purpose: Purpose, repeat: int = 0) -> U64:
        """One stream of random numbers a document."""
        return streams(self.digests, self.occurrence, seed, purpose, repeat)

    @cached_property
    def sentences(self) -> I64:
        """Offsets of the documents among the sentences [D + 1]."""
        return offsets_of(np.bincount(self.document, minlength=len(self.digests)))

    @cached_property
    def followers(self) -> "Followers":
        """Which sentences follow which."""
        return Followers(self.identity, neighbours(self.document))


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs.

    :param first: int64 [P], the sentence A. :param second: int64 [P], the sentence B.
    :param label: int8 [P], `FOLLOWS` or `RANDOM`.
    :param number: int64 [P], the pair's count within its document.
    :param without_negative: neighbouring pairs left out because no honest negative exists for them.
    """

    first: I64
    second: I64
    label: npt.NDArray[np.int8]
    number: I64
    without_negative: int


def neighbours(document: I64) -> I64:
    """The sentences that another of the same document follows [P]."""
    return np.flatnonzero(document[1:] == document[:-1])


def make_pairs(bucket: Bucket, seed: int, repeat: int = 0) -> Pairs:
    """Each neighbouring pair of a document once; a coin replaces B by a random sentence for half of them."""
    first = neighbours(bucket.document)
    if not len(first):
        return Pairs(first, first, np.zeros(0, np.int8), first, 0)
    number = first - bucket.sentences[bucket.document[first]]
    possible = bucket.followers.distinct_others(bucket.identity[first]) > 0
    out = int(len(first) - possible.sum())
    first, number = first[possible], number[possible]

    random = coin(bucket.streams(seed, Purpose.COIN, repeat)[bucket.document[first]], number.astype(np.uint64))
    second = first + 1
    second[random] = draw_negatives(bucket, first[random], number[random], seed, repeat)
    return Pairs(first, second, np.where(random, RANDOM, FOLLOWS).astype(np.int8), number, out)


class Followers:
    """Which sentences follow which somewhere, or are the same."""

    def __init__(self, identity: I64, first: I64) -> None:
        self._identity = identity
        self._width = int(identity.max(initial=-1)) + 1
        every = np.arange(self._width)
        follow = identity[first] * self._width + identity[first + 1]
        forbidden = np.sort(np.concatenate([follow, every * self._width + every]))
        self._forbidden = forbidden[np.diff(forbidden, prepend=-1) > 0]

    def forbid(self, first: I64, second: I64) -> npt.NDArray[np.bool_]:
        """Whether sentences `second` follow sentences `first` somewhere or are the same, and so may not be negatives for them."""
        codes = self._identity[first] * self._width + self._identity[second]
        place = np.minimum(np.searchsorted(self._forbidden, codes), len(self._forbidden) - 1)
        found: npt.NDArray[np.bool_] = self._forbidden[place] == codes
        return found

    def distinct_others(self, identities: I64) -> I64:
        """How many different sentences may be negatives for sentences of these identities."""
        return self._width - np.bincount(self._forbidden // self._width, minlength=self._width)[identities]


def draw_negatives(bucket: Bucket, first: I64, number: I64, seed: int, repeat: int = 0, *, elsewhere: bool = False) -> I64:
    """For each sentence A a random document, then a random sentence of it, again until it is honest; `NONE` where none is.

    :param first: int64 [P], the sentences A. :param number: int64 [P], the count of each within its document.
    :param elsewhere: only from documents of another text.
    """
    sentences = bucket.sentences
    filled = np.flatnonzero(np.diff(sentences))  # documents that have a sentence
    own, counter = bucket.document[first], number.astype(np.uint64)
    documents, within = (bucket.streams(seed, p, repeat)[own] for p in (Purpose.NEGATIVE_DOCUMENT, Purpose.NEGATIVE_SENTENCE))
    low, high = _same_text(bucket, filled)[:, own] if elsewhere else np.zeros((2, len(first)), np.int64)
    choices = len(filled) - (high - low)
    second = np.full_like(first, NONE)
    open_ = np.flatnonzero(choices)
    for attempt in range(_ATTEMPTS):
        count = counter[open_] * np.uint64(_ATTEMPTS) + np.uint64(attempt)
        place = below(documents[open_], count, choices[open_].astype(np.uint64)).astype(np.int64)
        drawn = filled[place + np.where(place >= low[open_], (high - low)[open_], 0)]
        sizes = (sentences[drawn + 1] - sentences[drawn]).astype(np.uint64)
        second[open_] = sentences[drawn] + below(within[open_], count, sizes).astype(np.int64)
        open_ = open_[bucket.followers.forbid(first[open_], second[open_])]
        if not len(open_):
            return second
    every = np.arange(len(bucket.document))
    place = np.searchsorted(filled, bucket.document)
    for pair in open_:  # small buckets only: list what is left
        honest = every[~bucket.followers.forbid(np.full_like(every, first[pair]), every) & ((place < low[pair]) | (place >= high[pair]))]
        count = counter[pair : pair + 1] * np.uint64(_ATTEMPTS) + np.uint64(_ATTEMPTS)
        chosen = below(within[pair : pair + 1], count, np.uint64(len(honest))).astype(np.int64)[0]
        second[pair] = honest[chosen] if len(honest) else NONE
    return second


def _same_text(bucket: Bucket, filled: I64) -> I64:
    """Where the documents of each document's own text begin and end [2, D] among those that have a sentence."""
    text = np.cumsum(bucket.occurrence == 0)
    return np.stack([np.searchsorted(text[filled], text, side) for side in ("left", "right")]).astype(np.int64)
