"""The log of a run: `metrics.jsonl`, and lines on the terminal.

In: the losses of each step, as tensors on the device. Out: a JSON object a line, with running means. The decision that
matters: losses are fetched from the device once every few steps, so that no step waits for it.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from .stopwatch import Stopwatch


class Metrics:
    """Appends to a file; on a resumed run it goes on from the lines that it is given."""

    def __init__(self, path: Path, lines: Sequence[str] = ()) -> None:
        self._path = path
        aside = path.with_suffix(".new")
        aside.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        aside.replace(path)  # another file, by which whoever follows it knows that it begins anew
        self._pending: list[tuple[int, Tensor, float, int]] = []
        rows = [json.loads(line) for line in lines]
        steps = [row for row in rows if row["kind"] == "train"]
        self._mlm_sum = sum(row["mlm_loss"] for row in steps)
        self._next_sentence_sum = sum(row["next_sentence_loss"] for row in steps)
        self._steps = len(steps)
        self._seconds = steps[-1]["seconds"] if steps else 0.0
        self._pairs = steps[-1]["pairs"] if steps else 0
        self._clock = time.perf_counter()
        self.last: dict[str, Any] = steps[-1] if steps else {}
        self.writing = Stopwatch()

    def resume_clock(self) -> None:
        """Start counting training time here; what came since the last flush was not training."""
        self._clock = time.perf_counter()

    def add(self, step: int, mlm_loss: Tensor, next_sentence_loss: Tensor, gradient_norm: Tensor, rate: float, pairs: int) -> None:
        """Note a step, counted from 1, without waiting for the device."""
        self._pending.append((step, torch.stack([mlm_loss, next_sentence_loss, gradient_norm]).detach(), rate, pairs))

    def flush(self) -> None:
        """Fetch and write what was noted.

        :raises NonFiniteError: a loss or the gradient of a step was not finite; the steps before it are written.
        """
        if not self._pending:
            return
        values = torch.stack([row[1] for row in self._pending]).tolist()
        now = time.perf_counter()
        share = (now - self._clock) / len(self._pending)
        self._clock = now
        lines, bad = [], None
        for (step, _, rate, pairs), (mlm, next_sentence, norm) in zip(self._pending, values, strict=True):
            if not all(map(_finite, (mlm, next_sentence, norm))):
                bad = f"step {step}: got MLM loss {mlm}, next-sentence loss {next_sentence}, gradient norm {norm}"
                break
            self._mlm_sum, self._next_sentence_sum, self._steps = (
                self._mlm_sum + mlm,
                self._next_sentence_sum + next_sentence,
                self._steps + 1,
            )
            self._seconds, self._pairs = self._seconds + share, self._pairs + pairs
            self.last = {
                "kind": "train",
                "step": step,
                "mlm_loss": mlm,
                "next_sentence_loss": next_sentence,
                "mlm_loss_mean": self._mlm_sum / self._steps,
                "next_sentence_loss_mean": self._next_sentence_sum / self._steps,
                "gradient_norm": norm,
                "learning_rate": rate,
                "pairs": self._pairs,
                "pairs_per_second": self._pairs / max(self._seconds, 1e-9),
                "seconds": self._seconds,
            }
            lines.append(self.last)
        self._pending.clear()
        self._append(lines)
        if bad:
            raise NonFiniteError(f"{bad}; wanted finite numbers. Lower training.learning_rate or lengthen training.warmup_ratio")

    def held_out(self, step: int, figures: dict[str, float]) -> None:
        """Note an evaluation."""
        self._append([{"kind": "held_out", "step": step, **figures}])

    def text(self) -> str:
        """The file as it is."""
        return self._path.read_text("utf-8")

    def _append(self, rows: list[dict[str, Any]]) -> None:
        with self.writing, self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def _finite(value: float) -> bool:
    return value - value == 0.0


def progress_line(row: dict[str, Any], steps: int) -> str:
    """A step's line for the terminal."""
    step = row["step"]
    losses = f"mean MLM loss {row['mlm_loss_mean']:.3f}  mean NSP loss {row['next_sentence_loss_mean']:.3f}"
    left = (steps - step) * row["seconds"] / step
    return f"step {step:>{len(str(steps))}}/{steps}  {losses}  {row['pairs_per_second']:,.0f} pairs/s  {left:,.0f} s left"
