"""A registered version's lineage, from MLflow to the corpus.

In: a version's address. Out: lines that a person reads, and whether what could be checked holds. The decision that matters:
what a version was made from is told by the manifest that was registered with it, where that is gone or damaged by the
store's, else by its tags, so that a chain is shown whatever has been tidied away.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.addresses import without_credentials
from pipeline.errors import DamagedOutputError, ModelGoneError, RegistryError, RegistryUnavailableError
from pipeline.export import STAGE as ENCODER
from pipeline.finetuning.labelled import STAGE as LABELLED
from pipeline.finetuning.run import STAGE as FINETUNED
from pipeline.lineage import SPLITS, Link, chain, fault_of, fault_of_copy, fault_of_text, link_to, read_manifest
from pipeline.starting import STAGE as PRETRAINED
from pipeline.storage import Output, Store

from . import aliases, models, versions
from .models import Kind
from .registry import Version, connect

_WIDTH = 28
_SHOWN_FILES = 3
_TAGS = {"run": "run_key", "vocabulary": "vocabulary_key", "corpus": "corpus_key", "encoder": "warm_start_encoder_key"}
_KEYS_BY_TAG = _TAGS | {split: f"{split}_shards_key" for split in SPLITS}


@dataclass(frozen=True)
class Line:
    """A link as it is shown. :param fault: why it does not hold; empty: it does; None: it was not checked."""

    name: str
    text: str
    fault: str | None = None

    def __str__(self) -> str:
        return f"{self.name:<{_WIDTH}} {self.text}"


def lines_of(store: Store, address: str, *, verify: bool) -> Iterator[Line]:
    """The chain, a line a link, as they are looked at.

    :raises RegistryError: there is no such version, or it is none of this project.
    """
    version = versions.at(address)
    with connect() as client:
        run = client.get_run(version.run_id)
    names = [alias for alias, number in aliases.of(version.name).items() if number == version.number]
    shown = f" ({', '.join(names)})" if names else ""
    yield Line("version", f"{version.uri}{shown}")
    yield Line("MLflow run", f"{version.run_id}, {run.info.status.lower()}, {_made(run.data.params)}")
    for section, settings in _sections(run.data.params).items():
        yield Line(f"settings, {section}", settings)
    tags = run.data.tags
    yield Line("code", f"commit {tags.get('code_commit', 'unknown')}, version {tags.get('code_version', 'unknown')}")
    of_version = _of_head if models.FINETUNED.key_tag in version.tags else _of_encoder
    yield from of_version(store, version, verify=verify)


def _made(params: Mapping[str, str]) -> str:
    return f"task {params['task']}" if "task" in params else f"preset {params.get('preset', 'unknown')}"


def _of_encoder(store: Store, version: Version, *, verify: bool) -> Iterator[Line]:
    """The registry's copy, then the links of the encoder, then its texts beside its shards."""
    key = _tag(version, models.ENCODER)
    stored = link_to(store, "encoder", ENCODER, key, {})
    copy, manifest = _of_copy(store, version, models.ENCODER, stored, verify=verify)
    yield copy
    manifests = [found for found in (manifest, stored.output.manifest if stored.output else None) if found]
    named = next((lineage for found in manifests if isinstance(lineage := found.get("facts", {}).get("lineage"), dict)), None)
    links = chain(store, key, named or {name: version.tags[tag] for name, tag in _KEYS_BY_TAG.items() if tag in version.tags})
    held = dict[str, Output]()
    for link in links:
        line = _line(store, link, verify=verify)
        yield line
        if link.output and line.fault == "":
            held[link.name] = link.output
    if verify:
        yield from _of_texts(links, held)


def _of_texts(links: list[Link], held: Mapping[str, Output]) -> Iterator[Line]:
    """Each shard set beside the text that it was made from, where both hold."""
    for link in links:
        if link.stage == "shards" and (shards := held.get(link.name)):
            name = f"text of {link.role.removeprefix('shards of ')}"
            corpus = held.get(f"corpus/{link.wanted.get('corpus')}")
            shown = f"corpus/{link.wanted.get('corpus')} gives the buckets of {link.name}"
            yield Line(name, shown, fault_of_text(shards, corpus)) if corpus else Line(name, f"{shown}: no such corpus, so not checked")


