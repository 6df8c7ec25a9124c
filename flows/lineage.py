"""A registered version's lineage, from MLflow to the corpus.

In: a version's address. Out: lines that a person reads, and whether what could be checked holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.addresses import without_credentials
from pipeline.finetuning.labelled import STAGE as LABELLED
from pipeline.finetuning.run import STAGE as FINETUNED
from pipeline.lineage import Link, chain, fault_of, fault_of_copy, link_to, read_manifest
from pipeline.starting import STAGE as PRETRAINED
from pipeline.storage import Store

from . import aliases, models, versions
from .registry import Version, connect

_WIDTH = 28
_SHOWN_FILES = 3


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

    :raises RegistryError: there is no such version, or it is no encoder of this project.
    """
    version = versions.at(address)
    with connect() as client:
        run = client.get_run(version.run_id)
    names = [alias for alias, number in aliases.of(version.name).items() if number == version.number]
    shown = f" ({', '.join(names)})" if names else ""
    yield Line("version", f"{version.uri}{shown}")
    yield Line("MLflow run", f"{version.run_id}, {run.info.status.lower()}, preset {run.data.params.get('preset', 'unknown')}")
    for section, settings in _sections(run.data.params).items():
        yield Line(f"settings, {section}", settings)
    tags = run.data.tags
    yield Line("code", f"commit {tags.get('code_commit', 'unknown')}, version {tags.get('code_version', 'unknown')}")
    if head := version.tags.get(models.FINETUNED.key_tag):
        yield from _of_head(store, version, head, verify=verify)
        return
    folder = models.download(version.uri)
    manifest = read_manifest(folder)
    copied = fault_of_copy(folder, manifest, version.tags.get("encoder_key", "")) if verify else None
    yield Line("encoder in the registry", f"{len(manifest['files'])} files of encoder/{manifest['key']}", copied)
    for link in chain(store, manifest):
        yield _line(store, link, verify=verify)


def _of_head(store: Store, version: Version, key: str, *, verify: bool) -> Iterator[Line]:
    """The links of a fine-tuned encoder, then those of the encoder that it started from."""
    link = link_to(store, "fine-tuned encoder", FINETUNED, key, {})
    yield _line(store, link, verify=verify)
    if link.output:
        yield _line(store, link_to(store, "labelled data", LABELLED, link.output.manifest["inputs"]["labelled"], {}), verify=verify)
    if address := version.tags.get("encoder_version"):
        yield from lines_of(store, address, verify=verify)
        return
    yield _line(store, link_to(store, "encoder", PRETRAINED, version.tags.get("encoder_key", ""), {}), verify=verify)


def _line(store: Store, link: Link, *, verify: bool) -> Line:
    if link.output is None and not link.problem:
        return Line(link.role, f"{link.name}: not in this store{', so not checked' if verify else ''}")
    return Line(link.role, f"{link.name}{_described(link)}", fault_of(store, link) if verify else None)


def _described(link: Link) -> str:
    if link.output is None:
        return ""
    recorded, facts = link.output.manifest.get("recorded", {}), link.output.facts
    told = []
    if link.stage == "corpus":
        told.append(f"{recorded.get('name')} from {without_credentials(str(recorded.get('source')))}")
    if link.stage == "shards":
        told.append(f"{facts['counts']['rows']:,} rows in {len(facts['buckets'])} buckets")
    if link.stage == "vocabulary":
        told.append(f"{facts['size']:,} tokens")
    told += [f"{name} sha256 {digest}" for name, digest in list(link.digests().items())[:_SHOWN_FILES]]
    return "".join(f"\n{'':<{_WIDTH}}   {text}" for text in [link.output.address, *told])


def _sections(params: dict[str, str]) -> dict[str, str]:
    """`section.name` parameters by section, each as one line."""
    found: dict[str, list[str]] = {}
    for name, value in sorted(params.items()):
        section, dot, rest = name.partition(".")
        if dot:
            found.setdefault(section, []).append(f"{rest}={value}")
    return {section: " ".join(settings) for section, settings in found.items()}
