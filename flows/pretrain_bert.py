"""The flow `pretrain-bert`: from the text to a registered encoder.

The tasks stand in the order in which they run; each calls one stage of `pipeline` and hands on addresses. A stage whose
output is there does nothing.
"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger, runtime, task
from pydantic import Field

from pipeline.data.build import build_shards
from pipeline.data.corpus import Corpus, fetch_corpus
from pipeline.data.download import without_credentials
from pipeline.data.vocabulary import build_vocabulary
from pipeline.encoding import Encoder
from pipeline.errors import RegistryError, RegistryUnavailableError
from pipeline.export import export_encoder
from pipeline.samples import sample_encodings
from pipeline.settings import (
    ModelOverrides,
    Preset,
    ShardOverrides,
    TrainingOverrides,
    VocabularyOverrides,
    load_preset,
)
from pipeline.storage import Output
from pipeline.training.run import STAGE, RunSettings, read_metrics, write_run

from . import launch, logs, registry, reports
from .names import PATTERN
from .names import model_name as default_name
from .places import artifacts, full_address, store

Result = dict[str, Any]


def _registry_away(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a task failed for what heals by waiting; a download waits and tries again by itself."""
    return isinstance(state.result(raise_on_failure=False), RegistryUnavailableError)


def _told(output: Output) -> Output:
    get_run_logger().info("%s/%s: %s", output.stage, output.key, "found, nothing to do" if output.found else "made")
    return output


@task(task_run_name="fetch corpus")
def fetch(address: str | None, sample_without_network: bool) -> Corpus:
    """Fetch, check and publish the corpus."""
    corpus = fetch_corpus(store(), full_address(address), allow_sample=sample_without_network)
    _told(corpus.output)
    get_run_logger().info("corpus %s: %s", corpus.name, corpus.note)
    return corpus


@task
def vocabulary(corpus: Output, preset: Preset) -> Output:
    """Count words."""
    return _told(build_vocabulary(store(), corpus, preset.vocabulary))


@task(task_run_name="shards of {split}")
def shards(corpus: Output, words: Output, split: str, preset: Preset) -> Output:
    """Build pairs and masks of a split."""
    output = _told(build_shards(store(), corpus, words, split, preset.shards))
    counts = output.facts["counts"]
    get_run_logger().info("%s: %s examples of %s pairs", split, f"{counts['rows']:,}", f"{counts['pairs']:,}")
    return output


@task
def train(run: RunSettings, params: dict[str, Any], tags: dict[str, str], name: str) -> Output:
    """Train in a child process, with live metrics; a run that is finished is found."""
    if found := store().reuse(STAGE, run.key):
        return _told(found)
    datasets = [(split, f"shards/{key}", key) for split, key in run.inputs.items()]
    run_id = registry.start_run(name, params, tags, datasets)
    bar = reports.start_progress()

    unsent: list[dict[str, Any]] = []

    def on_metrics(rows: list[dict[str, Any]]) -> None:
        unsent.extend(rows)
        try:
            registry.log_rows(run_id, unsent)
            unsent.clear()
        except RegistryError as error:  # training is worth more than its curve, which catches up
            get_run_logger().warning("metrics wait: %s", error)
        reports.show_progress(bar, rows[-1]["step"], run.training.steps)

    try:
        launch.train(run, get_run_logger().info, on_metrics)
    except BaseException as error:
        with suppress(RegistryError):  # what ended the training is the error to show
            registry.end_run(run_id, error)
        raise
    finished = store().find(STAGE, run.key)
    assert finished is not None
    return _told(finished)


@task
def export(run: Output, words: Output, corpus: Output) -> Output:
    """Write the encoder folder."""
    return _told(export_encoder(store(), run, words, corpus))