def _of_head(store: Store, version: Version, *, verify: bool) -> Iterator[Line]:
    """The links of a fine-tuned encoder, then those of the encoder that it started from."""
    key = _tag(version, models.FINETUNED)
    encoder = version.tags.get("encoder_key", "")
    link = link_to(store, "fine-tuned encoder", FINETUNED, key, {"encoder": encoder})
    copy, manifest = _of_copy(store, version, models.FINETUNED, link, verify=verify)
    yield copy
    yield _line(store, link, verify=verify)
    inputs = (manifest or (link.output.manifest if link.output else {})).get("inputs", {})
    if isinstance(inputs, dict) and "labelled" in inputs:
        yield _line(store, link_to(store, "labelled data", LABELLED, str(inputs["labelled"]), {}), verify=verify)
    address = version.tags.get("encoder_version", "")
    start = _find(address)
    if start is None or start.tags.get(models.ENCODER.key_tag) != encoder:
        stage = ENCODER if store.children(store.address(ENCODER, encoder)) else PRETRAINED
        yield _line(store, link_to(store, "encoder", stage, encoder, {}), verify=verify)
    if start:
        yield from lines_of(store, address, verify=verify)


def _find(address: str) -> Version | None:
    """The version at an address; None where there is no address, or the version was deleted."""
    try:
        return versions.at(address) if address else None
    except RegistryUnavailableError:
        raise
    except RegistryError:
        return None


def _tag(version: Version, kind: Kind) -> str:
    if kind.key_tag not in version.tags:
        raise RegistryError(f"{version.uri}: has no tag {kind.key_tag}; wanted a version that this project registered")
    return version.tags[kind.key_tag]


def _of_copy(store: Store, version: Version, kind: Kind, link: Link, *, verify: bool) -> tuple[Line, dict[str, Any] | None]:
    """The line of what the registry holds, and the manifest there, where it can be read."""
    name, key = f"{kind.name} in the registry", version.tags[kind.key_tag]
    try:
        folder = models.download(version.uri, kind)
    except ModelGoneError as error:
        return Line(name, "gone", str(error) if verify else None), None
    stored = link.output if verify and link.output and not fault_of(store, link) else None
    try:
        manifest = read_manifest(folder)
    except DamagedOutputError as error:
        return Line(name, f"of {link.name}", str(error) if verify else None), None
    files = len(manifest["files"]) if manifest else len(list(folder.iterdir()))
    shown = f"{files} files of {link.name}"
    against = manifest or (stored.manifest if stored else None)
    if against is None or not verify:
        return Line(name, f"{shown}{': no manifest with them, so not checked' if verify else ''}"), manifest
    return Line(name, shown, fault_of_copy(Path(folder), against, key, stored)), manifest


def _line(store: Store, link: Link, *, verify: bool) -> Line:
    if link.output is None and not link.problem:
        return Line(link.role, f"{link.name}: not in this store{', so not checked' if verify else ''}")
    try:
        told = _described(link)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a manifest that was edited
        fault = f"its manifest is not readable ({type(error).__name__}: {error})"
        return Line(link.role, f"{link.name}: {fault}", fault if verify else None)
    shown = "".join(f"\n{'':<{_WIDTH}}   {text}" for text in told)
    return Line(link.role, f"{link.name}{shown}", fault_of(store, link) if verify else None)


def _described(link: Link) -> list[str]:
    if link.output is None:
        return []
    digests = list(link.digests().items())[:_SHOWN_FILES]
    return [link.output.address, *_facts(link, link.output), *(f"{name} sha256 {digest}" for name, digest in digests)]


def _facts(link: Link, output: Output) -> Iterator[str]:
    recorded, facts = output.manifest.get("recorded", {}), output.facts
    if link.stage == "corpus":
        yield f"{recorded.get('name')} from {without_credentials(str(recorded.get('source')))}"
    if link.stage == "shards":
        yield f"{facts['counts']['rows']:,} rows in {len(facts['buckets'])} buckets"
    if link.stage == "vocabulary":
        yield f"{facts['size']:,} tokens"


def _sections(params: dict[str, str]) -> dict[str, str]:
    """`section.name` parameters by section, each as one line."""
    found: dict[str, list[str]] = {}
    for name, value in sorted(params.items()):
        section, dot, rest = name.partition(".")
        if dot:
            found.setdefault(section, []).append(f"{rest}={value}")
    return {section: " ".join(settings) for section, settings in found.items()}
