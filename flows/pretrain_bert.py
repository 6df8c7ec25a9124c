"""The flow `pretrain-bert`: from the text to a registered encoder.

The tasks stand in the order in which they run; each calls one stage of `pipeline` and hands on addresses. A stage whose
output is there does nothing, and its task ends in the state Cached.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger, runtime
from pydantic import Field

from pipeline.addresses import PLAIN, without_credentials
from pipeline.data.build import build_shards
from pipeline.data.corpus import Corpus, fetch_corpus
from pipeline.data.vocabulary import build_vocabulary, kept_vocabulary
from pipeline.encoding import Encoder
from pipeline.export import export_encoder, find_encoder
from pipeline.inspection import count_shards, open_shards
from pipeline.samples import Samples, sample_encodings
from pipeline.settings import (
    BuilderOverrides,
    CorpusOverrides,
    CorpusSettings,
    GateOverrides,
    ModelOverrides,
    Preset,
    ShardOverrides,
    TextOverrides,
    TrainingOverrides,
    VocabularyOverrides,
    recipe_of,
)
from pipeline.starting import publish_pretrained
from pipeline.storage import Output
from pipeline.training.run import RunSettings, plan_run, read_metrics

from . import handover, logs, models, pictures, registry, reports, versions
from .builders import builders
from .card import Subject, model_card, name_description, samples_markdown, samples_table
from .code import code_tags
from .gallery import gallery
from .gate import decide
from .metrics import Curve
from .names import PATTERN, VERSION_PATTERN, check_version_address, is_version_address
from .names import model_name as default_name
from .places import artifacts, full_address, store
from .pretrain_encoder import train
from .registry import Version
from .stages import ended, found, stage, timed
from .versions import Earlier

Result = dict[str, Any]
RECORDED = Field(json_schema_extra={"pattern": PLAIN})
"""An address that Prefect records: its server refuses one with credentials before that."""
PresetName = Literal["tiny", "mini", "small", "medium", "base", "large"]


@stage("fetch corpus")
def fetch(address: str | None, settings: CorpusSettings, sample_without_network: bool) -> Corpus:
    """Fetch, check and publish the corpus."""
    corpus = fetch_corpus(store(), full_address(address), settings, allow_sample=sample_without_network)
    get_run_logger().info("corpus %s: %s", corpus.name, corpus.note)
    return ended(corpus.output, corpus)


@stage("find earlier versions", asks_registry=True)
def find_earlier(name: str, corpus: Output, vocabulary_from: str | None, warm_start: str | None) -> Earlier:
    """Find the versions that this run builds on; a registry that is away is noticed here, before any work."""
    version_to_start = warm_start if is_version_address(warm_start) else None
    versions.refuse_other_kinds(name)
    earlier = versions.find_earlier(name, corpus.key, vocabulary_from, version_to_start)
    wanted_versions = ("vocabulary_from", vocabulary_from, earlier.vocabulary), ("warm_start", version_to_start, earlier.encoder)
    for setting, wanted, version in wanted_versions:
        if wanted:
            get_run_logger().info("%s: %s", setting, version.uri if version else f"no earlier version of {name} yet, so none")
    return earlier


@stage("vocabulary")
def vocabulary(corpus: Output, preset: Preset, earlier: Earlier) -> Output:
    """Count words, train WordPiece or check a file, or keep the vocabulary that an earlier version has."""
    key = earlier.vocabulary_key
    output = kept_vocabulary(store(), key, preset, earlier.vocabulary_corpus_key) if key else build_vocabulary(store(), corpus, preset)
    return ended(output, output)


@stage("find encoder to start from")
def find_start(earlier: Earlier, warm_start: str, words: Output, preset: Preset) -> Output | None:
    """Find the encoder of an earlier version, or read a checkpoint of transformers', and see that it fits."""
    if earlier.encoder_key:
        return find_encoder(store(), earlier.encoder_key)
    if is_version_address(warm_start):
        return None  # `previous`, and there is none yet
    output = publish_pretrained(store(), warm_start, words, preset)
    return ended(output, output)


@stage("{rows}shards of {split}")
def shards(corpus: Output, words: Output, split: str, preset: Preset, rows: Literal["", "long "] = "") -> Output:
    """Build pairs and masks of a split; long ones are for training's last part."""
    output = build_shards(store(), corpus, words, split, preset, long=bool(rows), builders=partial(builders, preset.builders))
    counts, recorded = output.facts["counts"], output.manifest["recorded"]
    get_run_logger().info("%s: %s examples of %s pairs", split, f"{counts['rows']:,}", f"{counts['pairs']:,}")
    if not output.found:
        get_run_logger().info("%s: %d buckets made, %d found", split, recorded["buckets_made"], recorded["buckets_found"])
    reports.show_shards(open_shards(store(), output))  # what was found too: a retry finds what it made before
    return ended(output, output)


