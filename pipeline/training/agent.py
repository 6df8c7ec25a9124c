"""The agent: it starts the ranks of this machine and, where one dies, all ranks again (torchrun).

In: a run, and how many ranks. Out: a published run, or an error. The decision that matters: the agent holds the run while
ranks come and go, and starts them again only after a death that gave no reason, since a rank that says why would say it again.
"""

import logging
import os
import signal
import socket
import time

import torch
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from ..errors import TrainingError
from ..lease import TOKEN
from ..storage import LEASES, Store
from .distributed import AGENT, PATIENCE, alone_at, check_device
from .plan import publish_plan
from .run import FILE, STAGE, RunSettings

MAX_RESTARTS = 3
_POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


def device_count(wanted: str) -> int:
    """How many ranks this machine has: one for each GPU, or one. Does not initialise CUDA."""
    return max(1, torch.cuda.device_count()) if wanted != "cpu" else 1


def train_together(run: RunSettings, ranks: int, *, joins: bool) -> int:
    """Train a run with several ranks.

    :param ranks: of this machine.
    :param joins: another machine holds the run, the one at `training.rendezvous`.
    :returns: the exit status; 1: a rank has said why.
    :raises TrainingError: ranks died too often, or the machines do not find one another.
    """
    check_device(run.training.device)
    store = Store(run.store)
    if joins:
        os.environ.pop(TOKEN, None)
        if not _wait_for_first(run, store):
            return _found(run)
        return _start(run, ranks, is_host=False)
    with alone_at(run) as lease:
        assert lease is not None
        if store.find(STAGE, run.key):  # whoever was at it has finished it
            return _found(run)
        if run.training.nodes > 1:
            plan = publish_plan(store, run).key
            logger.info("waiting for %d other machines; on each of them, with FOLDER one of its own:", run.training.nodes - 1)
            logger.info("  python -m %s --join --plan %s --store %s --work FOLDER", __package__, plan, store.root)
        os.environ[TOKEN] = lease.token
        return _start(run, ranks, is_host=True)


def _found(run: RunSettings) -> int:
    logger.info("%s: found, nothing to do", Store(run.store).address(STAGE, run.key))
    return 0


def _start(run: RunSettings, ranks: int, *, is_host: bool) -> int:
    run.save()
    os.environ[AGENT] = str(os.getpid())
    # Each start has a store of its own. In the one that torchrun shares among starts, ranks find the addresses of dead ones, and a
    # machine that comes back finds none.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if ranks > 1:  # torchrun would set one thread for each
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    try:
        torchrun.run(torchrun.parse_args(arguments(run, ranks, is_host=is_host)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        raise TrainingError(_how_they_ended(error)) from error
    except SignalException as error:  # the ranks were ended with it
        return 128 + int(error.sigval)
    except (RendezvousError, DistError) as error:
        if Store(run.store).find(STAGE, run.key):  # a machine that came too late to train
            return 0
        why = error.__cause__ or error
        if run.training.nodes == 1:
            raise TrainingError(f"the ranks of this machine do not find one another: {why}; start the run again") from error
        todo = f"start the run on all {run.training.nodes} machines, and see that each reaches the address"
        raise TrainingError(f"training.rendezvous {run.training.rendezvous}: {why}; {todo}") from error
    return 0 if Store(run.store).find(STAGE, run.key) else 1


def arguments(run: RunSettings, ranks: int, *, is_host: bool) -> list[str]:
    """What torchrun is told."""
    settings = run.training
    meeting = ["--standalone"]
    if settings.nodes > 1:
        wait = int(PATIENCE.total_seconds())
        meeting = [f"--nnodes={settings.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={settings.rendezvous}", f"--rdzv-id={run.key}"]
        meeting += [f"--rdzv-conf=is_host={str(is_host).lower()},join_timeout={wait}"]
    own = [f"--nproc-per-node={ranks}", f"--max-restarts={MAX_RESTARTS}"]
    return [*meeting, *own, "-m", str(__package__), f"{run.work}/{FILE}"]


def _how_they_ended(error: ChildFailedError) -> str:
    """The last deaths in one line."""
    ends = []
    for rank, failure in sorted(error.failures.items()):
        how = signal.Signals(-failure.exitcode).name if failure.exitcode < 0 else f"exit status {failure.exitcode}"
        ends.append(f"rank {rank} by {how}")
    killed = any(failure.exitcode == -signal.SIGKILL for failure in error.failures.values())
    hint = "; the kernel kills so where memory runs out: lower training.micro_batch_size" if killed else ""
    ended = f"training ended {MAX_RESTARTS + 1} times without a reason, at last {', '.join(ends)}{hint}"
    return f"{ended}; the same command goes on from the last checkpoint"


def _wait_for_first(run: RunSettings, store: Store) -> bool:
    """Wait until the machine that holds the run wants others. Returns whether it does; else the run is finished.

    :raises TrainingError: nobody answers, and nobody is at the run.
    """
    host, _, port = run.training.rendezvous.rpartition(":")
    sign: object = None
    seen_at = time.monotonic()
    while not store.find(STAGE, run.key):
        try:
            socket.create_connection((host, int(port)), timeout=_POLL_SECONDS).close()
            return True
        except OSError:
            pass
        leases = f"{store.root}/{LEASES}"
        now = [store.read(f"{leases}/{name}") for name in store.children(leases) if name.startswith(f"{STAGE}-{run.key}.")]
        if now != sign:  # it may itself wait for another training of this run, however long that takes
            sign, seen_at = now, time.monotonic()
        if time.monotonic() - seen_at > PATIENCE.total_seconds():
            raise TrainingError(f"training.rendezvous {run.training.rendezvous}: nobody answers; start the run on that machine")
        time.sleep(_POLL_SECONDS)
    return False
