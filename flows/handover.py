"""Training handed to a worker of another machine, by a run of the deployment that `training.deployment` names.

In: a planned run. Out: the published run, found in the store. The decision that matters: the Prefect server says who is at
it, the store what was done. Nothing is lost with a machine: a run that crashed is submitted again and goes on from the
newest checkpoint, for ever while there are new ones.
"""

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar, cast
from uuid import UUID

import httpx
from prefect import get_run_logger, runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling
from prefect.utilities.urls import url_for

from pipeline.addresses import refuse_credentials
from pipeline.errors import SettingsError, TrainingError, some
from pipeline.storage import Output
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.plan import publish_plan
from pipeline.training.run import STAGE, RunSettings

from .names import training_name
from .places import store

POLL_SECONDS = 2.0
MOST_CRASHES = 3  # in a row without a new checkpoint
_ASK_AGAIN_SECONDS = 10.0
_TOO_BUSY = 500  # from this status on a server may answer better later
_FAILED = "encountered an exception: "  # Prefect's own words before an error's type and message

T = TypeVar("T")


def is_wanted(deployment: str) -> bool:
    """Whether this flow run hands its training over; said where the setting alone would say otherwise.

    :param deployment: of the settings, empty: none.
    :raises SettingsError: the server has no such deployment. Known before any work.
    """
    if not deployment:
        return False
    if runtime.deployment.id is None:
        get_run_logger().info("training.deployment: %s is for runs of a deployment; this one trains in place", deployment)
        return False
    with get_client(sync_client=True) as client:
        try:
            found = _patiently(lambda: client.read_deployment_by_name(deployment))
        except ObjectNotFound:
            todo = "bring it by `prefect deploy`, or leave the setting empty to train in place"
            raise SettingsError(f"training.deployment: got {deployment!r}, which the Prefect server does not have; {todo}") from None
        get_run_logger().info("training goes to %s; %s", deployment, _workers(client, found.work_pool_name or ""))
    return True


def find_trained(run: RunSettings) -> Output | None:
    """The run, where it is published and whole."""
    if trained := store().whole(STAGE, run.key):
        Checkpoints.of(run).delete_after(-1)  # a kill may have left some
    return trained


def train_elsewhere(run: RunSettings, params: Mapping[str, Any], tags: Mapping[str, str], model_name: str) -> Output:
    """Have a run trained by the deployment that its settings name, and wait for it.

    :param params: that MLflow shows with the run; so are `tags`. They travel as parameters, which are recorded.
    :raises TrainingError: it failed, was cancelled, or crashed again and again without a new checkpoint.
    """
    parameters = {"plan": publish_plan(store(), run).key, "model_name": model_name, "params": _texts(params), "tags": _texts(tags)}
    crashes, checkpoints = 0, Checkpoints.of(run)
    for attempt in count(1):
        step = checkpoints.newest()
        child = _run_once(run.training.deployment, parameters, attempt)
        if trained := store().whole(STAGE, run.key):  # also by a child that crashed after its work
            return trained
        if (state := child.state) is None or state.type != StateType.CRASHED:
            raise _error(child, run)
        why = (state.message or "nobody knows why").partition(". ")[0].rstrip(".")  # what follows is for runs that nobody waits for
        newest = checkpoints.newest()
        crashes = 0 if newest > step else crashes + 1
        if crashes == MOST_CRASHES:
            raise TrainingError(f"{_name(child)}: crashed {crashes} times in a row without a new checkpoint, at last: {why}")
        goes_on = f"goes on from the checkpoint of step {newest}" if newest else "begins again, since there is no checkpoint yet"
        get_run_logger().warning("%s: crashed: %s; another is submitted, which %s", _name(child), why, goes_on)
    raise AssertionError("unreachable")


def _run_once(deployment: str, parameters: dict[str, Any], attempt: int) -> FlowRun:
    """Submit a run and wait for its end, whatever that is. What ends the wait ends the run too."""
    ours = f"{runtime.flow_run.id}-{runtime.flow_run.run_count}-{attempt}"  # a request whose answer got lost makes no second run

    def submit() -> FlowRun:
        name = training_name(parameters)
        return cast(FlowRun, run_deployment(deployment, parameters=parameters, flow_run_name=name, idempotency_key=ours, timeout=0))

    child = None
    try:
        child = _patiently(submit)
        get_run_logger().info("%s: submitted to %s, %s", _name(child), deployment, url_for(child) or child.id)
        return _wait(child.id)
    except BaseException:  # cancelling a task raises one that is no Exception
        if child is not None:
            _cancel(child)
        raise


