"""Sample encodings: the deck's test sentences through an encoder.

In: an encoder. Out: for each sentence or pair its tokens, the shape of its encoding, and crane's vector, the mean over its
pieces where it has several. The deck's point: a word's vector depends on what stands around it.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional as F

from .encoding import Encoder

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


def sample_encodings(encoder: Encoder) -> tuple[list[SampleEncoding], float]:
    """Encode the test sentences.

    :returns: an entry each, and the cosine similarity of crane's vector in the two.
    """
    samples, vectors = [], []
    for text, text_pair in SENTENCES:
        encoded, tokens, words = encoder.encode(text, text_pair), encoder.tokens(text, text_pair), encoder.words(text, text_pair)
        vectors.append(encoded[0, dict(reversed(words))[WORD]].mean(0))
        unknown = encoder.unknown_words(text, text_pair)
        cls, word = (vector[:3].tolist() for vector in (encoded[0, 0], vectors[-1]))
        samples.append(SampleEncoding(text, text_pair, tokens, list(encoded.shape), cls, word, unknown))
    return samples, float(F.cosine_similarity(torch.stack(vectors)[:1], vectors[1][None])[0])
