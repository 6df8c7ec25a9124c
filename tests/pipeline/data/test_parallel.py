"""Threads keep order, raise what went wrong, and take up no more than they can work on."""

import contextvars
import itertools
import threading
import time

import pyarrow as pa
import pytest

from pipeline.data.parallel import MOST_THREADS, map_in_threads


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


def test_calls_see_the_context_of_whoever_asks() -> None:
    """By which Prefect's loggers know their run."""
    run: contextvars.ContextVar[str] = contextvars.ContextVar("run", default="none")
    token = run.set("this one")
    try:
        assert list(map_in_threads(lambda _: run.get(), range(20))) == ["this one"] * 20
    finally:
        run.reset(token)


def test_a_machine_of_many_cores_does_not_take_many_calls_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "cpu_count", lambda: 1000)
    endless = itertools.count()
    results = map_in_threads(lambda number: number, endless)
    assert next(results) == 0
    assert next(endless) <= MOST_THREADS + 2
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