def _wait(run: UUID) -> FlowRun:
    """Wait for the end of a flow run, and say how it stands, once for each change.

    :raises TrainingError: it was deleted.
    """
    told = None
    with get_client(sync_client=True) as client:
        while True:
            try:
                child = _patiently(lambda: client.read_flow_run(run))
            except ObjectNotFound:
                raise TrainingError(f"flow run {run}: was deleted; run this flow again, which goes on from the last checkpoint") from None
            state = child.state
            if state and state.is_final():
                return child
            if state and (stands := _stands(client, child, state)) != told:
                told = stands
                get_run_logger().info("%s: %s", _name(child), stands)
            time.sleep(POLL_SECONDS)


def _stands(client: SyncPrefectClient, child: FlowRun, state: State[Any]) -> str:
    if state.type != StateType.SCHEDULED:
        return f"{state.name}{f', {state.message}' if state.message else ''}"
    pool = child.work_pool_name or ""
    return f"{state.name}, waiting for a worker of pool {pool}; {_workers(client, pool)}"


def _workers(client: SyncPrefectClient, pool: str) -> str:
    """How many workers a pool has that are alive, and at what they are."""
    if not pool:
        return "the deployment has no work pool, so no worker takes it"
    online = filters.WorkerFilter(status=filters.WorkerFilterStatus(any_=["ONLINE"]))
    found = _patiently(lambda: client.read_workers_for_work_pool(pool, online))
    if not found:
        return f"none is online: start one with `prefect worker start --pool {pool} --type process --limit 1`"
    at_work = filters.FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
    runs = _patiently(
        lambda: client.read_flow_runs(
            work_pool_filter=filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[pool])),
            flow_run_filter=filters.FlowRunFilter(state=filters.FlowRunFilterState(type=at_work)),
        )
    )
    names = f"at {some(sorted(repr(run.name) for run in runs), 3)}" if runs else "free"
    return f"{len(found)} of pool {pool} online, {names}"


def _cancel(child: FlowRun) -> None:
    """End a flow run; one that has not begun is Cancelled at once."""
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(child.id, Cancelling(message="The run that waited for it has ended."), force=False)
    except Exception as error:  # what ended the wait is the error to show; Prefect ends children of cancelled runs too, later
        get_run_logger().warning("%s: not cancelled: %s; cancel it on its page", _name(child), error)


def _error(child: FlowRun, run: RunSettings) -> TrainingError:
    """Why a child that ended has not trained the run, in its own words."""
    state = child.state
    if state and state.type == StateType.COMPLETED:
        wanted = f"give its worker the same BERT_STORE, {store().root}"
        return TrainingError(f"{_name(child)}: completed, but there is no run/{run.key} in the store; {wanted}")
    if state and state.type == StateType.CANCELLED:
        return TrainingError(f"{_name(child)}: was cancelled; run this flow again, which goes on from the last checkpoint")
    said = (state.message if state else None) or "said nothing"
    kind, colon, message = said.rpartition(_FAILED)[2].partition(": ")
    return TrainingError(f"{_name(child)}: {message if colon and kind.isidentifier() else said}")


def _name(child: FlowRun) -> str:
    return f"training run {child.name!r}"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """As texts, as which MLflow keeps them.

    :raises SettingsError: one holds an address with credentials.
    """
    texts = {name: str(value) for name, value in values.items()}
    for name, text in texts.items():
        refuse_credentials(name, text)
    return texts


def _patiently(ask: Callable[[], T]) -> T:
    """Ask the Prefect server until it answers: training elsewhere goes on while it is away."""
    told = False
    while True:
        try:
            return ask()
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < _TOO_BUSY:
                raise
            if not told:
                told = True
                get_run_logger().warning("the Prefect server does not answer (%s); asking again", str(error) or type(error).__name__)
        time.sleep(_ASK_AGAIN_SECONDS)
