"""Documents -> sentences.

In: document texts, a paragraph a line. Out: the sentences of all documents one after another, with the number of their
document. The decision that matters: prose is split by a library that knows the language's abbreviations, paragraph by
paragraph, a long one window by window; the deck's rule and one sentence a line are there for text that is split already. A
sentence may turn out empty.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sentencex import segment

from ..settings import TextSettings
from .documents import SENTENCE_END

_WINDOW = 1 << 14  # characters; the library's time grows with the square of a text whose quotation marks are never closed


@dataclass(frozen=True)
class Sentences:
    """Sentences of documents, in order.

    :param text: large_string [S].
    :param document: int64 [S], rising.
    """

    text: pa.Array
    document: npt.NDArray[np.int64]


def split_sentences(texts: pa.Array, text: TextSettings) -> Sentences:
    """Split each document (large_string [D])."""
    if text.sentences == "deck":
        parts = pc.split_pattern(texts, SENTENCE_END)
    elif text.sentences == "line":
        parts = pc.split_pattern(texts, "\n")
    else:
        split = ([part for line in document.split("\n") for part in _prose(line, text.language)] for document in texts.to_pylist())
        parts = pa.array(split, pa.large_list(pa.large_string()))
    sentences = parts.flatten()
    if text.sentences != "deck":
        sentences = pc.utf8_trim_whitespace(sentences)
    return Sentences(sentences, pc.list_parent_indices(parts).to_numpy(zero_copy_only=False).astype(np.int64))


def _prose(paragraph: str, language: str) -> Iterator[str]:
    """The sentences of a paragraph. Of a long one a window is split at a time, and what ends in its second half again with the next."""
    start = 0
    while len(paragraph) - start > _WINDOW:
        parts = segment(language, paragraph[start : start + _WINDOW])
        ends = list(itertools.accumulate(map(len, parts)))
        taken = parts[: max(bisect_right(ends, _WINDOW // 2), 1)]
        if ends[0] >= _WINDOW:  # one sentence longer than a window is cut at white space
            taken = [parts[0][: parts[0].rfind(" ") + 1] or parts[0]]
        yield from taken
        start += sum(map(len, taken))
    yield from segment(language, paragraph[start:])
