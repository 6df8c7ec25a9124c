"""Which process this is among those that train together, and what they sum.

In: the environment that torchrun sets; without it, one process. Out: rank, device, sums over all ranks.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PipelineError, TrainingError
from ..lease import Lease
from ..storage import Store
from .run import STAGE, RunSettings

LOCK = "lock"

T = TypeVar("T")

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

    def together(self, work: Callable[[], T]) -> T:
        """Do what may fail on this rank alone, with no sum over ranks in it; where it fails on any, all fail here.

        :raises TrainingError: of a rank that did not fail, with what the first that did says.
        """
        if self.size == 1:
            return work()
        found: T | None = None
        failure: PipelineError | OSError | None = None
        try:
            found = work()
        except (PipelineError, OSError) as error:
            failure = error
        said: list[str] = [""] * self.size
        dist.all_gather_object(said, str(failure or ""))
        if failure:
            raise failure
        if first := next(filter(None, said), ""):
            raise TrainingError(first)
        return cast(T, found)

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
    with Store(run.store).lease(STAGE, run.key) as lease, _locked(Path(run.work)):  # in the order of the flow and its child
        yield lease


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold a work folder, which the system frees when its holder dies: a killed torchrun's ranks end a little later."""
    with (work / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            logger.info("process %s trains this run already; waiting for it", file.read().strip())
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


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
