"""What was read from where, so that it is not read again; and what WikiText-103 is.

In: a store. Out: small records in its folder `seen`. The decision that matters: a record only saves work; one that is
missing, damaged or foreign is ignored, and the corpus is read.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .. import errors, storage
from ..settings import CorpusSettings
from .fingerprint import Fingerprint
from .layout import SPLITS
from .wikitext import WikiText

SEEN = "seen"
_NAME_LENGTH = 20  # hexadecimal digits

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Reading:
    """A corpus as it was read: source, fingerprint and time, and what was made of it."""

    source: str
    fingerprint: str
    read: str
    key: str
    name: str
    note: str


def reading_address(store: storage.Store, address: str, settings: CorpusSettings) -> str:
    """Where the record of an address read by some settings lies.

    :param address: with all that it says; only its digest is written.
    """
    asked = json.dumps([address, settings.as_dict()], sort_keys=True)
    return f"{store.root}/{SEEN}/{storage.digest(asked.encode())[:_NAME_LENGTH]}.json"


def recall(store: storage.Store, record: str, mark: Fingerprint, source: str) -> Reading | None:
    """What was read from a source when its files were the same."""
    found = _read(store, record, lambda values: Reading(**{name: str(value) for name, value in values.items()}))
    return found if found and (found.fingerprint, found.source) == (mark.digest, source) else None


def remember(store: storage.Store, record: str, reading: Reading) -> None:
    """Keep a reading for the next time."""
    _write(store, record, vars(reading))


def _digests_address(store: storage.Store, known: WikiText) -> str:
    return f"{store.root}/{SEEN}/{known.name}.json"


def digests(store: storage.Store, known: WikiText) -> Mapping[str, str] | None:
    """The digests that a known corpus has to have: its own, else those of its first download into this store."""
    return known.digests or _read(store, _digests_address(store, known), lambda values: {split: str(values[split]) for split in SPLITS})


def remember_digests(store: storage.Store, known: WikiText, found: Mapping[str, str], source: str) -> None:
    """Hold whatever is called so from now on to these."""
    _write(store, _digests_address(store, known), {**found, "source": source})


def advice(store: storage.Store, known: WikiText) -> str:
    """Where the digests that something differs from come from, for a message; empty where they are known beforehand."""
    return "" if known.digests else f" (of the first download, recorded in {_digests_address(store, known)}; delete that if it was wrong)"


def _read(store: storage.Store, record: str, understand: Callable[[dict[str, object]], _T]) -> _T | None:
    try:
        values = json.loads(store.read(record) or b"null")
        return understand(values) if values else None
    except (errors.PipelineError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.debug("%s: of no use, so the corpus is read: %s", record, error)
        return None


def _write(store: storage.Store, record: str, values: Mapping[str, object]) -> None:
    try:
        store.overwrite(record, json.dumps(values, indent=1).encode())
    except (errors.PipelineError, OSError) as error:
        logger.debug("%s: not written, so the corpus is read again the next time: %s", record, error)
