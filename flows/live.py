"""What a run's page shows while it trains: how far it is, when it ends, its loss curve.

In: rows of `metrics.jsonl`, as they come. Out: a progress bar and a picture on the page. The decision that matters: the
rows that a curve is drawn from are thinned out as they grow, so that neither memory nor the time of a drawing grows with
the run.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pipeline.training.metrics import held_out_text, mean_losses, seconds_left

from . import pictures, reports
from .markdown import duration

CURVE_SECONDS = 15.0
MOST_ROWS = 2_000  # of each kind
Row = Mapping[str, Any]


class Live:
    """The bar and the curve of a run that trains."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rows: dict[str, dict[int, Row]] = {"train": {}, "held_out": {}}
        self._bar = reports.start_progress()
        self._curve: UUID | None = None
        self._next_curve = 0.0

    def show(self, rows: Sequence[Row]) -> None:
        """Move the bar; draw the curve where it was not drawn for a while."""
        for row in rows:
            self._rows[row["kind"]][row["step"]] = row  # a resumed training tells its steps again
        train, held_out = self._rows["train"], self._rows["held_out"]
        if not train:
            return
        newest = train[max(train)]
        said = held_out[max(held_out)] if held_out else None
        reports.show_progress(self._bar, newest["step"], self._steps, progress_text(newest, said, self._steps))
        if time.monotonic() >= self._next_curve or newest["step"] == self._steps:
            for kind, known in self._rows.items():
                self._rows[kind] = thinned(known)
            figure = pictures.loss_curve([row for known in self._rows.values() for _, row in sorted(known.items())])
            self._curve = reports.show_loss_curve(figure, self._curve)
            self._next_curve = time.monotonic() + CURVE_SECONDS


def thinned(rows: dict[int, Row]) -> dict[int, Row]:
    """At most `MOST_ROWS` of them, evenly from the first step to the last: the last of each stretch of steps."""
    if len(rows) <= MOST_ROWS:
        return rows
    stretch = -(-(max(rows) + 1) // MOST_ROWS)
    kept = {step // stretch: step for step in sorted(rows)}
    return {step: rows[step] for step in kept.values()}


def progress_text(row: Row, held_out: Row | None, steps: int) -> str:
    """Step, losses and time left, by a step's row and the last evaluation's."""
    losses = ", ".join(f"mean {loss}" for loss in mean_losses(row))
    left = f"{row['pairs_per_second']:,.0f} pairs/s, {duration(seconds_left(row, steps))} left"
    measured = f"; held out: {held_out_text(held_out)}" if held_out else ""
    return f"step {row['step']:,} of {steps:,}: {losses}; {left}{measured}"
