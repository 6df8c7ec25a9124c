"""Examples -> batches, in an order that depends on the seed and the step alone.

In: examples as flat arrays. Out: the batch of any step, for any rank. The decision that matters: the order is a
function of (seed, epoch), so a position in the data is a step number and a resumed run needs no other state.
"""

import numpy as np
import torch

from ..model.pretraining import Batch
from ..shards import Examples, IntArray


class Order:
    """The rows of each step; every example is seen once an epoch, whose last batch may be short."""

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self._examples, self._batch_size, self._seed = examples, batch_size, seed
        self._steps = -(-examples // batch_size)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def rows(self, step: int) -> IntArray:
        """The rows [B] of a step, counted from 0."""
        epoch, place = divmod(step, self._steps)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._examples)
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]


def make_batch(examples: Examples, rows: IntArray) -> Batch:
    """The batch of some rows, in the order given."""
    tokens, offsets = _spans(examples.offsets, rows)
    masks, mask_offsets = _spans(examples.mask_offsets, rows)
    masked = examples.masked_lm_positions[masks] + np.repeat(offsets[:-1], np.diff(mask_offsets))
    arrays = (
        examples.input_ids[tokens],
        examples.token_type_ids[tokens],
        offsets,
        masked,
        examples.masked_lm_labels[masks],
        examples.next_sentence_label[rows],
    )
    return Batch(*(torch.from_numpy(array.astype(np.int64)) for array in arrays))


def _spans(offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Positions of the rows' values one after another, and the rows' new offsets."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(new[-1]) - np.repeat(new[:-1], lengths)
    return np.repeat(offsets[rows], lengths) + within, new
