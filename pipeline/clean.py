"""Tidying a store: which of its folders nothing leads to any more.

In: a store, the keys that are in use, and since when anything new counts as in use. Out: the folders that may go,
dependants before what they depend on. The decision that matters: what is kept is reached by keys, from those in use
along those that stand in manifests, so that a new kind of input needs no word here; and a corpus that may be the only
copy of its text stays, whatever leads to it.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from .data import sample, wikitext
from .errors import SettingsError
from .lease import holders
from .storage import LEASES, MANIFEST, Store

CORPUS, WORK, CHECKPOINTS = "corpus", "work", "checkpoints"
# Each after what it is made from.
_PRETRAINING = (CORPUS, "sorted", "vocabulary", "pretrained", "bucket", "shards", "plan", WORK, CHECKPOINTS, "run", "encoder")
STAGES = (*_PRETRAINING, "labelled", "finetuned")
MAX_DAYS = 36_500
_RUN_FILE = "run.json"  # of a work folder: holds its run's inputs, before there is a manifest
_KEY = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True)
class Entry:
    """A folder `<stage>/<key>`, finished or not.

    :param size: bytes. :param changed: when it was published; where it is not finished, when last something was written.
    :param links: the keys that it leads to. :param stays: whether it may be the only copy of a text.
    """

    store: Store
    stage: str
    key: str
    size: int
    changed: datetime
    links: frozenset[str]
    stays: bool

    @property
    def address(self) -> str:
        return self.store.address(self.stage, self.key)


def days_ago(days: int) -> datetime:
    """:raises SettingsError: not a number of days from 0 on."""
    if not 0 <= days <= MAX_DAYS:
        raise SettingsError(f"days: got {days}, wanted a number from 0 to {MAX_DAYS}")
    return datetime.now(UTC) - timedelta(days=days)


def survey(store: Store, local: Store) -> list[Entry]:
    """Every folder of a known stage whose name is a key, stage by stage, inputs first.

    :param local: the store on this machine, which holds the work folders; often the same.
    """
    places = [(local if stage == WORK else store, stage) for stage in STAGES]
    return [_entry(place, stage, key) for place, stage in places for key in _keys(place, stage)]


def keys_in(values: object) -> frozenset[str]:
    """Every text in nested mappings and lists that has a key's form."""
    if isinstance(values, str):
        return frozenset([values] if _KEY.fullmatch(values) else [])
    if isinstance(values, Mapping):
        values = list(values.values())
    return frozenset().union(*map(keys_in, values)) if isinstance(values, list | tuple) else frozenset()


def at_work(store: Store) -> list[str]:
    """Which processes make an output of the store now; what they read for it, nothing leads to yet."""
    return holders(store, f"{store.root}/{LEASES}")


def removable(entries: Sequence[Entry], in_use: Collection[str], since: datetime) -> list[Entry]:
    """What may go: nothing in use leads to it, nor anything that is newer.

    :param entries: as surveyed.
    :returns: in the order in which to remove them.
    """
    new = {entry.key for entry in entries if entry.changed > since}
    kept = _reached({*in_use, *new}, entries)
    return _dependants_first([entry for entry in entries if entry.key not in kept and not entry.stays])


def remove(entry: Entry) -> None:
    """Delete a folder, manifests first."""
    if entry.stage == CHECKPOINTS:
        for step in entry.store.children(entry.address):  # each has a manifest of its own
            entry.store.delete(f"{entry.address}/{step}")
    entry.store.delete(entry.address)


def _keys(store: Store, stage: str) -> Iterator[str]:
    for name in store.children(f"{store.root}/{stage}"):
        path = Path(store.address(stage, name))
        # A link is the user's, and so is what it leads to.
        if _KEY.fullmatch(name) and (not store.local_root or (path.is_dir() and not path.is_symlink())):
            yield name


def _entry(store: Store, stage: str, key: str) -> Entry:
    address = store.address(stage, key)
    head = _read(store, f"{address}/{_RUN_FILE if stage == WORK else MANIFEST}")
    try:
        size = sum(int(file["size"]) for file in head["files"])
        changed = datetime.fromisoformat(head["recorded"]["created"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):  # unfinished, damaged, or of a stage without a manifest
        size, written = store.usage(address)
        changed = written or datetime.now(UTC)  # a store that does not tell
    links = keys_in([head.get("inputs"), head.get("facts")])
    return Entry(store, stage, key, size, changed, links, stage == CORPUS and _may_be_the_only_copy(store, address, head))


def _read(store: Store, address: str) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is missing or damaged."""
    try:
        values = json.loads(store.read(address) or b"")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _may_be_the_only_copy(store: Store, address: str, manifest: Mapping[str, Any]) -> bool:
    """Whether a corpus came from elsewhere, or from where nothing is any more; or from where, its manifest cannot tell."""
    recorded = manifest.get("recorded")
    if not isinstance(recorded, dict):
        return MANIFEST in store.children(address)
    name, source = recorded.get("name"), recorded.get("source")
    if name in (wikitext.NAME, sample.NAME):
        return bool(name == wikitext.NAME)
    return source is None or "://" in str(source) or not os.access(str(source), os.R_OK)


def _by_key(entries: Iterable[Entry]) -> Mapping[str, list[Entry]]:
    found = defaultdict(list)
    for entry in entries:
        found[entry.key].append(entry)
    return found


def _reached(roots: Iterable[str], entries: Iterable[Entry]) -> set[str]:
    """Some keys and all that they lead to."""
    by_key, reached, waiting = _by_key(entries), set[str](), list(roots)
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += [link for entry in by_key.get(key, ()) for link in entry.links]
    return reached


def _dependants_first(entries: Sequence[Entry]) -> list[Entry]:
    """By links, not by stages alone: a run may go on from an encoder."""
    by_key = _by_key(entries)
    graph = {entry: [other for key in entry.links for other in by_key.get(key, ()) if other != entry] for entry in entries}
    return list(TopologicalSorter(graph).static_order())[::-1]
