"""What an encoder was made from, link by link, and whether it still holds.

In: an encoder's key with those that its manifest names, and a store. Out: a chain of links: encoder, training run, shards,
vocabulary, corpus. The decision that matters: keys are hashes of what they stand for, so that a link is checked by computing
its key and its files' digests again; what no key covers is held to what one does (a set's buckets to the text), and what a
store no longer has is said to be unchecked, never to hold.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .data.buckets import digests_of_buckets
from .data.documents import WIKITEXT, DocumentReader
from .errors import DamagedOutputError, PipelineError
from .files import file_digest
from .storage import MANIFEST, Output, Recipe, Store, open_output, verify_digests

SPLITS = ("train", "valid", "train_long", "valid_long")
_START = "encoder that it started from"
_OF_SET = ("buckets", "split")  # settings of a shard set that are none of its buckets'
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)  # what a manifest that was edited leads to


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
        return _digests(self.output.manifest) if self.output else {}


def _digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["sha256"] for entry in manifest["files"]}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that was registered; None where it has none.

    :raises DamagedOutputError: it is not readable.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _recipe(manifest), _digests(manifest), manifest["facts"].get("lineage"), manifest["key"]
    except (OSError, *_UNREADABLE) as error:
        raise _unreadable(path, error) from error
    return manifest


def chain(store: Store, key: str, lineage: Mapping[str, str]) -> list[Link]:
    """The links of an encoder, itself first, its corpus last; then those of the encoder that it started from, and so on.

    :param lineage: keys by their names in an encoder's manifest: `run`, `vocabulary`, `corpus`, `train`, …
    """
    links: list[Link] = []
    found, back = _own_chain(store, key, lineage), 0
    while found:
        known = {link.name for link in links}
        links += [replace(link, role=f"{link.role}{f', start {back}' if back else ''}") for link in found if link.name not in known]
        start = next((link.output for link in found if link.role == _START and link.name not in known), None)
        before = _lineage(start.manifest) if start else None
        found, back = (_own_chain(store, start.key, before) if start and before else []), back + 1
    return links


def _lineage(manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The keys that an encoder's manifest names; None: it names none, as that of a pretrained one."""
    facts = manifest.get("facts")
    found = facts.get("lineage") if isinstance(facts, Mapping) else None
    return found if isinstance(found, Mapping) and "run" in found else None


def _own_chain(store: Store, key: str, lineage: Mapping[str, str]) -> list[Link]:
    def link(role: str, stage: str, name: str, *inputs: str) -> list[Link]:
        wanted = {other: lineage[other] for other in inputs if other in lineage}
        return [link_to(store, role, stage, lineage[name], wanted)] if name in lineage else []

    start = "encoder" if store.children(store.address("encoder", lineage.get("encoder", ""))) else "pretrained"
    words = link("vocabulary", "vocabulary", "vocabulary")
    others = [key for key in _corpus_of(words) if key != lineage.get("corpus")]
    return [
        link_to(store, "encoder", "encoder", key, {name: lineage[name] for name in ("run", "vocabulary") if name in lineage}),
        *link("training run", "run", "run", *SPLITS, "encoder"),
        *link(_START, start, "encoder"),
        *(found for split in SPLITS for found in link(f"shards of {split.replace('_', ', ')}", "shards", split, "corpus", "vocabulary")),
        *words,
        *(link_to(store, "corpus of the vocabulary", "corpus", other, {}) for other in others),
        *link("corpus", "corpus", "corpus"),
    ]


def _corpus_of(words: list[Link]) -> list[str]:
    """The key of the corpus that a vocabulary was made from, where it was made here."""
    inputs = words[0].output.manifest.get("inputs") if words and words[0].output else None
    found = inputs.get("corpus") if isinstance(inputs, Mapping) else None
    return [found] if isinstance(found, str) else []


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
        _check(store, link.output, link.stage, link.key, link.wanted)
        if link.stage == "shards":
            _check_buckets(store, link.output)
    except (PipelineError, OSError) as error:
        return str(error)
    except _UNREADABLE as error:
        return str(_unreadable(_place(link.output), error))
    return ""


def _place(output: Output) -> str:
    return f"{output.address}/{MANIFEST}"


def _unreadable(place: object, error: Exception) -> DamagedOutputError:
    return DamagedOutputError(f"{place}: not a readable manifest ({type(error).__name__}: {error})")


def _recipe(manifest: Mapping[str, Any]) -> Recipe:
    return Recipe(manifest["stage"], manifest["format"], manifest["settings"], manifest["inputs"])


