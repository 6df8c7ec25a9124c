"""Who builds the shards of a large corpus: Prefect's task runner that the settings name.

In: settings of the builders. Out: `Builders` for `pipeline`, which map pieces of work over the runner, each a task run on
the page of the flow that asks. The decision that matters: the runner is used by itself within the task that builds, not
through a flow of its own, so that pieces, their logs and their errors stand where the run's do; and what it started ends
with it, whatever ends it.
"""

import importlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from pipeline.data.parallel import Builders, threads
from pipeline.errors import PipelineError, SettingsError
from pipeline.settings import BuilderSettings

from . import logs

INSTALL = ".venv/bin/pip install -c constraints.txt -e '.[dask]'"
CONNECT_SECONDS = 30
NOBODY_SECONDS = 60.0  # without a worker at Dask's scheduler, after which a run does not wait any longer
_LOOK_SECONDS = 1.0
_DIED = {"BrokenProcessPool", "KilledWorker", "CancelledError", "FutureCancelledError", "CommClosedError"}

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@contextmanager
def builders(settings: BuilderSettings) -> Iterator[Builders]:
    """Start builders, within a run of a flow, and end them.

    :raises SettingsError: Dask is not installed. :raises PipelineError: nobody is at its address.
    """
    before = set(multiprocessing.active_children())
    with _runner(settings) as runner:
        pool = _Pool(runner, settings)
        try:
            yield Builders(settings.runner, pool.workers, pool.map)
        except BaseException:  # cancelling raises one that is no Exception
            if settings.runner == "processes":
                for child in set(multiprocessing.active_children()) - before:
                    child.kill()  # the runner would wait for what they are at
            raise


def _runner(settings: BuilderSettings) -> TaskRunner[Any]:
    if settings.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=settings.workers or threads())
    if settings.runner == "processes":
        return ProcessPoolTaskRunner(max_workers=_local_workers(settings), initializer=_end_with, initargs=(os.getpid(),))
    try:
        dask: Any = importlib.import_module("prefect_dask").DaskTaskRunner
    except ImportError as error:
        raise SettingsError(f"builders.runner: dask is not installed ({error}); {INSTALL}") from error
    if settings.address:
        return dask(address=settings.address, client_kwargs={"timeout": CONNECT_SECONDS})  # type: ignore[no-any-return]
    # Any port for what always listens, on this machine alone; and no limit of memory, past which a worker waits for ever.
    of_cluster = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    return dask(cluster_kwargs={"n_workers": _local_workers(settings), **of_cluster})  # type: ignore[no-any-return]


def _local_workers(settings: BuilderSettings) -> int:
    """Processes of this machine."""
    return settings.workers or os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """In a process of a pool: end when the parent is no more, for which it would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


@task(task_run_name="{piece}", cache_policy=NO_CACHE, persist_result=False)
def build_piece(function: Callable[[_In], _Out], piece: _In, one_thread: bool) -> _Out:
    """Make a piece of work.

    :param one_thread: the process has no more to work with, since there are as many processes as builders.
    """
    logs.set_up()
    if one_thread:
        pa.set_cpu_count(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return function(piece)


class _Pool:
    """A started runner."""

    def __init__(self, runner: TaskRunner[Any], settings: BuilderSettings) -> None:
        self._runner, self._settings = runner, settings
        self._client = _connect(runner, settings) if settings.runner == "dask" else None
        self._seen = time.monotonic()
        self.workers = settings.workers or self._found()

    def _found(self) -> int:
        """Builders that there are, where none is asked for."""
        if self._client is not None:
            return sum(self._client.nthreads().values())
        return threads() if self._settings.runner == "threads" else _local_workers(self._settings)

    def map(self, function: Callable[[_In], _Out], inputs: Sequence[_In]) -> Iterable[_Out]:
        """Results in the order of the inputs; the first error that comes is raised, and nothing else is begun."""
        # The next one waits at its builder, but all of an address need not be ours.
        most = self.workers * (1 if self._settings.address else 2)
        one_thread = self._settings.runner != "threads"
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        begun: dict[int, PrefectFuture[Any]] = {}
        results: dict[int, _Out] = {}
        while len(results) < len(inputs):
            while (number := len(begun)) < len(inputs) and number - len(results) < most:
                parameters = {"function": function, "piece": inputs[number], "one_thread": one_thread}
                begun[number] = self._runner.submit(build_piece, parameters)
                begun[number].add_done_callback(partial(_put, ended, number))
            try:
                number = ended.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                self._see_that_somebody_works()
                continue
            results[number] = self._result(begun[number], inputs[number])
        return [results[number] for number in range(len(inputs))]

    def _result(self, future: PrefectFuture[_Out], piece: object) -> _Out:
        try:
            return future.result()
        except Exception as error:
            if type(error).__name__ not in _DIED:
                raise
            todo = "set fewer builders.workers or more shards.buckets; the same command goes on from what is built"
            raise PipelineError(f"{piece}: its builder was killed, as the kernel does where memory runs out; {todo}") from error

    def _see_that_somebody_works(self) -> None:
        if self._client is None:
            return
        if self._client.nthreads():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > NOBODY_SECONDS:
            raise PipelineError(_nobody(self._settings.address))


def _put(ended: "queue.SimpleQueue[int]", number: int, future: PrefectFuture[Any]) -> None:
    ended.put(number)


def _connect(runner: Any, settings: BuilderSettings) -> Any:
    try:
        client = runner.client
    except OSError as error:
        todo = "start it there by `dask scheduler`, or set builders.address"
        if not settings.address:
            raise PipelineError(f"builders.runner: Dask's cluster of this machine does not start ({error})") from error
        raise PipelineError(f"builders.address: no scheduler answers at {settings.address} ({error}); {todo}") from error
    try:
        client.wait_for_workers(1 if settings.address else _local_workers(settings), timeout=NOBODY_SECONDS)
    except TimeoutError as error:
        raise PipelineError(_nobody(settings.address)) from error
    return client


def _nobody(address: str) -> str:
    where, todo = (address, f"start some by `dask worker {address}`; ") if address else ("Dask's cluster of this machine", "")
    return f"{where}: no worker there for {NOBODY_SECONDS:.0f} s; {todo}the same command goes on"