@stage("prepare run")
def prepare(preset: Preset, training: Output, held_out: Output, long: tuple[Output, Output] | None, start: Output | None) -> RunSettings:
    """Put the run together, and see that an encoder that it starts from fits."""
    return plan_run(store(), preset, training, held_out, artifacts() / "work", start, long=long)


@stage("train")
def hand_over(run: RunSettings, params: dict[str, Any], tags: dict[str, str], name: str) -> Output:
    """Have the run trained by a worker of another deployment; a run that is finished is found."""
    trained = handover.find_trained(run) or handover.train_elsewhere(run, params, tags, name)
    reports.show_loss_curve(pictures.loss_curve(read_metrics(trained)))
    return ended(trained, trained)


@stage("export encoder")
def export(run: Output, words: Output, corpus: Output) -> Output:
    """Write the encoder folder."""
    output = export_encoder(store(), run, words, corpus)
    return ended(output, output)


@stage("register", asks_registry=True)
def register(
    name: str,
    encoder: Output,
    run: Output,
    training: Output,
    params: dict[str, Any],
    tags: dict[str, str],
    newest: Version | None,
    preset: Preset,
) -> Result:
    """Register the encoder with its model card and pictures, or find the version that holds it."""
    with store().local(encoder) as folder, store().lease("version", f"{name}-{encoder.key}"):
        loaded = Encoder.load(folder)
        samples = sample_encodings(loaded)
        subject = _subject(preset, tags["corpus"], training, run, samples)
        version = models.find_version(name, encoder.key)
        known = version is not None
        if version is not None:
            models.complete(version, model_card(subject, name, version.number))
        else:
            rows = read_metrics(run)
            run_id = registry.find_run(run.key) or registry.start_run(name, params, tags)  # where another registry was in use
            Curve(run_id).send(rows)
            version = models.register(
                name,
                run_id,
                Path(folder),
                tags=tags | {"encoder_key": encoder.key} | versions.link_tags(store(), newest, tags, preset.text),
                description=lambda made: model_card(subject, made.name, made.number),
                tables={"sample_encodings.json": samples_table(samples)},
                figures=gallery(loaded, rows, count_shards(open_shards(store(), training), reports.ENOUGH_ROWS)),
            )
            registry.end_run(run_id)
        models.describe_name(name, name_description(preset, subject.corpus))
    reports.show_samples(samples_markdown(samples))
    reports.show_version(version.uri, version.page)
    encodings = [entry.as_dict() for entry in samples.encodings]
    result = {"registered": version, "version": version.uri, "samples": encodings, "similarity": samples.word_similarity}
    return found(f"{version.uri}: found, nothing to do", result) if known else result


def _subject(preset: Preset, corpus: str, training: Output, run: Output, samples: Samples) -> Subject:
    """What the model card is about."""
    counts, size = training.facts["counts"], training.facts["vocabulary_size"]
    return Subject(preset, corpus, counts, size, run.facts, run.manifest["recorded"], run.manifest["inputs"].get("encoder"), samples)


@stage("gate", asks_registry=True)
def gate(candidate: Version, encoder: Output, corpus: Output, held_out: Output, preset: Preset) -> str:
    """Decide whether the version becomes the champion of its name."""
    with store().lease("gate", candidate.name):
        decision = decide(store(), candidate, encoder, corpus, held_out, preset)
    reports.show_decision(decision)
    get_run_logger().info("%s", decision)
    return found(f"{decision}; decided before", str(decision)) if decision.known else str(decision)


def _flat(preset: Preset) -> dict[str, Any]:
    """Every setting by its name, as it may be recorded: vocabulary.file is an address."""
    sections = {name: values for name, values in preset.as_dict().items() if isinstance(values, dict)}
    flat = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    return {name: without_credentials(value) if isinstance(value, str) else value for name, value in flat.items()}


def _flow_run_name() -> str:
    parameters = runtime.flow_run.parameters
    return f"{parameters['preset']} on {without_credentials(parameters['corpus'] or 'WikiText-2')}"


