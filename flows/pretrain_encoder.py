"""The flow `pretrain-encoder`: the training stage alone, for a worker on the GPU machine.

In: a plan that `pretrain-bert` published. Out: the published run. The decision that matters: the two workers share nothing
but the store and the servers, so that what travels is the plan's key, and the lease on the run is held where it trains.
"""

from contextlib import suppress
from typing import Any

from prefect import flow, get_run_logger, runtime

from pipeline.errors import LeaseLostError, RegistryError, SettingsError
from pipeline.storage import Output
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.plan import STAGE as PLAN
from pipeline.training.plan import open_plan
from pipeline.training.run import STAGE, RunSettings, read_metrics

from . import launch, logs, pictures, registry, reports
from .live import Live
from .metrics import Curve, send_gently
from .names import training_name
from .places import artifacts, store
from .stages import ended, stage


@stage("train", asks_registry=True)
def train(run: RunSettings, params: dict[str, Any], tags: dict[str, str], name: str) -> Output:
    """Train in a child process, with live metrics; a run that is finished is found."""
    with store().lease(STAGE, run.key) as lease:
        if known := store().reuse(STAGE, run.key):
            Checkpoints.of(run).delete_after(-1)  # a kill may have left some
            reports.show_loss_curve(pictures.loss_curve(read_metrics(known)))
            return ended(known, known)
        datasets = [(split, f"shards/{run.inputs[split]}", run.inputs[split]) for split in ("train", "valid")]
        run_id = registry.start_run(name, params, tags, datasets)
        try:
            run.save()
            launch.train(run, get_run_logger().info, _watcher(run, run_id), lease=lease.token)
        except BaseException as error:
            with suppress(RegistryError, LeaseLostError):  # what ended the training is the error to show
                lease.check()  # else it is the run of whoever has taken it over
                registry.end_run(run_id, error)
            raise
        with suppress(RegistryError):  # the registration does so too
            registry.end_run(run_id)
        finished = store().find(STAGE, run.key)
        assert finished is not None
        return ended(finished, finished)


def _watcher(run: RunSettings, run_id: str) -> launch.OnMetrics:
    """Sends the metrics of a run to MLflow, its progress and its curve to Prefect, as they come."""
    curve, live = Curve(run_id), Live(run.training.steps)

    def on_metrics(rows: list[dict[str, Any]]) -> None:
        if why := send_gently(curve, rows):
            get_run_logger().warning("metrics wait: %s", why)
        live.show(rows)

    return on_metrics


def _flow_run_name() -> str:
    return training_name(runtime.flow_run.parameters)


@flow(name="pretrain-encoder", flow_run_name=_flow_run_name)
def pretrain_encoder(plan: str, model_name: str, params: dict[str, str], tags: dict[str, str]) -> dict[str, Any]:
    """Train a run that another flow has planned.

    Prefect's form takes descriptions from here, in this form alone. The flow that hands its training over fills in all of it.

    Args:
        plan: Key of the plan in the store
        model_name: Name in the registry
        params: Settings that MLflow shows with the run
        tags: Tags of the run in MLflow; run_key finds it again
    """
    logs.set_up()
    if store().find(PLAN, plan) is None:
        raise SettingsError(f"BERT_STORE: got {store().root}, which has no plan {plan}; wanted the store of the run that handed it over")
    with store().lease("flow", str(runtime.flow_run.id)):
        run = open_plan(store(), plan, artifacts() / "work")
        get_run_logger().info("run %s of %s: trains here, in %s", run.key, model_name, run.work)
        return dict(train(run, params, tags, model_name).facts)
