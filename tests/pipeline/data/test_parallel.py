"""Threads keep order, raise what went wrong, and take up no more than they can work on."""

import itertools
import threading
import time

import pyarrow as pa
import pytest

from pipeline.data.parallel import map_in_threads


def test_results_come_in_the_order_of_the_calls() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number * number

    assert list(map_in_threads(slow_first, range(20))) == [number * number for number in range(20)]


def test_inputs_are_taken_up_as_results_are_fetched() -> None:
    endless = itertools.count()
    results = map_in_threads(lambda number: number, endless)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert next(endless) <= 10 + pa.cpu_count() + 1
    results.close()  # type: ignore[attr-defined]


def test_an_error_is_raised_in_its_turn_and_ends_the_threads() -> None:
    before = threading.active_count()

    def fail_at_three(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = map_in_threads(fail_at_three, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert threading.active_count() == before