@flow(name="pretrain-bert", flow_run_name=_flow_run_name)
def pretrain_bert(
    preset: PresetName = "tiny",
    corpus: Annotated[str, RECORDED] | None = None,
    steps: Annotated[int, Field(ge=1)] | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None,
    model_name: Annotated[str, Field(pattern=PATTERN)] | None = None,
    vocabulary_from: Annotated[str, Field(pattern=VERSION_PATTERN)] | None = None,
    warm_start: Annotated[str, RECORDED] | None = None,
    sample_without_network: bool = False,
    corpus_settings: CorpusOverrides | None = None,
    text_settings: TextOverrides | None = None,
    vocabulary_settings: VocabularyOverrides | None = None,
    shard_settings: ShardOverrides | None = None,
    builder_settings: BuilderOverrides | None = None,
    model_settings: ModelOverrides | None = None,
    training_settings: TrainingOverrides | None = None,
    gate_settings: GateOverrides | None = None,
) -> Result:
    """Pretrain a BERT encoder and register it in MLflow.

    Prefect's form takes descriptions from here, in this form alone.

    Args:
        preset: The recipe whose settings hold where nothing else is said
        corpus: A file, folder, glob or address of a corpus, or wikitext-103; empty: WikiText-2
        steps: Optimizer steps; empty: as the preset says
        seed: Seed of pairs, masks, weights and order; empty: as the preset says
        model_name: Name in the registry; empty: bert-PRESET, with the corpus's name if it is not WikiText-2
        vocabulary_from: Keep a vocabulary instead of making one: `previous`, the newest sound version's of another text, or models:/NAME/3
        warm_start: Start from an encoder instead of random weights: `previous`, models:/NAME/3, or the folder of a BERT checkpoint
        sample_without_network: Train on the built-in sample where WikiText-2 cannot be reached and no model name is given
        corpus_settings: How the corpus's files are read, where that differs from the preset
        text_settings: What a document and a sentence are, where that differs from the preset
        vocabulary_settings: Settings of the vocabulary that differ from the preset's
        shard_settings: Settings of pairs and masks that differ from the preset's
        builder_settings: Who builds the shards of a large corpus, where that differs from the preset
        model_settings: Settings of the model that differ from the preset's
        training_settings: Settings of the training that differ from the preset's
        gate_settings: When the new version becomes the champion, where that differs from the preset
    """
    logs.set_up()
    check_version_address("warm_start", warm_start, or_folder=True)
    recipe = recipe_of(
        preset,
        steps,
        seed,
        corpus=corpus_settings,
        text=text_settings,
        vocabulary=vocabulary_settings,
        shards=shard_settings,
        builders=builder_settings,
        model=model_settings,
        training=training_settings,
        gate=gate_settings,
    )
    elsewhere = handover.is_wanted(recipe.training.deployment)
    with store().lease("flow", str(runtime.flow_run.id)), timed() as durations:  # by which a tidying-up knows that something goes on
        # A name that was given is for an encoder of the corpus that was meant, never for the sample's.
        text = fetch(corpus, recipe.corpus, sample_without_network and model_name is None)
        name = model_name or default_name(preset, text.name)
        earlier = find_earlier(name, text.output, vocabulary_from, warm_start)
        words = vocabulary(text.output, recipe, earlier)
        start = find_start(earlier, warm_start, words, recipe) if warm_start else None
        training, held_out = (shards(text.output, words, split, recipe) for split in ("train", "valid"))
        long = None
        if recipe.shards.long_max_length:
            long = shards(text.output, words, "train", recipe, "long "), shards(text.output, words, "valid", recipe, "long ")
        run = prepare(recipe, training, held_out, long, start)
        tags = {"corpus": text.name, "corpus_key": text.output.key, "vocabulary_key": words.key, **_run_tags(run, training)}
        params = {"preset": preset, "corpus_source": text.source, **_flat(recipe)}
        trained = (hand_over if elsewhere else train)(run, params, tags, name)
        encoder = export(trained, words, text.output)
        reports.show_built([text.output, words, training, held_out, *(long or ()), trained, encoder])
        registered = register(name, encoder, trained, training, params, tags, earlier.newest, recipe)
        version = registered.pop("registered")
        registered["gate"] = gate(version, encoder, text.output, held_out, recipe)
        reports.show_report(version, trained, recipe.shards, durations, registered["gate"])
        return {"corpus": text.name, "note": text.note, "run": trained.facts, "encoder": encoder.address, **registered}


def _run_tags(run: RunSettings, training: Output) -> dict[str, str]:
    """Tags that lead from a run to its inputs, and the size of its text."""
    keys = {f"{name}_shards_key": key for name, key in run.inputs.items() if name != "encoder"}
    start = {"warm_start_encoder_key": run.inputs["encoder"]} if run.encoder else {}
    counts = {name: str(training.facts["counts"][name]) for name in ("documents", "tokens")}
    return {"run_key": run.key, **keys, **start, **counts, **code_tags()}
