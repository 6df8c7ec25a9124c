"""Work in threads, results in order.

In: a function and what to call it with. Out: its results, in the order of the calls. The decision that matters: threads,
not processes, since Arrow and numpy let go of the interpreter in their loops; and few calls are under way at a time, so
that memory does not grow with their number, and little with that of the processor's cores.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

MOST_THREADS = 8

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def map_in_threads(function: Callable[[_In], _Out], inputs: Iterable[_In]) -> Iterator[_Out]:
    """Like `map`, on as many threads as Arrow takes (`pyarrow.cpu_count`, which heeds OMP_NUM_THREADS), at most `MOST_THREADS`.

    Calls see the context variables of whoever asks for the results, so that their logs find the same run. An error of
    one is raised in its turn, once those that have begun are done; the others are not made.
    """
    threads = min(pa.cpu_count(), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[_Out]] = deque()
        try:
            for entry in inputs:
                pending.append(pool.submit(contextvars.copy_context().run, function, entry))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
