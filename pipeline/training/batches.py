"""Examples -> batches, in an order that depends on the seed and the step alone.

In: examples as flat arrays. Out: the batch of any step, for any rank. The decision that matters: the order is a
function of (seed, epoch), so a position in the data is a step number and a resumed run needs no other state; whether
the next batch is made ahead changes nothing.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from ..model.pretraining import Batch
from ..shards import Examples, IntArray
from .distributed import World
from .stopwatch import Stopwatch


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


class BatchLoader:
    """This rank's batch of each step.

    :param ahead: a thread makes the next batch while one is trained on. For a GPU: on a CPU a batch takes a few
        milliseconds, and a second thread that calls torch has OpenMP send the step's own threads to sleep between loops.
    """

    def __init__(self, examples: Examples, order: Order, world: World, ahead: bool) -> None:
        self._examples, self._order, self._world, self._works_ahead = examples, order, world, ahead
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: dict[int, Future[tuple[Batch, int]]] = {}
        self.waiting = Stopwatch()

    def load(self, step: int) -> tuple[Batch, int]:
        """The batch of a step, counted from 0, on the rank's device, and the rows of all ranks' together.

        What goes wrong in the thread is raised here.
        """
        with self.waiting:
            ahead = self._ahead.pop(step, None)
            batch, rows = ahead.result() if ahead else self._make(step)
        if self._works_ahead:
            self._ahead = {step + 1: self._pool.submit(self._make, step + 1)}
        return batch.to(self._world.device), rows

    def close(self) -> None:
        """End the thread, where there is one."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, step: int) -> tuple[Batch, int]:
        rows, on_gpu = self._order.rows(step), self._world.device.type == "cuda"
        batch = make_batch(self._examples, rows[self._world.rank :: self._world.size], padded=on_gpu or None)
        return batch.pin_memory() if on_gpu else batch, len(rows)


def make_batch(examples: Examples, rows: IntArray, padded: bool | None = None) -> Batch:
    """The batch of some rows, shorter ones first, so that rows of one length are neighbours.

    :param padded: see `Layout`; a GPU wants few large kernels, so a grid.
    """
    rows = rows[np.argsort(examples.offsets[rows + 1] - examples.offsets[rows], kind="stable")]
    tokens, offsets = _spans(examples.offsets, rows)
    masks, mask_offsets = _spans(examples.mask_offsets, rows)
    mask_counts = np.diff(mask_offsets)
    arrays = (
        examples.input_ids[tokens],
        examples.token_type_ids[tokens],
        np.diff(offsets),
        examples.masked_lm_positions[masks] + np.repeat(offsets[:-1], mask_counts),
        mask_counts,
        examples.masked_lm_labels[masks],
        examples.next_sentence_label[rows],
    )
    return Batch.of(*(torch.from_numpy(array.astype(np.int64)) for array in arrays), padded=padded)


def _spans(offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Positions of the rows' values one after another, and the rows' new offsets."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(new[-1]) - np.repeat(new[:-1], lengths)
    return np.repeat(offsets[rows], lengths) + within, new
