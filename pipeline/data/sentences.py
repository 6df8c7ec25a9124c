"""Documents -> sentences, by the deck's rule.

In: document texts. Out: the sentences of all documents one after another, with the number of their document.
The decision that matters: a sentence ends at ` . `, as in the deck's reader; it may
turn out empty.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .documents import SENTENCE_END


@dataclass(frozen=True)
class Sentences:
    """Sentences of documents, in order.

    :param text: large_string [S].
    :param document: int64 [S], rising.
    """

    text: pa.Array
    document: npt.NDArray[np.int64]


def split_sentences(texts: pa.Array) -> Sentences:
    """Split each document (large_string [D]) at ` . `."""
    parts = pc.split_pattern(texts, SENTENCE_END)
    return Sentences(parts.flatten(), pc.list_parent_indices(parts).to_numpy(zero_copy_only=False).astype(np.int64))
