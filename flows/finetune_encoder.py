"""The flow `finetune-encoder`: from a registered encoder and labelled data to a registered model of a task.

The tasks stand in the order in which they run; each calls `pipeline` and hands on addresses. A stage whose output is there
does nothing, and its task ends in the state Cached.
"""

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger, runtime
from pydantic import Field

from pipeline.addresses import refuse_credentials, without_credentials
from pipeline.comparison import Comparison
from pipeline.errors import RegistryError
from pipeline.export import STAGE as ENCODER
from pipeline.finetuning.evaluation import compare, evaluate
from pipeline.finetuning.labelled import HELD_OUT, TRAIN, Columns, publish_labelled, read_labelled
from pipeline.finetuning.loop import checkpoints
from pipeline.finetuning.prediction import Finetuned
from pipeline.finetuning.run import FACTS, METRICS, FinetuningRun
from pipeline.finetuning.settings import PAIR_CLASSIFICATION, QUESTION_ANSWERING, FinetuningOverrides, FinetuningSettings
from pipeline.finetuning.start import publish_start
from pipeline.storage import Output
from pipeline.training.run import read_metrics

from . import gate, launch, logs, models, registry, reports, versions
from .finetuned_card import finetuned_card, name_description
from .metrics import Curve, send_gently
from .names import PATTERN, RANDOM, finetuned_name
from .places import artifacts, store
from .pretrain_bert import RECORDED
from .registry import Version
from .stages import ended, found, stage

Result = dict[str, Any]
TaskName = Literal["classification", "pair_classification", "question_answering"]


@dataclass(frozen=True)
class Start:
    """The encoder to start from. :param version: None: it came from a folder."""

    output: Output
    version: Version | None
    name: str

    @property
    def shown(self) -> str:
        return self.version.uri if self.version else f"{self.name} ({self.output.stage}/{self.output.key})"

    @property
    def tags(self) -> dict[str, str]:
        return {"encoder_key": self.output.key} | ({"encoder_version": self.version.uri} if self.version else {})


@stage("find encoder", asks_registry=True)
def find_encoder(encoder: str) -> Start:
    """Find a registered encoder, in the store or else in the registry, or take a folder's."""
    if not encoder.startswith("models:"):
        output = publish_start(store(), Path(encoder))
        return ended(output, Start(output, None, Path(encoder).absolute().name))
    version = versions.at(encoder)
    known = store().whole(ENCODER, versions.encoder_key(version))
    output = known or publish_start(store(), models.download(version.uri))
    return ended(output, Start(output, version, version.name))


@stage("check name", asks_registry=True)
def check_name(name: str, task: str) -> None:
    """See that the name can be had, before any work."""
    versions.refuse_other_kinds(name, task)


@stage("labelled data")
def label(task: str, train: str, held_out: str | None, columns: Columns, settings: FinetuningSettings) -> Output:
    """Read, check and publish the data."""
    output = publish_labelled(store(), task, train, held_out, columns, settings.held_out_share)
    for split in (TRAIN, HELD_OUT):
        get_run_logger().info("%s: %s", split, ", ".join(f"{name} {value}" for name, value in output.facts[split].items()))
    return ended(output, output)


@stage("fine-tune", asks_registry=True)
def tune(run: FinetuningRun, params: dict[str, Any], tags: dict[str, str], name: str) -> Output:
    """Fine-tune in a child process, with live metrics; a run that is finished is found."""
    say = get_run_logger().info

    def build(folder: Path) -> dict[str, Any]:
        (Path(run.work) / METRICS).unlink(missing_ok=True)  # of a run that was killed
        command = [sys.executable, "-m", "pipeline.finetuning", str(run.save()), str(folder)]
        run_id = registry.start_run(name, params, tags, [(split, run.labelled, run.inputs["labelled"]) for split in (TRAIN, HELD_OUT)])
        try:
            with launch.alone_on(launch.visible_gpus(run.settings.device), run.key, say):
                launch.launch(
                    command, Path(run.work), say, _watcher(run_id, run.task), launch.environment(), takes_memory="finetuning.batch_size"
                )
        except BaseException as error:
            with suppress(RegistryError):  # what ended the training is the error to show
                registry.end_run(run_id, error)
            raise
        with suppress(RegistryError):  # the registration does so too
            registry.end_run(run_id)
        return dict(json.loads((Path(run.work) / FACTS).read_text("utf-8")))

    output = store().make(run.recipe, build, recorded={"settings": run.settings.as_dict()}, verify=True)
    checkpoints(run).delete_after(-1)
    return ended(output, output)


def _watcher(run_id: str, task: str) -> launch.OnMetrics:
    """Sends metrics to MLflow as they come."""
    curve = Curve(run_id, _always(task))

    def on_metrics(rows: list[dict[str, Any]]) -> None:
        if why := send_gently(curve, rows):
            get_run_logger().warning("metrics wait: %s", why)

    return on_metrics


