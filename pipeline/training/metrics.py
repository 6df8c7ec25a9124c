"""The log of a run: `metrics.jsonl`, and lines on the terminal.

In: the losses of each step, as tensors on the device. Out: a JSON object a line, with running means. The decision that
matters: losses are fetched from the device once every few steps, so that no step waits for it.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from .stopwatch import Stopwatch

LOSSES = {"mlm_loss": "MLM loss", "next_sentence_loss": "NSP loss"}
"""What they are called in a row and in a line; a run without a pair task has the first alone."""


@dataclass(frozen=True)
class _Step:
    """A step that is not yet written: its losses and gradient norm are still on the device."""

    number: int
    losses: tuple[str, ...]
    values: Tensor
    rate: float
    pairs: int


class Metrics:
    """Appends to a file; on a resumed run it goes on from the lines that it is given."""

    def __init__(self, path: Path, lines: Sequence[str] = ()) -> None:
        self._path = path
        aside = path.with_suffix(".new")
        aside.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        aside.replace(path)  # another file, by which whoever follows it knows that it begins anew
        self._pending: list[_Step] = []
        rows = [json.loads(line) for line in lines]
        steps = [row for row in rows if row["kind"] == "train"]
        self._sums = {name: sum(row[name] for row in steps) for name in LOSSES if not steps or name in steps[0]}
        self._steps = len(steps)
        self._seconds = steps[-1]["seconds"] if steps else 0.0
        self._pairs = steps[-1]["pairs"] if steps else 0
        self._clock = time.perf_counter()
        self.last: dict[str, Any] = steps[-1] if steps else {}
        self.writing = Stopwatch()

    def resume_clock(self) -> None:
        """Start counting training time here; what came since the last flush was not training."""
        self._clock = time.perf_counter()

    def add(self, step: int, losses: Mapping[str, Tensor], gradient_norm: Tensor, rate: float, pairs: int) -> None:
        """Note a step, counted from 1, without waiting for the device.

        :param losses: those of `LOSSES` that the run has, the same ones at each step.
        """
        values = torch.stack([*losses.values(), gradient_norm]).detach()
        self._pending.append(_Step(step, tuple(losses), values, rate, pairs))

    def flush(self) -> None:
        """Fetch and write what was noted.

        :raises NonFiniteError: a loss or the gradient of a step was not finite; the steps before it are written.
        """
        if not self._pending:
            return
        fetched = torch.stack([step.values for step in self._pending]).tolist()
        now = time.perf_counter()
        share = (now - self._clock) / len(self._pending)
        self._clock = now
        lines, bad = [], None
        for step, (*values, norm) in zip(self._pending, fetched, strict=True):
            losses = dict(zip(step.losses, values, strict=True))
            if not all(map(math.isfinite, (*values, norm))):
                found = ", ".join(f"{LOSSES[name]} {value}" for name, value in losses.items())
                bad = f"step {step.number}: got {found}, gradient norm {norm}"
                break
            lines.append(self._row(step, losses, norm, share))
        self._pending.clear()
        self._append(lines)
        if bad:
            raise NonFiniteError(f"{bad}; wanted finite numbers. Lower training.learning_rate or lengthen training.warmup_ratio")

    def _row(self, step: "_Step", losses: dict[str, float], norm: float, seconds: float) -> dict[str, Any]:
        self._sums = {name: self._sums[name] + loss for name, loss in losses.items()}
        self._steps += 1
        self._seconds, self._pairs = self._seconds + seconds, self._pairs + step.pairs
        self.last = {
            "kind": "train",
            "step": step.number,
            **losses,
            **{f"{name}_mean": total / self._steps for name, total in self._sums.items()},
            "gradient_norm": norm,
            "learning_rate": step.rate,
            "pairs": self._pairs,
            "pairs_per_second": self._pairs / max(self._seconds, 1e-9),
            "seconds": self._seconds,
        }
        return self.last

    def held_out(self, step: int, figures: dict[str, float]) -> None:
        """Note an evaluation."""
        self._append([{"kind": "held_out", "step": step, **figures}])

    def text(self) -> str:
        """The file as it is."""
        return self._path.read_text("utf-8")

    def _append(self, rows: list[dict[str, Any]]) -> None:
        with self.writing, self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def progress_line(row: dict[str, Any], steps: int) -> str:
    """A step's line for the terminal."""
    step = row["step"]
    losses = "  ".join(f"mean {loss}" for loss in mean_losses(row))
    left = seconds_left(row, steps)
    return f"step {step:>{len(str(steps))}}/{steps}  {losses}  {row['pairs_per_second']:,.0f} pairs/s  {left:,.0f} s left"


def seconds_left(row: Mapping[str, Any], steps: int) -> float:
    """How long training goes on after a step's row, at the rate of the steps so far."""
    return float((steps - row["step"]) * row["seconds"] / row["step"])


def held_out_line(step: int, figures: Mapping[str, float]) -> str:
    """An evaluation's line for the terminal."""
    return f"step {step}: held-out {held_out_text(figures)}"


def mean_losses(row: Mapping[str, Any]) -> list[str]:
    """The running means of a row, each with its name."""
    return [f"{title} {row[f'{name}_mean']:.3f}" for name, title in LOSSES.items() if f"{name}_mean" in row]


def held_out_text(figures: Mapping[str, float]) -> str:
    """An evaluation in words."""
    mlm = f"MLM loss {figures['mlm_loss']:.3f} (unigram level {figures['unigram_loss']:.3f}), accuracy {figures['mlm_accuracy']:.3f}"
    if "next_sentence_loss" not in figures:
        return mlm
    return f"{mlm}; NSP loss {figures['next_sentence_loss']:.3f}, accuracy {figures['next_sentence_accuracy']:.3f}"
