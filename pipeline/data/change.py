"""What changed from one corpus to another: documents that came and went.

In: two published corpora. Out: counts over their training splits. The decision that matters: a document is known by its
digest, so that one that only moved has not changed, and an edited one has gone and come.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..settings import TextSettings
from ..storage import Output
from .documents import DocumentReader, digests_of, numbers_of
from .parallel import map_in_threads


@dataclass(frozen=True)
class Change:
    """Documents of the training split: how many there were and are, and how many came and went."""

    before: int
    after: int
    added: int
    removed: int


def compare(old: Output, new: Output, text: TextSettings) -> Change:
    """Count what changed; memory is some 50 bytes a document."""
    before, after = (_counted(DocumentReader.of(corpus, "train", text)) for corpus in (old, new))
    known = np.union1d(before[0], after[0])
    change = np.zeros(len(known), np.int64)
    change[np.searchsorted(known, after[0])] += after[1]
    change[np.searchsorted(known, before[0])] -= before[1]
    return Change(int(before[1].sum()), int(after[1].sum()), int(change[change > 0].sum()), int(-change[change < 0].sum()))


def _counted(reader: DocumentReader) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The documents' digests, to 64 bits, each once and sorted, and how often each stands there."""
    parts = map_in_threads(lambda block: numbers_of(digests_of(reader.find(block)))[:, 0], reader.blocks())
    digests, counts = np.unique(np.concatenate(list(parts)), return_counts=True)
    return digests, counts.astype(np.int64)