@task(retries=2, retry_delay_seconds=[5, 20], retry_condition_fn=_registry_away)
def register(name: str, encoder: Output, run: Output, params: dict[str, Any], tags: dict[str, str]) -> Result:
    """Register the encoder with its sample encodings, or find the version that holds it."""
    rows = read_metrics(run)
    curve = reports.loss_curve(rows)
    with store().local(encoder) as folder:
        samples, similarity = sample_encodings(Encoder.load(folder))
        description = reports.samples_markdown(samples, similarity)
        version = registry.find_version(name, encoder.key)
        if version is not None:
            registry.complete(version, description)
        else:
            run_id = registry.find_run(run.key)
            if run_id is None:  # trained where another registry was in use
                run_id = registry.start_run(name, params, tags)
                registry.log_rows(run_id, rows)
            version = registry.register(
                name,
                run_id,
                Path(folder),
                tags=tags | {"encoder_key": encoder.key},
                description=description,
                table=reports.samples_table(samples),
                curve=curve,
            )
            registry.end_run(run_id)
    reports.show_loss_curve(curve)
    reports.show_samples(description)
    reports.show_version(version.uri, version.page)
    return {"version": version.uri, "samples": [sample.as_dict() for sample in samples], "similarity": similarity}


def _flat(preset: Preset) -> dict[str, Any]:
    sections = preset.as_dict()
    return {
        f"{section}.{name}": value for section, values in sections.items() if isinstance(values, dict) for name, value in values.items()
    }


def _flow_run_name() -> str:
    parameters = runtime.flow_run.parameters
    return f"{parameters['preset']} on {without_credentials(parameters['corpus'] or 'WikiText-2')}"


@flow(name="pretrain-bert", flow_run_name=_flow_run_name)
def pretrain_bert(
    preset: Literal["tiny"] = "tiny",
    corpus: str | None = None,
    steps: Annotated[int, Field(ge=1)] | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None,
    model_name: Annotated[str, Field(pattern=PATTERN)] | None = None,
    sample_without_network: bool = False,
    vocabulary_settings: VocabularyOverrides | None = None,
    shard_settings: ShardOverrides | None = None,
    model_settings: ModelOverrides | None = None,
    training_settings: TrainingOverrides | None = None,
) -> Result:
    """Pretrain a BERT encoder and register it in MLflow.

    Prefect's form takes descriptions from here, in this form alone.

    Args:
        preset: The recipe whose settings hold where nothing else is said
        corpus: A folder, zip or address of a corpus; empty: WikiText-2
        steps: Optimizer steps; empty: as the preset says
        seed: Seed of pairs, masks, weights and order; empty: as the preset says
        model_name: Name in the registry; empty: bert-<preset>, with the corpus's name if it is not WikiText-2
        sample_without_network: Train on the built-in sample where WikiText-2 cannot be reached and no model name is given
        vocabulary_settings: Settings of the vocabulary that differ from the preset's
        shard_settings: Settings of pairs and masks that differ from the preset's
        model_settings: Settings of the model that differ from the preset's
        training_settings: Settings of the training that differ from the preset's
    """
    logs.set_up()
    recipe = (
        load_preset(preset)
        .override(shards={"seed": seed}, training={"seed": seed, "steps": steps})
        .override(vocabulary=vocabulary_settings, shards=shard_settings, model=model_settings, training=training_settings)
    )
    # A name that was given is for an encoder of the corpus that was meant, never for the sample's.
    text = fetch(corpus, sample_without_network and model_name is None)
    words = vocabulary(text.output, recipe)
    training, held_out = (shards(text.output, words, split, recipe) for split in ("train", "valid"))
    run = write_run(store(), recipe, training, held_out, artifacts() / "work")
    name = model_name or default_name(preset, text.name)
    tags = {"run_key": run.key, "corpus": text.name, "corpus_key": text.output.key, "vocabulary_key": words.key, **_shard_tags(run)}
    params = {"preset": preset, "corpus_source": text.source, **_flat(recipe)}
    trained = train(run, params, tags, name)
    encoder = export(trained, words, text.output)
    reports.show_built([text.output, words, training, held_out, trained, encoder])
    registered = register(name, encoder, trained, params, tags)
    return {"corpus": text.name, "note": text.note, "run": trained.facts, "encoder": encoder.address, **registered}


def _shard_tags(run: RunSettings) -> dict[str, str]:
    return {f"{split}_shards_key": key for split, key in run.inputs.items()}
