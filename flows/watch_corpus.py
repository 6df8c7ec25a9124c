"""The flow `watch-corpus`: notices that a corpus is another than the newest version was trained on.

In: a corpus's address and the name of its models. Out: where the text has changed, an event `corpus.changed`, which the
deployments in `prefect.yaml` wait for; else one line. The decision that matters: the text decides. Sizes, times and tags
of its files only save reading it, and a version of any number and alias counts, so that nothing is trained twice, also
where a text is again what it was before.
"""

from typing import Annotated, Any

from prefect import flow, get_run_logger, runtime
from prefect.events import emit_event
from prefect.states import Completed
from pydantic import Field

from pipeline.addresses import without_credentials
from pipeline.data.corpus import Corpus
from pipeline.data.wikitext import NAME as WIKITEXT
from pipeline.errors import PipelineError
from pipeline.settings import CorpusOverrides, load_preset

from . import logs, versions
from .names import PATTERN, VERSION_PATTERN, check_version_address
from .names import model_name as default_name
from .pretrain_bert import RECORDED, PresetName, fetch
from .registry import Version
from .stages import stage

CHANGED = "corpus.changed"


@stage("find versions", asks_registry=True)
def find_versions(name: str, corpus_key: str) -> tuple[Version | None, Version | None]:
    """The version that was trained on a corpus, and the newest of the name, whatever their aliases."""
    return versions.trained_on(name, corpus_key), versions.newest(name)


def _flow_run_name() -> str:
    return f"watch {without_credentials(runtime.flow_run.parameters['corpus'] or WIKITEXT)}"


@flow(name="watch-corpus", flow_run_name=_flow_run_name)
def watch_corpus(
    corpus: Annotated[str, RECORDED] | None = None,
    preset: PresetName = "tiny",
    model_name: Annotated[str, Field(pattern=PATTERN)] | None = None,
    vocabulary_from: Annotated[str, Field(pattern=VERSION_PATTERN)] | None = None,
    warm_start: Annotated[str, RECORDED] | None = None,
    corpus_settings: CorpusOverrides | None = None,
) -> Any:
    """Have an encoder trained where a corpus has changed.

    Prefect's form takes descriptions from here, in this form alone.

    Args:
        corpus: A file, folder, glob or address of a corpus, or wikitext-103; empty: WikiText-2
        preset: The recipe of the deployment that runs where the corpus has changed
        model_name: Name in the registry; empty: bert-<preset>, with the corpus's name if it is not WikiText-2
        vocabulary_from: Handed to the run: `previous` keeps the vocabulary of the version before
        warm_start: Handed to the run: `previous` starts from the encoder of the version before
        corpus_settings: How the corpus's files are read, where that differs from the preset; handed to the run as well
    """
    logs.set_up()
    check_version_address("warm_start", warm_start, or_folder=True)
    text = fetch(corpus, load_preset(preset).corpus.override(corpus_settings), False)
    name = model_name or default_name(preset, text.name)
    known, newest = find_versions(name, text.output.key)
    if known:
        later = f"; {newest.uri}, the newest, was trained on another" if newest and newest.number != known.number else ""
        return _say(f"nothing changed: {known.uri} was trained on this text, corpus {text.output.key}{later}")
    parameters: dict[str, Any] = {"corpus": corpus or WIKITEXT, "model_name": name}
    parameters |= {"vocabulary_from": vocabulary_from, "warm_start": warm_start, "corpus_settings": _plain(corpus_settings)}
    event = emit_event(
        CHANGED,
        resource={"prefect.resource.id": f"corpus.{name}", "prefect.resource.name": text.name, "bert.preset": preset},
        payload={"parameters": parameters, "old": _trained_on(newest), "new": _facts(text)},
    )
    if event is None:
        raise PipelineError(f"{CHANGED}: Prefect took no event; check that its server runs")
    before = f"the text of {newest.uri}, {newest.tags.get('corpus_key')}" if newest else f"no version of {name} yet"
    return _say(f"corpus changed: {text.output.key}, before: {before}; sent {CHANGED}")


def _plain(overrides: CorpusOverrides | None) -> dict[str, Any] | None:
    """As JSON, for an event; what is as the preset says is left out."""
    return None if overrides is None else {name: value for name, value in vars(overrides).items() if value is not None}


def _say(line: str) -> Any:
    """Log the outcome, and put it on the run's page as its state's message."""
    get_run_logger().info("%s", line)
    return Completed(message=line)


def _trained_on(version: Version | None) -> dict[str, str] | None:
    return None if version is None else {"version": version.uri, "corpus_key": version.tags.get("corpus_key", "")}


def _facts(text: Corpus) -> dict[str, Any]:
    train = text.output.facts["train"]
    return {"corpus_key": text.output.key, "name": text.name, "paragraphs": train["paragraphs"], "bytes": train["bytes"]}
