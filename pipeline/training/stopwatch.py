"""How long something took, over all its times.

In: `with` blocks. Out: their seconds. The decision that matters: waiting counts, so a clock's time, not the processor's.
"""

import time
from typing import Self


class Stopwatch:
    """Runs inside `with`; `seconds` is the sum."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start
