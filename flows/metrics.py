"""The curve of a run in MLflow, each step once, however often training is killed and goes on.

In: rows of `metrics.jsonl`, which a resumed training tells from its first step again. Out: metrics by step. The decision
that matters: what MLflow has already is asked once and never sent again; a resumed step has the same losses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import RegistryError

from . import registry

PRETRAINING = {"train": "mlm_loss", "held_out": "mlm_loss"}
"""A metric that stands in every row of a kind."""


class Curve:
    """The metrics of one run.

    :param always: for each kind of row a metric that stands in every one.
    """

    def __init__(self, run_id: str, always: Mapping[str, str] = PRETRAINING) -> None:
        self._run_id, self._always = run_id, always
        self._last = self._last_steps()
        self._waiting: list[Mapping[str, Any]] = []
        self._unsure = False

    def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows that MLflow does not have; those that it refuses go with the next call.

        :raises RegistryError: it could not be reached, or refuses.
        """
        self._waiting += rows
        if self._unsure:  # an answer that was lost may have been a yes
            self._last = self._last_steps()
        self._unsure = True
        self._waiting = [row for row in self._waiting if row["step"] > self._last[row["kind"]]]
        while part := self._waiting[: registry.ROWS]:
            registry.log_rows(self._run_id, part)
            self._last |= {row["kind"]: row["step"] for row in part}
            del self._waiting[: registry.ROWS]
        self._unsure = False

    def _last_steps(self) -> dict[str, int]:
        return {kind: registry.last_step(self._run_id, f"{kind}/{metric}") for kind, metric in self._always.items()}


def send_gently(curve: Curve, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Log rows while training runs, which is worth more than its curve. Returns why they wait, where they do."""
    try:
        curve.send(rows)
    except RegistryError as error:
        return str(error)
    return None