def _check(store: Store, output: Output, stage: str, key: str, wanted: Mapping[str, str]) -> None:
    """See that an output is what its key says.

    :raises DamagedOutputError: says what differs.
    """
    manifest, where = output.manifest, _place(output)
    recipe = _recipe(manifest)
    if (recipe.stage, manifest["key"]) != (stage, key):
        raise DamagedOutputError(f"{where}: is of {recipe.stage}/{manifest['key']}, wanted {stage}/{key}")
    if recipe.key != key:
        raise DamagedOutputError(f"{where}: its settings and inputs give the key {recipe.key}, wanted {key}")
    for name, other in wanted.items():
        if recipe.inputs.get(name) != other:
            raise DamagedOutputError(f"{where}: its {name} is {recipe.inputs.get(name)}, wanted {other}, which the encoder names")
    listed = {name.partition("/")[0] for name in _digests(manifest)}
    if unlisted := [name for name in store.children(output.address) if name not in {MANIFEST, *listed}]:
        raise DamagedOutputError(f"{where}: lists no {unlisted[0]}, which lies there; wanted every file with its digest")
    verify_digests(output)
    if stage == "corpus":
        _check_texts(output)


def _check_texts(corpus: Output) -> None:
    """See that the texts are those that the corpus's key is the digest of.

    Where the valid split was taken out of train, the key has the digest of both as they came, which their parts do not give
    again; then these are held to what was found when they were parted, and to the buckets of the shards.
    """
    manifest, digests = corpus.manifest, _digests(corpus.manifest)
    counted = {split: corpus.facts[split]["sha256"] for split in ("train", "valid") if "held_out" in manifest["settings"]}
    for split, wanted in {**manifest["inputs"], **counted}.items():
        if (found := digests.get(f"{split}.tokens")) != wanted:
            of_what = "which was counted" if split in counted else "of which the corpus's key is made"
            raise DamagedOutputError(f"{corpus.file(f'{split}.tokens')}: sha256 {found}, wanted {wanted}, {of_what}")


def _check_buckets(store: Store, shards: Output) -> None:
    """See that each bucket of a set is what its key says, and made by the set's settings with its vocabulary."""
    hasher, manifest = hashlib.sha256(), shards.manifest
    settings = _settings_of_buckets(shards)
    for entry in shards.facts["buckets"]:
        bucket = open_output(store.address("bucket", entry["key"]))
        _check(store, bucket, "bucket", entry["key"], {"vocabulary": manifest["inputs"]["vocabulary"]})
        if bucket.manifest["settings"] != settings:
            raise DamagedOutputError(f"{_place(bucket)}: made by {bucket.manifest['settings']}, wanted {settings}, as {shards.key} was")
        hasher.update(bucket.facts["contents"].encode())
    if (found := hasher.hexdigest()) != shards.facts["contents"]:
        raise DamagedOutputError(f"{_place(shards)}: its buckets' contents give {found}, wanted {shards.facts['contents']}")


def _settings_of_buckets(shards: Output) -> dict[str, Any]:
    return {name: value for name, value in shards.manifest["settings"].items() if name not in _OF_SET}


def fault_of_text(shards: Output, corpus: Output) -> str:
    """Part a corpus's text into buckets again. Returns why they are not those of a shard set; empty where they are.

    Both hold by themselves. This reads the text once and keeps none of it.
    """
    manifest, settings = shards.manifest, shards.manifest["settings"]
    form = corpus.manifest["settings"].get("form", WIKITEXT)
    reader = DocumentReader(corpus.file(f"{settings['split']}.tokens"), settings["documents"], form)
    listed = [entry["key"] for entry in shards.facts["buckets"]]
    found = list(_keys_of_buckets(shards, reader))
    for number, (key, wanted) in enumerate(zip(found, listed, strict=False)):
        if key != wanted:
            return f"{_place(shards)}: bucket {number} is {wanted}, but {reader.address} gives {key}"
    return "" if len(found) == len(listed) else f"{_place(shards)}: lists {len(listed)} buckets, wanted {manifest['settings']['buckets']}"


def _keys_of_buckets(shards: Output, reader: DocumentReader) -> Iterator[str]:
    manifest, settings = shards.manifest, _settings_of_buckets(shards)
    for documents in digests_of_buckets(reader, manifest["settings"]["buckets"]):
        yield Recipe("bucket", manifest["format"], settings, {"documents": documents, "vocabulary": manifest["inputs"]["vocabulary"]}).key


def fault_of_copy(folder: Path, manifest: Mapping[str, Any], key: str, stored: Output | None) -> str:
    """Compare the files of a registered version with their manifest, with its key, and with what the store has.

    :param key: by the version's tags. :param stored: what the store has under the key, if that holds.
    :returns: what differs; empty: nothing.
    """
    recipe = _recipe(manifest)
    if not recipe.key == manifest["key"] == key:
        return f"{MANIFEST}: is of {manifest['key']} and computes to {recipe.key}, wanted {key}, which the version's tag names"
    for name, other in (_lineage(manifest) or {}).items():
        if recipe.inputs.get(name, other) != other:
            return f"{MANIFEST}: names {name} {other}, but is made from {recipe.inputs[name]}"
    wanted = _digests(manifest) | (_digests(stored.manifest) if stored else {})
    for name, digest in wanted.items():
        path = folder / name
        found = file_digest(str(path)) if path.is_file() else "missing"
        if found != digest:
            return f"{name}: sha256 {found}, wanted {digest}"
    return ""
