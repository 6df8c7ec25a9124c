"""Examples -> batches.

In: examples as flat arrays, and which of their rows a step takes. Out: the batches of any step, for any rank. The decision
that matters: a batch is a function of its rows, so whether the next ones are made ahead changes nothing.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ..model.pretraining import Batch
from ..ragged import I64, offsets_of, spans
from ..shards import Examples, IntArray
from .distributed import World
from .masking import DynamicMasking
from .stopwatch import Stopwatch


@dataclass(frozen=True)
class Rows:
    """The rows of a step, over all ranks.

    :param rows: [B], among the examples. :param epoch: decides on masks that are drawn while training.
    :param numbers: as `make_batch` takes them.
    """

    examples: Examples
    rows: IntArray
    epoch: int = 0
    masking: DynamicMasking | None = None
    numbers: IntArray | None = None


class BatchLoader:
    """This rank's batches of each step.

    :param rows: gives the rows of a step, counted from 0.
    :param micro_batch_size: the most rows of a batch; 0: a step is one batch.
    :param steps: after the last of which nothing is made ahead; None: always.
    :param ahead: a thread makes the next step's batches while one is trained on. For a GPU: on a CPU they take a few
        milliseconds, and a second thread that calls torch has OpenMP send the step's own threads to sleep between loops.
    """

    def __init__(
        self, rows: Callable[[int], Rows], world: World, *, micro_batch_size: int = 0, ahead: bool = False, steps: int | None = None
    ) -> None:
        self._rows, self._world, self._micro_batch_size, self._works_ahead = rows, world, micro_batch_size, ahead
        self._steps = steps
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: dict[int, Future[tuple[list[Batch], int]]] = {}
        self.waiting = Stopwatch()

    def load(self, step: int) -> tuple[list[Batch], int]:
        """The batches of a step, counted from 0, at least one, and the rows of all ranks' together.

        They are moved to the rank's device one at a time, by whoever trains on them. What goes wrong in the thread is
        raised here.
        """
        with self.waiting:
            ahead = self._ahead.pop(step, None)
            batches, rows = ahead.result() if ahead else self._make(step)
        if self._works_ahead and step + 1 != self._steps:
            self._ahead = {step + 1: self._pool.submit(self._make, step + 1)}
        return batches, rows

    def close(self) -> None:
        """End the thread, where there is one."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, step: int) -> tuple[list[Batch], int]:
        found, on_gpu = self._rows(step), self._world.device.type == "cuda"
        own = by_length(found.examples, found.rows[self._world.rank :: self._world.size])
        most = max(-(-len(found.rows) // self._world.size), 1)  # rows of a rank
        size = self._micro_batch_size or most
        # As many batches on each rank, since sharded weights are gathered for each; a rank with fewer rows has an empty one.
        parts = [own[start : start + size] for start in range(0, most, size)]
        batches = [make_batch(found.examples, part, on_gpu or None, found.masking, found.epoch, found.numbers) for part in parts]
        return [batch.pin_memory() for batch in batches] if on_gpu else batches, len(found.rows)


def by_length(examples: Examples, rows: IntArray) -> IntArray:
    """Rows, shorter ones first, those of one length in the order given."""
    return rows[np.argsort(examples.offsets[rows + 1] - examples.offsets[rows], kind="stable")]


def make_batch(
    examples: Examples,
    rows: IntArray,
    padded: bool | None = None,
    masking: DynamicMasking | None = None,
    epoch: int = 0,
    numbers: IntArray | None = None,
) -> Batch:
    """The batch of some rows, shorter ones first, so that rows of one length are neighbours.

    :param padded: see `Layout`; a GPU wants few large kernels, so a grid.
    :param masking: draws the epoch's masks; None: the examples have them.
    :param numbers: [R], what the examples' rows are to the masking; None: their places.
    """
    rows = by_length(examples, rows)
    tokens, offsets = _values_of(examples.offsets, rows)
    input_ids = examples.input_ids[tokens]
    if masking:
        drawn = masking.draw(input_ids, offsets, rows if numbers is None else numbers[rows], epoch)
        input_ids, positions, labels, mask_counts = drawn.input_ids, drawn.positions, drawn.labels, np.diff(drawn.offsets)
    else:
        masks, mask_offsets = _values_of(examples.mask_offsets, rows)
        positions, labels, mask_counts = examples.masked_lm_positions[masks], examples.masked_lm_labels[masks], np.diff(mask_offsets)
    arrays = (
        input_ids,
        examples.token_type_ids[tokens],
        np.diff(offsets),
        positions + np.repeat(offsets[:-1], mask_counts),
        mask_counts,
        labels,
        examples.next_sentence_label[rows],
    )
    return Batch.of(*(torch.from_numpy(array.astype(np.int64)) for array in arrays), padded=padded)


def _values_of(offsets: IntArray, rows: IntArray) -> tuple[I64, I64]:
    """Positions of the rows' values one after another, and the rows' new offsets."""
    lengths = offsets[rows + 1] - offsets[rows]
    return spans(offsets[rows], lengths), offsets_of(lengths)
