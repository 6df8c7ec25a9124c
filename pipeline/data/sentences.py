"""Documents -> sentences.

In: document texts, a paragraph a line. Out: the sentences of all documents one after another, with the number of their
document. The decision that matters: prose is split by a library that knows the language's abbreviations, paragraph by
paragraph; the deck's rule and one sentence a line are there for text that is split already. A sentence may turn out empty.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sentencex import segment

from ..settings import TextSettings
from .documents import SENTENCE_END


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
        split = ([part for line in document.split("\n") for part in segment(text.language, line)] for document in texts.to_pylist())
        parts = pa.array(split, pa.large_list(pa.large_string()))
    sentences = parts.flatten()
    if text.sentences != "deck":
        sentences = pc.utf8_trim_whitespace(sentences)
    return Sentences(sentences, pc.list_parent_indices(parts).to_numpy(zero_copy_only=False).astype(np.int64))
