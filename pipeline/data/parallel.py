"""Work of many at once, results in order.

In: a function and what to call it with. Out: its results, in the order of the calls. The decision that matters: within a
process threads, since Arrow and numpy let go of the interpreter in most of their loops; and few calls are under way at a
time, so that memory does not grow with their number, and little with that of the processor's cores. Who else may work, in
other processes and on other machines, is handed in: this package knows none of them.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

MOST_THREADS = 8

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Mapper(Protocol):
    """Like `map`, but that all calls are known beforehand; function and inputs can be pickled."""

    def __call__(self, function: Callable[[_In], _Out], inputs: Sequence[_In]) -> Iterable[_Out]: ...


@dataclass(frozen=True)
class Builders:
    """Who makes large pieces of work, and how many of them at a time."""

    runner: str
    workers: int
    map: Mapper


@contextmanager
def builders_in_threads() -> Iterator[Builders]:
    """The threads of this process."""
    yield Builders("threads", threads(), map_in_threads)


def threads() -> int:
    """As many as Arrow takes (`pyarrow.cpu_count`, which heeds OMP_NUM_THREADS), at most `MOST_THREADS`."""
    return min(int(pa.cpu_count()), MOST_THREADS)


def map_in_threads(function: Callable[[_In], _Out], inputs: Iterable[_In]) -> Iterator[_Out]:
    """Like `map`, on `threads()` threads.

    Calls see the context variables of whoever asks for the results, so that their logs find the same run. An error of
    one is raised in its turn, once those that have begun are done; the others are not made.
    """
    most = threads()
    with ThreadPoolExecutor(most) as pool:
        pending: deque[Future[_Out]] = deque()
        try:
            for entry in inputs:
                pending.append(pool.submit(contextvars.copy_context().run, function, entry))
                if len(pending) > most:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
