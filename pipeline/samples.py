"""Sample encodings: the deck's test sentences through an encoder.

In: an encoder. Out: for each sentence or pair its tokens, the shape of its encoding, and crane's vector, the mean over its
pieces where it has several; how alike the two are. The deck's point: a word's vector depends on what stands around it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional as F

from .encoding import Encoder
from .pooling import pool

WORD = "crane"
SENTENCES: tuple[tuple[str, str | None], ...] = (("a crane is flying", None), ("a crane driver came", "he just left"))


@dataclass(frozen=True)
class SampleEncoding:
    """One sentence or pair.

    :param shape: (1, L, D). :param word: the first three numbers of crane's vector; `cls` those of `<cls>`'s.
    :param unknown: words that became the unknown token.
    """

    text: str
    text_pair: str | None
    tokens: list[str]
    shape: list[int]
    cls: list[float]
    word: list[float]
    unknown: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Samples:
    """The test sentences.

    :param word_similarity: cosine similarity of crane's vector in the two.
    :param sentence_similarity: that of the mean vectors of the two, over all their tokens.
    """

    encodings: Sequence[SampleEncoding]
    word_similarity: float
    sentence_similarity: float


def sample_encodings(encoder: Encoder) -> Samples:
    """Encode the test sentences."""
    samples, vectors, means = [], [], []
    for text, text_pair in SENTENCES:
        encoded, tokens, words = encoder.encode(text, text_pair), encoder.tokens(text, text_pair), encoder.words(text, text_pair)
        means.append(pool(encoded[0], "mean"))
        vectors.append(encoded[0, dict(reversed(words))[WORD]].mean(0))
        unknown = encoder.unknown_words(text, text_pair)
        cls, word = (vector[:3].tolist() for vector in (encoded[0, 0], vectors[-1]))
        samples.append(SampleEncoding(text, text_pair, tokens, list(encoded.shape), cls, word, unknown))
    return Samples(samples, _similarity(vectors), _similarity(means))


def _similarity(vectors: Sequence[torch.Tensor]) -> float:
    first, second = vectors
    return float(F.cosine_similarity(first, second, dim=0))
