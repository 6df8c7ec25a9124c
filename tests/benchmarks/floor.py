"""The floor of a training step: its own matrix products, at their own shapes, timed alone.

    python floor.py RUN.json fp32|bf16

Takes one real step of the run and notes each product that torch computes in it, forward and backward; then computes
those alone, from operands of the same shapes and strides. Prints one JSON object: seconds and TFLOP a step, pairs/s.
"""

import json
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.training.distributed import World
from pipeline.training.loop import Trainer
from pipeline.training.memory import keep_freed_memory
from pipeline.training.run import read_run

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
TURNS = 5
Operand = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides


class NoteProducts(TorchDispatchMode):
    """Notes the operands of each matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Operand, Operand]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            a, b = ((tuple(operand.shape), tuple(operand.stride())) for operand in args[-2:])
            self.found.append((a, b))
        return func(*args, **(kwargs or {}))


def operand(like: Operand, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(*like, dtype=dtype).normal_()


def main() -> None:
    run, dtype = read_run(Path(sys.argv[1])), {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2]]
    keep_freed_memory()
    trainer = Trainer(run, World(0, 1, torch.device("cpu")))
    with closing(trainer.loader), NoteProducts() as noted:
        trainer.take_step()
    operands = {like: operand(like, dtype) for pair in noted.found for like in pair}
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        for a, b in noted.found:
            torch.matmul(operands[a], operands[b])
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    flop = sum(2 * torch.Size(a[0]).numel() * b[0][-1] for a, b in noted.found)
    row = {"seconds": seconds, "products": len(noted.found), "tflop": flop / 1e12, "pairs_per_second": run.training.batch_size / seconds}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
