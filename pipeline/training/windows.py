"""The windows of a split that training goes through.

In: a split and its order. Out: the rows of any step, with the examples that they are among. The decision that matters: one
window is in memory and, once half of its steps are taken, the next, which a thread has read by the time that it is wanted.
It calls numpy and Arrow alone: a thread that calls torch slows a step on the CPU.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ..shards import IntArray
from .order import Order, Window
from .split import LoadedWindow, Split


class Windows:
    """One window in memory, or two.

    :param steps: that are trained on the split; no window after them is read.
    """

    def __init__(self, split: Split, order: Order, steps: int) -> None:
        self.order = order
        self._split, self._steps = split, steps
        self._lock = threading.Lock()  # batches may be made in a thread
        self._buckets: tuple[int, ...] = ()
        self._loaded: LoadedWindow | None = None
        self._next: tuple[tuple[int, ...], Future[LoadedWindow]] | None = None

    def rows(self, step: int) -> tuple[int, LoadedWindow, IntArray]:
        """The epoch of a step, both counted from 0, its window, and its rows [B] in that window."""
        with self._lock:
            window = self.order.window(step)
            loaded = self._take(window.buckets)
            if step >= (window.first + window.end) // 2 and window.end < self._steps:
                self._read_ahead(self.order.window(window.end))
            return window.epoch, loaded, self.order.rows(step)

    def _take(self, buckets: tuple[int, ...]) -> LoadedWindow:
        if self._loaded is None or self._buckets != buckets:
            self._loaded = None  # before another is read
            ahead, self._next = self._next, None
            self._loaded = ahead[1].result() if ahead and ahead[0] == buckets else self._split.load(buckets)
            self._buckets = buckets
        return self._loaded

    def _read_ahead(self, window: Window) -> None:
        if self._next or window.buckets == self._buckets:
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="window")
        self._next = window.buckets, pool.submit(self._split.load, window.buckets)
        pool.shutdown(wait=False)  # the thread ends with its work
