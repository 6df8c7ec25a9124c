"""The corpus stage: an address -> published canonical text.

In: an address, or none for WikiText-2. Out: `Corpus`, whose output holds train, valid and perhaps test, a paragraph a
line. The decision that matters: the key is the digest of the canonical text, so that one text is one corpus in
whatever form and from wherever it came. What is published is found again without reading: WikiText-2 by its known
digests, an own corpus as long as its files have not changed since they were read.
"""

import json
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import errors, storage
from . import canonical, download, fingerprint, sample, sources, wikitext

STAGE = "corpus"
FORMAT = 1
SEEN = "seen"  # folder of the store: what was read from which address
_NAME_LENGTH = 20  # hexadecimal digits
USE_OWN = "to use a copy you have, give its folder or zip: CORPUS=path"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A corpus that is published.

    :param name: `wikitext-2`, `sample`, or from the address: a-z, 0-9 and `-`; models are named after it.
    :param source: the address that it was read from, without credentials.
    :param note: one line for the user: what it is and why it was taken.
    :param output: files `train.tokens`, `valid.tokens` and, where the corpus has one, `test.tokens`.
    """

    name: str
    source: str
    note: str
    output: storage.Output


def fetch_corpus(store: storage.Store, address: str | None, *, allow_sample: bool = False, max_bytes: int = sources.MAX_BYTES) -> Corpus:
    """Read a corpus and publish its canonical text, or find it published.

    Where an own corpus's files are those that were read from the address before, they are not read again.

    :param address: a folder or zip, local, on any fsspec store or over HTTP; `wikitext-2` or None or empty: WikiText-2,
        from the store, else from its mirrors; `sample`: the built-in sample.
    :param allow_sample: without an address, and where no mirror gives WikiText-2, take the sample and say so.
    :param max_bytes: most bytes of an own corpus to download, and to unpack.
    :raises DownloadError: no mirror gave WikiText-2; or an own corpus's address did not answer with it.
    :raises CorpusError: the corpus is missing, unreadable or without usable text. Nothing is published then.
    """
    if address == sample.NAME:
        return _publish_sample(store, "as asked")
    if address and address != wikitext.NAME:
        return _read_if_changed(store, address, max_bytes)
    found = _find_wikitext(store)
    if found is not None:
        return found
    try:
        return _from_mirrors(store)
    except errors.DownloadError as error:
        if address or not allow_sample:
            raise
        logger.warning("%s\nGoing on with the built-in sample, which shows the pipeline at work but makes no useful encoder.", error)
        return _publish_sample(store, "because WikiText-2 could not be fetched")


def _find_wikitext(store: storage.Store) -> Corpus | None:
    recipe = _recipe(wikitext.DIGESTS, held_out=False)
    try:
        output = store.find(recipe.stage, recipe.key)
    except errors.DamagedOutputError as error:
        logger.warning("the published WikiText-2 is damaged and is fetched again: %s", error)
        return None
    if output is None:
        return None
    source = str(output.manifest["recorded"].get("source", output.address))
    return Corpus(wikitext.NAME, source, f"WikiText-2, found at {output.address}", replace(output, found=True))


def _from_mirrors(store: storage.Store) -> Corpus:
    answers = []
    for mirror in wikitext.mirrors():
        try:
            return _publish(store, mirror, wikitext.MAX_BYTES, is_mirror=True)
        except errors.CorpusError as error:
            logger.info("mirror: %s", error)
            answers.append(f"  {error}")
    tried = "\n".join(answers)
    raise errors.DownloadError(f"WikiText-2: none of {len(answers)} mirrors gave it:\n{tried}\n{USE_OWN}")


def _read_if_changed(store: storage.Store, address: str, max_bytes: int) -> Corpus:
    mark = fingerprint.take(address)
    if mark is None:
        return _publish(store, address, max_bytes)
    record = f"{store.root}/{SEEN}/{storage.digest(_full(address).encode())[:_NAME_LENGTH]}.json"
    corpus = _recall(store, record, mark, _shown(address))
    if corpus is None:
        corpus = _publish(store, address, max_bytes)
        _remember(store, record, mark, corpus)
    return corpus


def _recall(store: storage.Store, record: str, mark: fingerprint.Fingerprint, source: str) -> Corpus | None:
    """The corpus that was read from a source when its files were the same, if it is still whole."""
    try:
        seen = json.loads(store.read(record) or b"null")
        if not seen or (seen["fingerprint"], seen["source"]) != (mark.digest, source):
            return None
        key, name, note = (str(seen[field]) for field in ("key", "name", "note"))
        output = store.find(STAGE, key)
        if output is None or _recipe(output.manifest["inputs"], held_out=output.facts["valid_held_out"]).key != key:
            return None  # gone, or made in another format
        return Corpus(name, source, f"{note} (not read again: unchanged since {seen['read']})", replace(output, found=True))
    except (errors.PipelineError, OSError, ValueError, KeyError, TypeError) as error:
        logger.debug("%s: of no use, so the corpus is read: %s", record, error)
        return None


def _remember(store: storage.Store, record: str, mark: fingerprint.Fingerprint, corpus: Corpus) -> None:
    seen = {"source": corpus.source, "fingerprint": mark.digest, "read": mark.taken}
    seen |= {"key": corpus.output.key, "name": corpus.name, "note": corpus.note}
    try:
        store.overwrite(record, json.dumps(seen, indent=1).encode())
    except (errors.PipelineError, OSError) as error:
        logger.debug("%s: not written, so the corpus is read again the next time: %s", record, error)


def _publish(store: storage.Store, address: str, max_bytes: int, *, is_mirror: bool = False) -> Corpus:
    """Read the corpus at an address, name it and publish it."""
    with store.staging() as workspace, sources.open_source(address, workspace, max_bytes=max_bytes) as source:
        texts = _canonicalise(source, workspace)
        difference = wikitext.difference(
            {split: parts[0].label for split, parts in source.parts.items()}, {split: text.sha256 for split, text in texts.items()}
        )
        if difference and (is_mirror or wikitext.claims(source.names)):
            todo = "" if is_mirror else "; get it again, or rename the folder or zip to train on text of your own under its own name"
            raise errors.CorpusError(f"{difference}{todo}")
        name = wikitext.NAME if difference is None else _own_name(source.names[0])
        shown = _shown(address)
        output = _publish_texts(store, workspace, texts, {"name": name, "source": shown})
    title = "WikiText-2" if difference is None else f"own text `{name}`"
    held_out = f"; it has no valid split, so one paragraph in {canonical.VALID_ONE_IN} of train is held out"
    return Corpus(name, shown, f"{title} from {shown}{held_out if output.facts['valid_held_out'] else ''}", output)


def _own_name(name: str) -> str:
    """No encoder made from own text may pass for one that was made from the sample."""
    return f"own-{name}" if name == sample.NAME else name


def _full(address: str) -> str:
    """The address with all that it says; only its digest may be written."""
    return address if "://" in address else _shown(address)


def _shown(address: str) -> str:
    """The address without credentials; a local one in full, since it is read elsewhere and later."""
    if "://" in address:
        return download.without_credentials(address)
    return str(Path(address).expanduser().absolute())


def _publish_sample(store: storage.Store, why: str) -> Corpus:
    source = f"the standard library of Python {platform.python_version()}"
    with store.staging() as workspace:
        texts = _canonicalise(sample.sample_source(), workspace)
        output = _publish_texts(store, workspace, texts, {"name": sample.NAME, "source": source})
    note = f"the built-in sample, documentation from {source}, {why}; it shows the pipeline at work, for a useful encoder give CORPUS=path"
    return Corpus(sample.NAME, source, note, output)


def _canonicalise(source: sources.Source, workspace: Path) -> dict[str, canonical.SplitText]:
    (workspace / "text").mkdir()
    return {split: canonical.canonicalise(parts, _text_file(workspace, split)) for split, parts in source.parts.items()}


def _text_file(workspace: Path, split: str) -> Path:
    return workspace / "text" / f"{split}.tokens"


def _recipe(digests: Mapping[str, str], *, held_out: bool) -> storage.Recipe:
    """What a corpus is made of: the text as it came, and whether valid was taken out of train."""
    settings = {"valid_one_in": canonical.VALID_ONE_IN} if held_out else {}
    return storage.Recipe(STAGE, FORMAT, settings, digests)


def _publish_texts(
    store: storage.Store, workspace: Path, texts: Mapping[str, canonical.SplitText], recorded: Mapping[str, str]
) -> storage.Output:
    """Publish canonical files under the key of what they hold; without a valid split, hold one out first."""
    held_out = "valid" not in texts
    recipe = _recipe({split: text.sha256 for split, text in texts.items()}, held_out=held_out)

    def build(folder: Path) -> dict[str, Any]:
        found = dict(texts)
        if held_out:
            try:
                found["train"], found["valid"] = canonical.hold_out(_text_file(workspace, "train"), _text_file(workspace, "valid"))
            except errors.CorpusError as error:
                raise errors.CorpusError(f"{recorded['source']}: {error}") from None
        for split in found:
            _text_file(workspace, split).replace(folder / f"{split}.tokens")
        return {**{split: text.as_dict() for split, text in found.items()}, "valid_held_out": held_out}

    return store.make(recipe, build, recorded=recorded)
