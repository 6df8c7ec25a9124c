"""Which process this is among those that train together, what they sum, and how they end together.

In: the environment that torchrun sets; without it, one process. Out: rank, device, sums over all ranks. The decision that
matters: what may fail on one rank alone is done between two steps, where all ranks learn of it and leave together, so that
nobody waits for a rank that has gone.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PipelineError, TrainingError
from ..lease import TOKEN, Lease
from ..lock import locked
from ..storage import Store
from .run import STAGE, RunSettings

AGENT = "BERT_AGENT"  # an environment variable: the process that started this rank and starts it again
LOCK = "lock"
PATIENCE = timedelta(minutes=30)  # of a rank for another, which may be writing a checkpoint to a store that is slow

T = TypeVar("T")

logger = logging.getLogger(__name__)


class LeftTogether(Exception):  # noqa: N818 it carries an error
    """All ranks leave the training. `error` is why, None on those that are not to say so."""

    def __init__(self, error: PipelineError | OSError | None) -> None:
        super().__init__(str(error or "another rank says why"))
        self.error = error


@dataclass(frozen=True)
class World:
    """This process among `size` on `nodes` machines.

    :param writer: the rank that writes: the first one of the machine that holds the run.
    """

    rank: int
    size: int
    device: torch.device
    writer: int = 0
    nodes: int = 1

    @property
    def writes(self) -> bool:
        return self.rank == self.writer

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of all ranks' values. It goes from CPU to CPU, so that no GPU is waited for."""
        if self.size == 1:
            return value
        found = torch.tensor(value)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def together(self, work: Callable[[], T]) -> T:
        """Do what may fail on this rank alone, with no sum over ranks in it; where it fails on any, all leave here.

        :raises LeftTogether: with the error of the first rank that failed, on that rank. One process raises its own error.
        """
        if self.size == 1:
            return work()
        found: T | None = None
        failure: PipelineError | OSError | None = None
        try:
            found = work()
        except (PipelineError, OSError) as error:
            failure = error
        first = self.size - self.largest(self.size - self.rank if failure else 0)
        if first < self.size:
            raise LeftTogether(failure if self.rank == first else None) from failure
        return cast(T, found)


def agent() -> int | None:
    """The process id of the agent of this project that started this rank; None: it was started otherwise."""
    return os.getppid() if os.environ.get(AGENT) == str(os.getppid()) else None


def die_with_agent() -> None:
    """Have the kernel end this rank where its agent is killed, so that none outlives the training (Linux alone)."""
    if sys.platform == "linux" and AGENT in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
        if not agent():  # it was killed before
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def alone_at(run: RunSettings) -> Iterator[Lease | None]:
    """Be the only one at a run: at its work folder on this machine, and at its key on all that use its store.

    Of several ranks one is so for all, and the others get None. Under an agent it is the agent that is alone, as long as it
    starts ranks anew, and the first rank of its machine acts under its lease.
    """
    first = os.environ.get("LOCAL_RANK") == "0" and TOKEN in os.environ if agent() else os.environ.get("RANK", "0") == "0"
    if not first:
        yield None
        return
    held = nullcontext() if agent() else locked(Path(run.work) / LOCK, "trains this run already", _tell)
    with Store(run.store).lease(STAGE, run.key) as lease, held:  # in the order of the flow and its child
        yield lease


def _tell(who: str) -> None:
    logger.info("%s; waiting for it", who)


def check_device(wanted: str) -> None:
    """See that this machine has the device.

    :raises TrainingError: it has no GPU, and one is wanted.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrainingError("training.device: got cuda, but torch sees no GPU here; set it to auto or cpu")


def _device(wanted: str, local_rank: int) -> torch.device:
    check_device(wanted)
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def join_world(wanted: str, writes: bool | None = None) -> Iterator[World]:
    """Join the other processes of a torchrun, or be alone.

    :param wanted: auto, cpu or cuda. :param writes: whether this rank writes; None: the first one does.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(wanted, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, device)
        return
    gpu = device.type == "cuda"
    # What is on the CPU goes over gloo beside NCCL, so that what ranks agree on never waits for a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE, device_id=device if gpu else None)
    try:
        world = World(rank, size, device, nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")))
        writer = world.largest(rank if (writes or (writes is None and rank == 0)) else 0)
        yield World(rank, size, device, writer, world.nodes)
    except LeftTogether:
        dist.destroy_process_group()
        raise
    # After any other error others may be in a sum with this rank: to wait for them would be to wait for ever.
    dist.destroy_process_group()