@stage("register", asks_registry=True)
def register(name: str, finetuned: Output, labelled: Output, start: Start, params: dict[str, Any], tags: dict[str, str]) -> Version:
    """Register the model with its card, or find the version that holds it."""
    task = finetuned.facts["task"]

    def card(made: Version) -> str:
        return finetuned_card(made, finetuned, labelled, start.shown)

    with store().local(finetuned) as folder, store().lease("version", f"{name}-{finetuned.key}"):
        version = models.find_version(name, finetuned.key, models.FINETUNED)
        known = version is not None
        if version is not None:
            models.complete(version, card(version))
        else:
            run_id = registry.find_run(finetuned.key) or registry.start_run(name, params, tags)  # where another registry was in use
            Curve(run_id, _always(task)).send(read_metrics(finetuned))
            figures = {f"held_out_{figure}": f"{value:.6f}" for figure, value in finetuned.facts["held_out"].items()}
            version = models.register(
                name,
                run_id,
                Path(folder),
                tags=tags | figures | {"finetuned_key": finetuned.key},
                description=card,
                tables={},
                figures={},
                kind=models.FINETUNED,
            )
            registry.end_run(run_id)
        models.describe_name(name, name_description(task, start.shown))
    reports.show_card(card(version))
    reports.show_version(version.uri, version.page)
    return found(f"{version.uri}: found, nothing to do", version) if known else version


def _always(task: str) -> dict[str, str]:
    """For each kind of row a metric that stands in every one."""
    return {"train": "loss", "held_out": "f1" if task == QUESTION_ANSWERING else "accuracy"}


@stage("gate", asks_registry=True)
def decide(candidate: Version, finetuned: Output, labelled: Output) -> str:
    """Make the version champion where it is at least as good as the present one on the same held-out rows, else challenger."""
    ours = finetuned.facts["held_out"]

    def against(champion: Finetuned | None) -> Comparison:
        rows = read_labelled(store(), labelled, HELD_OUT)
        return compare(ours, evaluate(champion, rows) if champion else None, len(rows))

    with store().lease("gate", candidate.name):
        decision = gate.judge(candidate, lambda version: Finetuned.load(models.download(version.uri, models.FINETUNED)), against, 0.0)
    reports.show_decision(decision)
    get_run_logger().info("%s", decision)
    return found(f"{decision}; decided before", str(decision)) if decision.known else str(decision)


def _flow_run_name() -> str:
    parameters = runtime.flow_run.parameters
    return f"{parameters['task']} on {without_credentials(parameters['train'])}"


@flow(name="finetune-encoder", flow_run_name=_flow_run_name)
def finetune_encoder(
    encoder: Annotated[str, RECORDED],
    task: TaskName,
    train: Annotated[str, RECORDED],
    held_out: Annotated[str, RECORDED] | None = None,
    text_column: str = "text",
    pair_column: str = "text_pair",
    label_column: str = "label",
    model_name: Annotated[str, Field(pattern=PATTERN)] | None = None,
    random_encoder: bool = False,
    finetuning_settings: FinetuningOverrides | None = None,
) -> Result:
    """Fine-tune an encoder for a task and register it in MLflow.

    Prefect's form takes descriptions from here, in this form alone.

    Args:
        encoder: A registered encoder, models:/NAME@champion or models:/NAME/3, or an encoder folder
        task: Classes of sentences, classes of pairs of sentences, or answers to questions within a context
        train: Training data: TSV, CSV, JSON Lines or Parquet with a label column; of question answering JSON of SQuAD's form
        held_out: What the model is evaluated on, of the same form; empty: a share of the training data is kept out
        text_column: Column of the text
        pair_column: Column of the second text, of pair classification
        label_column: Column of the class
        model_name: Name in the registry; empty: that of the encoder and of the data
        random_encoder: Start from random weights of the encoder's shape, as a baseline
        finetuning_settings: Epochs, learning rate and other settings that differ from their defaults
    """
    logs.set_up()
    settings = FinetuningSettings().override(finetuning_settings)
    settings.check(task)
    columns = Columns(text_column, pair_column, label_column)
    for parameter, address in {"encoder": encoder, "train": train, "held_out": held_out or ""}.items():
        refuse_credentials(parameter, address)
    with store().lease("flow", str(runtime.flow_run.id)):  # by which a tidying-up knows that something goes on
        start = find_encoder(encoder)
        name = model_name or finetuned_name(start.name, train, task) + (RANDOM if random_encoder else "")
        check_name(name, task)
        labelled = label(task, train, held_out, columns, settings)
        inputs = {"encoder": start.output.key, "labelled": labelled.key}
        run = FinetuningRun(store().root, "", start.output.address, labelled.address, inputs, task, random_encoder, settings)
        run = run.at(artifacts() / "work")
        tags = {"run_key": run.key, "labelled_key": labelled.key, "task": task, "random_encoder": str(random_encoder).lower(), **start.tags}
        params = {"task": task, "train": train, "held_out": held_out or "", "encoder": start.shown, "random_encoder": random_encoder}
        params |= {f"finetuning.{setting}": value for setting, value in settings.as_dict().items()}
        if task != QUESTION_ANSWERING:
            params |= {name: value for name, value in asdict(columns).items() if name != "pair" or task == PAIR_CLASSIFICATION}
        finetuned = tune(run, params, tags, name)
        reports.show_built([start.output, labelled, finetuned])
        version = register(name, finetuned, labelled, start, params, tags)
        decision = decide(version, finetuned, labelled)
        return {"version": version.uri, "finetuned": finetuned.address, "facts": finetuned.facts, "data": labelled.facts, "gate": decision}
