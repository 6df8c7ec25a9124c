"""In which order the rows of a split are trained on: windows of whole buckets, shuffled within.

In: how many rows each bucket has. Out: for the number of any step, its window and its rows in that window. The decision
that matters: all of it is a function of (seed, epoch, rows of the buckets, settings), so that a position in the data is a
step number and a resumed run needs no other state, nor any window but its own.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..shards import IntArray


@dataclass(frozen=True)
class Window:
    """Buckets whose rows are shuffled together.

    :param epoch: counted from 0. :param number: among the epoch's windows.
    :param first: step that is its first. :param end: the first step after it.
    """

    epoch: int
    number: int
    first: int
    end: int
    buckets: tuple[int, ...]
    rows: int


class Order:
    """The rows of each step. Every row is seen once an epoch; the last batch of a window may be short.

    :param bucket_rows: rows of each bucket.
    :param most_rows: of a window; a bucket that has more is a window of its own. A split that has no more is one window.
    """

    def __init__(self, bucket_rows: Sequence[int], batch_size: int, seed: int, most_rows: int) -> None:
        self._bucket_rows, self._batch_size, self._seed, self._most_rows = list(bucket_rows), batch_size, seed, most_rows
        self._total = sum(self._bucket_rows)
        self._one_window = self._total <= most_rows
        self._firsts = [0]  # the first step of each epoch, as far as one was asked for
        self._windows = lru_cache(2)(self._plan)  # of this epoch and, ahead, of the next
        self._shuffled = lru_cache(1)(self._shuffle)

    def window(self, step: int) -> Window:
        """The window that a step, counted from 0, falls into."""
        windows = self._windows(self._epoch(step))
        return windows[bisect_right(windows, step, key=lambda window: window.first) - 1]

    def rows(self, step: int) -> IntArray:
        """The rows [B] of a step, by their places in its window."""
        window = self.window(step)
        place = (step - window.first) * self._batch_size
        return self._shuffled(window)[place : place + self._batch_size]

    def _epoch(self, step: int) -> int:
        if self._one_window:  # each epoch has as many steps as the first
            return step // self._steps(self._total)
        while self._firsts[-1] <= step:
            self._firsts.append(self._windows(len(self._firsts) - 1)[-1].end)
        return bisect_right(self._firsts, step) - 1

    def _plan(self, epoch: int) -> list[Window]:
        count = len(self._bucket_rows)
        if self._one_window:
            first, parts = epoch * self._steps(self._total), [tuple(range(count))]
        else:
            first, turns = self._firsts[epoch], np.random.default_rng([self._seed, epoch]).permutation(count).tolist()
            parts = windows_of(self._bucket_rows, self._most_rows, turns)
        windows = []
        for number, buckets in enumerate(parts):
            rows = sum(self._bucket_rows[bucket] for bucket in buckets)
            windows.append(Window(epoch, number, first, first + self._steps(rows), buckets, rows))
            first = windows[-1].end
        return windows

    def _shuffle(self, window: Window) -> IntArray:
        # Numbers that a seed lacks are taken as 0, so windows are counted from 1 beside the epoch's own [seed, epoch].
        seed = [self._seed, window.epoch] if self._one_window else [self._seed, window.epoch, window.number + 1]
        return np.random.default_rng(seed).permutation(window.rows)

    def _steps(self, rows: int) -> int:
        return -(-rows // self._batch_size)


def windows_of(bucket_rows: Sequence[int], most_rows: int, turns: Iterable[int] | None = None) -> list[tuple[int, ...]]:
    """Buckets taken in turn into windows of at most so many rows, or of one bucket that has more.

    :param turns: buckets in the order in which they are taken; None: in that of their numbers.
    """
    windows: list[list[int]] = []
    total = 0
    for bucket in range(len(bucket_rows)) if turns is None else turns:
        total += bucket_rows[bucket]
        if not windows or total > most_rows:
            windows.append([])
            total = bucket_rows[bucket]
        windows[-1].append(bucket)
    return [tuple(buckets) for buckets in windows]
