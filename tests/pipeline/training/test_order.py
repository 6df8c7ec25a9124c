"""The order of rows: one window as numpy permutes it, many windows each row once an epoch, and any step without the ones before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.training.order import Order, windows_of


def numbers(order: Order, bucket_rows: list[int], step: int) -> list[int]:
    """The rows of a step, as numbers among those of all buckets."""
    starts = np.cumsum([0, *bucket_rows])
    window = np.concatenate([np.arange(starts[bucket], starts[bucket + 1]) for bucket in order.window(step).buckets])
    return window[order.rows(step)].tolist()


def test_a_split_of_few_rows_is_one_window_and_its_order_that_of_numpy() -> None:
    order = Order([10, 8, 7], batch_size=8, seed=3, most_rows=25)
    for epoch in (0, 1, 7):
        wanted = np.random.default_rng([3, epoch]).permutation(25)
        found = [order.rows(step) for step in range(4 * epoch, 4 * epoch + 4)]
        assert [len(rows) for rows in found] == [8, 8, 8, 1] and np.array_equal(np.concatenate(found), wanted)
        assert {order.window(step).buckets for step in range(4 * epoch, 4 * epoch + 4)} == {(0, 1, 2)}


def test_a_row_more_makes_windows_of_whole_buckets() -> None:
    rows = [10, 8, 8]
    order = Order(rows, batch_size=4, seed=3, most_rows=25)
    windows = [order.window(step) for step in range(order.window(0).end)]
    assert set(windows) == {windows[0]} and windows[0].rows == sum(rows[bucket] for bucket in windows[0].buckets) <= 25
    assert windows_of([3, 3, 9, 1, 1], 6) == [(0, 1), (2,), (3, 4)], "a bucket that alone is larger is a window of its own"
    assert windows_of([3, 3, 9, 1, 1], 6, [2, 0, 3, 4, 1]) == [(2,), (0, 3, 4), (1,)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
    st.integers(1, 150),
)
def test_every_row_comes_once_an_epoch_over_any_windows(rows: list[int], batch_size: int, seed: int, most_rows: int) -> None:
    order, step = Order(rows, batch_size, seed, most_rows), 0
    for epoch in range(3):
        seen: list[int] = []
        while order.window(step).epoch == epoch:
            window = order.window(step)
            assert window.first <= step < window.end and window.rows == sum(rows[bucket] for bucket in window.buckets)
            assert window.rows <= most_rows or len([bucket for bucket in window.buckets if rows[bucket]]) == 1
            found = numbers(order, rows, step)
            assert len(found) == batch_size or (step == window.end - 1 and found)
            seen += found
            step += 1
        assert sorted(seen) == list(range(sum(rows)))
    late = step - 1
    assert numbers(Order(rows, batch_size, seed, most_rows), rows, late) == numbers(order, rows, late), "a step depends on its number alone"


@pytest.mark.parametrize("most_rows", [40, 1000])
def test_epochs_and_seeds_have_orders_of_their_own(most_rows: int) -> None:
    rows = [17] * 12

    def epoch(seed: int, number: int) -> list[int]:
        order = Order(rows, 8, seed, most_rows)
        steps = [step for step in range(150) if order.window(step).epoch == number]
        return [row for step in steps for row in numbers(order, rows, step)]

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0)]
    assert all(sorted(order) == list(range(17 * 12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_windows_are_of_other_buckets_in_each_epoch_and_shuffled_each_in_its_own_way() -> None:
    order = Order([10] * 8, batch_size=20, seed=0, most_rows=20)
    epochs = [[order.window(step).buckets for step in range(start, start + 4)] for start in (0, 4, 8)]
    assert len({frozenset(map(frozenset, epoch)) for epoch in epochs}) == 3
    assert len({tuple(order.rows(step)) for step in range(12)}) == 12
    shuffled = np.random.default_rng([0, 0]).permutation(8).tolist()
    assert tuple(shuffled[:2]) == epochs[0][0] and shuffled != [row for row in order.rows(0).tolist() if row < 8]
