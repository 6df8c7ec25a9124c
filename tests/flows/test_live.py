"""What a run's page shows while it trains."""

from itertools import pairwise
from typing import Any

import httpx
import pytest

from flows import live, pictures, reports
from flows.live import progress_text, thinned


def row(step: int, **more: Any) -> dict[str, Any]:
    means = {"mlm_loss_mean": 5.5, "next_sentence_loss_mean": 0.7}
    return {"kind": "train", "step": step, "mlm_loss": 5.0, "next_sentence_loss": 0.6, **means, "pairs_per_second": 64.2, **more}


HELD_OUT = {
    "kind": "held_out",
    "step": 500,
    "mlm_loss": 4.5,
    "unigram_loss": 6.5,
    "mlm_accuracy": 0.35,
    "next_sentence_loss": 0.66,
    "next_sentence_accuracy": 0.6,
}


def test_the_bar_says_step_losses_rate_and_time_left() -> None:
    told = progress_text(row(500, seconds=250.0), None, 2000)
    assert told == "step 500 of 2,000: mean MLM loss 5.500, mean NSP loss 0.700; 64 pairs/s, 12 min 30 s left"
    assert progress_text(row(500, seconds=250.0), HELD_OUT, 2000).startswith(told + "; held out: MLM loss 4.500 (unigram level 6.500)")


def test_a_long_runs_rows_are_thinned_from_the_first_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_ROWS", 100)
    rows: dict[int, Any] = {}
    for step in range(1, 1001):  # thinned again and again, as they come
        rows = thinned(rows | {step: row(step)})
        assert len(rows) <= 100
    steps = sorted(rows)
    assert steps[0] < 50 and steps[-1] == 1000
    assert max(after - before for before, after in pairwise(steps)) < 50, "as even at the beginning as at the end"
    few = {step: row(step) for step in range(1, 101)}
    assert thinned(few) == few


def test_a_server_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("nobody is there")

    figure = pictures.loss_curve([row(1), row(2)])
    monkeypatch.setattr(reports, "create_markdown_artifact", away)
    assert reports.show_loss_curve(figure) is None, "so that the next one tries to make it"
