"""The corpus stage: an address -> published canonical text.

In: an address, or none for WikiText-2. Out: `Corpus`, whose output holds train, valid and perhaps test, a paragraph a
line. The decision that matters: the key is the digest of the canonical text, so that one text is one corpus in
whatever form and from wherever it came. What is published is found again without reading: WikiText by its known
digests, an own corpus as long as its files have not changed since they were read.
"""

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import errors, storage
from ..addresses import without_credentials
from ..settings import CorpusSettings
from . import canonical, documents, fingerprint, held_out, layout, sample, seen, sources, wikitext
from .counts import Counts
from .wikitext import WikiText

STAGE = "corpus"
FORMAT = 1
USE_OWN = "to use a copy you have, give its folder or zip: CORPUS=path"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A corpus that is published.

    :param name: `wikitext-2`, `wikitext-103`, `sample`, or from the address: a-z, 0-9 and `-`; models are named after it.
    :param source: the address that it was read from, without credentials.
    :param note: one line for the user: what it is and why it was taken.
    :param output: files `train.tokens`, `valid.tokens` and, where the corpus has one, `test.tokens`.
    """

    name: str
    source: str
    note: str
    output: storage.Output


def fetch_corpus(
    store: storage.Store,
    address: str | None,
    settings: CorpusSettings = sources.DEFAULT,
    *,
    allow_sample: bool = False,
    max_bytes: int = sources.MAX_BYTES,
) -> Corpus:
    """Read a corpus and publish its canonical text, or find it published.

    Where an own corpus's files are those that were read from the address before, they are not read again.

    :param address: a file, a folder, a glob or a zip, local, on any fsspec store or over HTTP; `wikitext-2` (so too None or
        empty) or `wikitext-103`: from the store, else from its mirrors; `sample`: the built-in sample.
    :param settings: how an own corpus's files are read.
    :param allow_sample: without an address, and where no mirror gives WikiText-2, take the sample and say so.
    :param max_bytes: most bytes of an own corpus to download, and to unpack.
    :raises DownloadError: no mirror gave WikiText; or an own corpus's address did not answer with it.
    :raises CorpusError: the corpus is missing, unreadable or without usable text. Nothing is published then.
    """
    if address == sample.NAME:
        return _publish_sample(store, "as asked")
    known = wikitext.by_name(address)
    if known is None:
        return _read_if_changed(store, str(address), settings, max_bytes)
    found = _find_wikitext(store, known)
    if found is not None:
        return found
    try:
        return _from_mirrors(store, known)
    except errors.DownloadError as error:
        if address or not allow_sample:
            raise
        logger.warning("%s\nGoing on with the built-in sample, which shows the pipeline at work but makes no useful encoder.", error)
        return _publish_sample(store, "because WikiText-2 could not be fetched")


def _find_wikitext(store: storage.Store, known: WikiText) -> Corpus | None:
    if (digests := seen.digests(store, known)) is None:
        return None
    recipe = _recipe(digests, documents.WIKITEXT, is_held_out=False)
    try:
        output = store.find(recipe.stage, recipe.key)
    except errors.DamagedOutputError as error:
        logger.warning("the published %s is damaged and is fetched again: %s", known.title, error)
        return None
    if output is None:
        return None
    source = str(output.manifest["recorded"].get("source", output.address))
    return Corpus(known.name, source, f"{known.title}, found at {output.address}", replace(output, found=True))


def _from_mirrors(store: storage.Store, known: WikiText) -> Corpus:
    answers = []
    for mirror in known.mirrors():
        try:
            return _publish(store, mirror, CorpusSettings(form=layout.WIKITEXT), known.max_bytes, mirrored=known)
        except errors.CorpusError as error:
            logger.info("mirror: %s", error)
            answers.append(f"  {error}")
    tried = "\n".join(answers)
    raise errors.DownloadError(f"{known.title}: none of {len(answers)} mirrors gave it:\n{tried}\n{USE_OWN}")


def _read_if_changed(store: storage.Store, address: str, settings: CorpusSettings, max_bytes: int) -> Corpus:
    mark = fingerprint.take(address, settings)
    if mark is None:
        return _publish(store, address, settings, max_bytes)
    record = seen.reading_address(store, _full(address), settings)
    corpus = _recall(store, record, mark, _shown(address))
    if corpus is None:
        corpus = _publish(store, address, settings, max_bytes)
        seen.remember(store, record, seen.Reading(corpus.source, mark.digest, mark.taken, corpus.output.key, corpus.name, corpus.note))
    return corpus


def _recall(store: storage.Store, record: str, mark: fingerprint.Fingerprint, source: str) -> Corpus | None:
    """The corpus that was read from a source when its files were the same, if it is still whole."""
    if (reading := seen.recall(store, record, mark, source)) is None:
        return None
    try:
        output = store.find(STAGE, reading.key)
        if output is None:
            return None
        form, is_held_out = output.facts.get("form", documents.WIKITEXT), output.facts["valid_held_out"]
        if _recipe(output.manifest["inputs"], form, is_held_out=is_held_out).key != reading.key:
            return None  # made in another format
    except (errors.PipelineError, OSError, ValueError, KeyError, TypeError) as error:
        logger.debug("%s: of no use, so the corpus is read: %s", record, error)
        return None
    note = f"{reading.note} (not read again: unchanged since {reading.read})"
    return Corpus(reading.name, source, note, replace(output, found=True))


def _publish(store: storage.Store, address: str, settings: CorpusSettings, max_bytes: int, *, mirrored: WikiText | None = None) -> Corpus:
    """Read the corpus at an address, name it and publish it.

    :param mirrored: what the address is a mirror of.
    """
    shown = _shown(address)
    with store.staging() as workspace, sources.open_source(address, workspace, settings, max_bytes=max_bytes) as source:
        read = _Read.of(source, workspace)
        known = _identify(store, source, read, mirrored)
        name = known.name if known else _own_name(source.names[0])
        output = _publish_texts(store, read, {"name": name, "source": shown})
    if mirrored and not mirrored.digests and not seen.digests(store, mirrored):
        seen.remember_digests(store, mirrored, read.digests, shown)
    by = output.facts.get("held_out_by")
    division = f"; it has no valid split, so one {by} in {held_out.VALID_ONE_IN} of train is held out" if by else ""
    return Corpus(name, shown, f"{known.title if known else f'own text `{name}`'} from {shown}{division}", output)


def _identify(store: storage.Store, source: sources.Source, read: "_Read", mirrored: WikiText | None) -> WikiText | None:
    """Which WikiText a corpus is, if any.

    :raises CorpusError: it says that it is one, by its name or its mirror, and is not.
    """
    labels = {split: parts[0].label for split, parts in source.parts.items()}
    for known in [mirrored] if mirrored else wikitext.known():
        wanted = seen.digests(store, known)
        difference = known.difference(labels, read.digests, wanted)
        is_claimed = mirrored is not None or known.claimed_by(source.names)
        if is_claimed and read.form != documents.WIKITEXT:
            difference = f"{labels['train']}: read as documents of another form, wanted {known.title} in WikiText's, with corpus.form auto"
        if difference and is_claimed:
            todo = "" if mirrored else "; get it again, or rename the folder or zip to train on text of your own under its own name"
            raise errors.CorpusError(f"{difference}{seen.advice(store, known)}{todo}")
        if not difference and (is_claimed or wanted):
            return known
    return None


def _own_name(name: str) -> str:
    """No encoder made from own text may pass for one that was made from the sample."""
    return f"own-{name}" if name == sample.NAME else name


def _full(address: str) -> str:
    """The address with all that it says; only its digest may be written."""
    return address if "://" in address else _shown(address)


def _shown(address: str) -> str:
    """The address without credentials; a local one in full, since it is read elsewhere and later."""
    if "://" in address:
        return without_credentials(address)
    return str(Path(address).expanduser().absolute())


def _publish_sample(store: storage.Store, why: str) -> Corpus:
    source = f"the standard library of Python {platform.python_version()}"
    with store.staging() as workspace:
        output = _publish_texts(store, _Read.of(sample.sample_source(), workspace), {"name": sample.NAME, "source": source})
    note = f"the built-in sample, documentation from {source}, {why}; it shows the pipeline at work, for a useful encoder give CORPUS=path"
    return Corpus(sample.NAME, source, note, output)


@dataclass(frozen=True)
class _Read:
    """A corpus as canonical files in a local folder, and what was met when it was read."""

    folder: Path
    form: str
    texts: Mapping[str, canonical.SplitText]
    counts: Mapping[str, Counts]

    @classmethod
    def of(cls, source: sources.Source, workspace: Path) -> "_Read":
        folder = workspace / "text"
        folder.mkdir()
        found = {split: canonical.canonicalise(parts, folder / f"{split}.tokens", source.form) for split, parts in source.parts.items()}
        texts, counts = ({split: pair[number] for split, pair in found.items()} for number in (0, 1))
        return cls(folder, source.form, texts, counts)  # type: ignore[arg-type]

    @property
    def digests(self) -> dict[str, str]:
        return {split: text.sha256 for split, text in self.texts.items()}

    def file(self, split: str) -> Path:
        return self.folder / f"{split}.tokens"


def _recipe(digests: Mapping[str, str], form: str, *, is_held_out: bool) -> storage.Recipe:
    """What a corpus is made of: the text as it came, its form, and whether valid was taken out of train."""
    settings: dict[str, Any] = {} if form == documents.WIKITEXT else {"form": form}
    if is_held_out:
        settings |= {"valid_one_in": held_out.VALID_ONE_IN, "held_out": held_out.DOCUMENT}
    return storage.Recipe(STAGE, FORMAT, settings, digests)


def _publish_texts(store: storage.Store, read: _Read, recorded: Mapping[str, str]) -> storage.Output:
    """Publish canonical files under the key of what they hold; without a valid split, hold one out first."""
    is_held_out = "valid" not in read.texts

    def build(folder: Path) -> dict[str, Any]:
        found, by = dict(read.texts), {}
        if is_held_out:
            try:
                found["train"], found["valid"], what = held_out.hold_out(read.file("train"), read.file("valid"), read.form)
            except errors.CorpusError as error:
                raise errors.CorpusError(f"{recorded['source']}: {error}") from None
            by = {"held_out_by": what}
        for split in found:
            read.file(split).replace(folder / f"{split}.tokens")
        facts = {split: text.as_dict() for split, text in found.items()}
        counts = {split: counted.as_dict() for split, counted in read.counts.items()}
        return {**facts, "form": read.form, "valid_held_out": is_held_out, **by, "read": counts}

    return store.make(_recipe(read.digests, read.form, is_held_out=is_held_out), build, recorded=recorded)
