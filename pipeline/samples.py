"""Sample encodings: the deck's test sentences through an encoder.

In: an encoder. Out: for each sentence or pair its tokens, the shape of its encoding, and crane's vector. The deck's
point: a word's vector depends on what stands around it.
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
    :param unknown: words that the vocabulary does not have.
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
    sep = encoder.table.special_tokens["sep_token"]
    for text, text_pair in SENTENCES:
        encoded, tokens = encoder.encode(text, text_pair), encoder.tokens(text, text_pair)
        place = 1 + text.split().index(WORD)
        vectors.append(encoded[0, place])
        words = [encoder.table.special_tokens["cls_token"], *text.split(), sep, *([*text_pair.split(), sep] if text_pair else [])]
        unknown = [word for word, token in zip(words, tokens, strict=True) if word != token]
        cls, word = (vector[:3].tolist() for vector in (encoded[0, 0], vectors[-1]))
        samples.append(SampleEncoding(text, text_pair, tokens, list(encoded.shape), cls, word, unknown))
    return samples, float(F.cosine_similarity(torch.stack(vectors)[:1], vectors[1][None])[0])
