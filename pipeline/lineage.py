"""What an encoder was made from, link by link, and whether it still holds.

In: an encoder folder with its manifest, and a store. Out: a chain of links: encoder, training run, shards, vocabulary,
corpus. The decision that matters: keys are hashes of what they stand for, so that a link is checked by computing its key
and its files' digests again; what a store no longer has is said to be unchecked, never to hold.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DamagedOutputError, PipelineError
from .files import file_digest
from .storage import MANIFEST, Output, Recipe, Store, open_output, verify_digests

_SPLITS = ("train", "valid", "train_long", "valid_long")
_STAGES = {"run": "run", "vocabulary": "vocabulary", "corpus": "corpus"} | dict.fromkeys(_SPLITS, "shards")


@dataclass(frozen=True)
class Link:
    """One output of the chain.

    :param role: what it is to the encoder, such as `shards of train`. :param output: None: the store does not have it.
    :param wanted: the keys of its inputs by the encoder's own manifest, as far as that names them.
    :param problem: why it cannot be opened; empty: it can, or is not there.
    """

    role: str
    stage: str
    key: str
    output: Output | None
    wanted: Mapping[str, str]
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.key}"

    def digests(self) -> dict[str, str]:
        """The sha256 of each file, by its manifest."""
        return {entry["name"]: entry["sha256"] for entry in self.output.manifest["files"]} if self.output else {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an encoder folder.

    :raises DamagedOutputError: there is none, or it is no encoder's.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        manifest["facts"]["lineage"]["run"], manifest["files"], manifest["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedOutputError(f"{folder / MANIFEST}: not the manifest of an encoder ({type(error).__name__}: {error})") from error
    return manifest


def chain(store: Store, manifest: Mapping[str, Any]) -> list[Link]:
    """The links of an encoder, itself first, the corpus last; one that another was started from in between.

    :param manifest: of its folder.
    """
    lineage = manifest["facts"]["lineage"]
    inputs = {name: key for name, key in lineage.items() if name in _SPLITS}
    shards = {"corpus": lineage["corpus"], "vocabulary": lineage["vocabulary"]}
    links = [
        link_to(store, "encoder", "encoder", manifest["key"], {"run": lineage["run"], "vocabulary": lineage["vocabulary"]}),
        link_to(store, "training run", "run", lineage["run"], inputs | ({"encoder": lineage["encoder"]} if "encoder" in lineage else {})),
    ]
    if "encoder" in lineage:
        stage = "encoder" if store.children(store.address("encoder", lineage["encoder"])) else "pretrained"
        links.append(link_to(store, "encoder that it started from", stage, lineage["encoder"], {}))
    links += [
        link_to(store, f"shards of {split.replace('_', ', ')}", "shards", inputs[split], shards) for split in _SPLITS if split in inputs
    ]
    links.append(link_to(store, "vocabulary", "vocabulary", lineage["vocabulary"], {}))
    links.append(link_to(store, "corpus", "corpus", lineage["corpus"], {}))
    return links


def link_to(store: Store, role: str, stage: str, key: str, wanted: Mapping[str, str]) -> Link:
    """The link to one output."""
    try:
        return Link(role, stage, key, store.find(stage, key), wanted)
    except PipelineError as error:
        return Link(role, stage, key, None, wanted, str(error))


def fault_of(store: Store, link: Link) -> str:
    """Compute a link again. Returns why it does not hold; empty where it does.

    Every file is read, those of a shard set's buckets too.
    """
    if link.problem:
        return link.problem
    assert link.output is not None
    try:
        _check(link.output, link.stage, link.key, link.wanted)
        for bucket in _buckets(store, link.output):
            _check(bucket, "bucket", bucket.address.rpartition("/")[2], {"vocabulary": link.wanted["vocabulary"]})
    except (PipelineError, OSError) as error:
        return str(error)
    return ""


def _buckets(store: Store, output: Output) -> Iterator[Output]:
    for entry in output.facts["buckets"] if output.stage == "shards" else ():
        yield open_output(store.address("bucket", entry["key"]))


def _check(output: Output, stage: str, key: str, wanted: Mapping[str, str]) -> None:
    """See that an output is what its key says.

    :raises DamagedOutputError: says what differs.
    """
    manifest, where = output.manifest, f"{output.address}/{MANIFEST}"
    try:
        recipe = Recipe(manifest["stage"], manifest["format"], manifest["settings"], manifest["inputs"])
        if (recipe.stage, manifest["key"]) != (stage, key):
            raise DamagedOutputError(f"{where}: is of {recipe.stage}/{manifest['key']}, wanted {stage}/{key}")
        if recipe.key != key:
            raise DamagedOutputError(f"{where}: its settings and inputs give the key {recipe.key}, wanted {key}")
        for name, other in wanted.items():
            if recipe.inputs.get(name) != other:
                raise DamagedOutputError(f"{where}: its {name} is {recipe.inputs.get(name)}, wanted {other}, which the encoder names")
        verify_digests(output)
        if stage == "corpus":
            _check_texts(output)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedOutputError(f"{where}: not a readable manifest ({type(error).__name__}: {error})") from error


def _check_texts(corpus: Output) -> None:
    """See that the texts are those that the corpus's key is the digest of."""
    for split in ("train", "valid", "test"):
        wanted, name = corpus.manifest["inputs"].get(split), f"{split}.tokens"
        if wanted and (found := file_digest(corpus.file(name))) != wanted:
            raise DamagedOutputError(f"{corpus.file(name)}: sha256 {found}, wanted {wanted}, of which the corpus's key is made")


def fault_of_copy(folder: Path, manifest: Mapping[str, Any], key: str) -> str:
    """Compare the files of a registered version with their manifest, and its key. Returns what differs; empty: nothing.

    :param key: of the encoder by the version's tags.
    """
    recipe = Recipe(manifest["stage"], manifest["format"], manifest["settings"], manifest["inputs"])
    if not recipe.key == manifest["key"] == key:
        return f"{MANIFEST}: is of {manifest['key']} and computes to {recipe.key}, wanted {key}, which the version's tag names"
    for entry in manifest["files"]:
        path = folder / entry["name"]
        found = file_digest(str(path)) if path.is_file() else "missing"
        if found != entry["sha256"]:
            return f"{entry['name']}: sha256 {found}, wanted {entry['sha256']}"
    return ""
