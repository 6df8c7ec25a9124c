"""Which process this is among those that train together, and what they sum.

In: the environment that torchrun sets; without it, one process. Out: rank, device, sums over all ranks.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import TrainingError
from ..lease import Lease
from ..lock import locked
from ..storage import Store
from .run import STAGE, RunSettings

LOCK = "lock"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """This process among `size`; rank 0 writes."""

    rank: int
    size: int
    device: torch.device

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def alone_at(run: RunSettings) -> Iterator[Lease | None]:
    """Be the only one at a run: at its work folder on this machine, and at its key on all that use its store.

    Of a torchrun, rank 0 is so for all, and the others, who get None, wait for it when they meet.
    """
    if os.environ.get("RANK", "0") != "0":
        yield None
        return
    # In the order of the flow and its child. The folder too, since a killed torchrun's ranks end a little later.
    with (
        Store(run.store).lease(STAGE, run.key) as lease,
        locked(Path(run.work) / LOCK, "trains this run already", lambda who: logger.info("%s; waiting for it", who)),
    ):
        yield lease


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrainingError("training.device: got cuda, but torch sees no GPU here; set it to auto or cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def join_world(wanted: str) -> Iterator[World]:
    """Join the other processes of a torchrun, or be alone.

    :param wanted: auto, cpu or cuda.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(wanted, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()
