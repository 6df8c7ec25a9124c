"""Corpus and vocabulary -> shards: the stage that makes pairs and masks, bucket by bucket.

In: published corpus and vocabulary. Out: a shard set, a manifest that lists its buckets; each bucket is an output of
its own. The decision that matters: a bucket's key is made of its own documents, the settings and the vocabulary, so
that a changed corpus remakes only the buckets that its changes fall into, and who builds it changes nothing. A corpus of
one part is built here, in threads; a larger one in pieces that builders take.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CorpusError
from ..settings import MOST_BUCKETS, Preset, ShardSettings, TextSettings
from ..shards import ShardCounts
from ..storage import Output, Recipe, Store
from .buckets import FILE, Index, sort_documents
from .documents import DocumentReader, split_label, wanted_text
from .parallel import Builders, builders_in_threads, map_in_threads
from .pieces import FORMAT, Building, Sorting, build_buckets, index_of, open_once, sort_part, spans_of

PART_BYTES = 32 << 20  # of text that one builder sorts, and holds in memory meanwhile
GROUP_BYTES = 48 << 20  # of text whose buckets one builder takes, and holds; a piece is to be much more work than its task run
_PIECES_A_WORKER = 4  # so that none waits long for the last
_HELD_OUT = "held_out_buckets"
LARGE_BUCKET, GOOD_BUCKET = 24, 8  # MB of text
_MANY_DROPPED = 0.1  # of the pairs
_MANY_UNKNOWN = 0.2  # share of a split's tokens; a word-level vocabulary leaves some 6% of English unknown
MEMORY_OF_TEXT, MEMORY_OF_REPEAT = 16, 7  # bytes for each byte of text, while a bucket is built; more for each further time through

logger = logging.getLogger(__name__)


def build_shards(
    store: Store,
    corpus: Output,
    vocabulary: Output,
    split: str,
    preset: Preset,
    *,
    long: bool = False,
    builders: Callable[[], AbstractContextManager[Builders]] = builders_in_threads,
) -> Output:
    """Build the shards of a split (`train` or `valid`) with the training vocabulary.

    :param long: those of training's last part, of rows of `shards.long_max_length`.
    :param builders: who builds the pieces of a corpus of more than one part; entered where there are some to build.
    :raises CorpusError: the split gives no row, or labels of one kind only.
    """
    settings, text = _of_split(preset.shards.of_long_part() if long else preset.shards, split), preset.text
    for_key = {name: value for name, value in settings.for_key().items() if name != _HELD_OUT} | text.for_key() | {"split": split}
    recipe = Recipe("shards", FORMAT, for_key, {"corpus": corpus.key, "vocabulary": vocabulary.key})
    blank = Building(store.root, vocabulary.address, vocabulary.key, settings, text)

    recorded: dict[str, Any] = {}

    def build(folder: Path) -> dict[str, Any]:
        words = open_once(vocabulary.address)
        parts = DocumentReader.of(corpus, split, text).parts(PART_BYTES)
        advise = partial(_advise_on_size, setting=_buckets_setting(split), dupe_factor=settings.dupe_factor)
        if len(parts) == 1:
            with builders_in_threads() as those:
                outputs = _build_here(parts[0], folder / FILE, blank, those, advise)
        else:
            with builders() as those:
                sortings = [Sorting(store.root, corpus.key, recipe.key, part, settings.buckets) for part in parts]
                outputs = _build_by_many(store, sortings, blank, those, advise)
        found = {output.key for output in outputs} - {output.key for output in outputs if not output.found}
        made = len({output.key for output in outputs}) - len(found)
        recorded.update(runner=those.runner, workers=those.workers, buckets_found=len(found), buckets_made=made)
        counts = sum((ShardCounts(**output.facts["counts"]) for output in outputs), ShardCounts())
        _check(split_label(corpus, split), split, counts, settings, text)
        _advise_on_dropped(split_label(corpus, split), counts, _buckets_setting(split), settings)
        _advise_on_unknown(split_label(corpus, split), counts, words.table.special_tokens["unk_token"])
        contents = hashlib.sha256("".join(output.facts["contents"] for output in outputs).encode()).hexdigest()
        return {
            "split": split,
            "pairs": settings.pairs,
            "masking": settings.masking,
            "counts": counts.as_dict(),
            "contents": contents,
            "vocabulary_size": len(words),
            "buckets": [{"key": output.key, "rows": output.facts["counts"]["rows"]} for output in outputs],
        }

    return _make_set(store, recipe, build, recorded)


def _build_here(
    part: DocumentReader, path: Path, blank: Building, threads: Builders, advise: Callable[[list[int], int], None]
) -> list[Output]:
    """The buckets of a corpus of one part, in their order."""
    index = sort_documents(part, blank.settings.buckets, path, map_in_threads)
    advise(index.sizes(), threads.workers)
    outputs = _build_buckets([(str(path), index)], blank, threads, 0)
    path.unlink()
    return outputs


def _build_by_many(
    store: Store, sortings: Sequence[Sorting], blank: Building, builders: Builders, advise: Callable[[list[int], int], None]
) -> list[Output]:
    """The buckets of a larger corpus, in their order; what its parts were sorted into is deleted when all are built."""
    parts = list(builders.map(sort_part, sortings))
    files = [(part.file(FILE), index_of(part)) for part in parts]
    sizes = [sum(of_bucket) for of_bucket in zip(*(index.sizes() for _, index in files), strict=True)]
    advise(sizes, builders.workers)
    outputs = _build_buckets(files, blank, builders, min(GROUP_BYTES, sum(sizes) // (_PIECES_A_WORKER * builders.workers)))
    for part in parts:
        store.delete(part.address)
    return outputs


def _build_buckets(files: Sequence[tuple[str, Index]], blank: Building, builders: Builders, most: int) -> list[Output]:
    """Have buckets built, those that lie together in groups of some `most` bytes; all that are empty are one output."""
    indexes = [index for _, index in files]
    documents = [sum(of_bucket) for of_bucket in zip(*(index.documents for index in indexes), strict=True)]
    empty = next((number for number, count in enumerate(documents) if not count), None)
    sizes = [sum(of_bucket) for of_bucket in zip(*(index.sizes() for index in indexes), strict=True)]
    groups = _groups([number for number, count in enumerate(documents) if count or number == empty], sizes, most)
    pieces = [replace(blank, spans=spans_of(files, group), numbers=group) for group in groups]
    made = (output for outputs in builders.map(build_buckets, pieces) for output in outputs)
    built = dict(zip((number for group in groups for number in group), made, strict=True))
    return [built[number if count or empty is None else empty] for number, count in enumerate(documents)]


def _groups(numbers: Sequence[int], sizes: Sequence[int], most: int) -> list[range]:
    """Numbers that follow one another, together as long as their sizes make `most` at most."""
    groups: list[range] = []
    total = 0
    for number in numbers:
        total += sizes[number]
        if groups and groups[-1].stop == number and total <= most:
            groups[-1] = range(groups[-1].start, number + 1)
        else:
            groups.append(range(number, number + 1))
            total = sizes[number]
    return groups


def _of_split(settings: ShardSettings, split: str) -> ShardSettings:
    """The held-out split has buckets of its own number, and is gone through once: repeating it would tell nothing new."""
    return settings if split == "train" else replace(settings, buckets=settings.held_out_buckets, dupe_factor=1)


def _buckets_setting(split: str) -> str:
    return "shards.buckets" if split == "train" else f"shards.{_HELD_OUT}"


def _advise_on_size(sizes: list[int], workers: int, setting: str, dupe_factor: int) -> None:
    """Say so where fewer, larger buckets than is good take memory."""
    largest = max(sizes) >> 20
    wanted = min(len(sizes) * largest // GOOD_BUCKET, MOST_BUCKETS)
    if largest > LARGE_BUCKET and wanted > len(sizes):
        memory = largest * (MEMORY_OF_TEXT + MEMORY_OF_REPEAT * (dupe_factor - 1))
        logger.warning(
            "%s: %d buckets of up to %d MB of text, built in some %d MB of memory each, %d at a time; for less memory set it to %d",
            *(setting, len(sizes), largest, memory, workers, wanted),
        )


def _advise_on_dropped(label: str, counts: ShardCounts, setting: str, settings: ShardSettings) -> None:
    """Say so where much is left out because buckets hold few documents."""
    if settings.pairs != "sentence_order" and counts.dropped_no_negative > counts.pairs * _MANY_DROPPED:
        dropped = counts.dropped_no_negative, counts.pairs, setting, settings.buckets
        logger.warning("%s: %d of %d pairs are left out, as no honest random B is in their bucket; set fewer %s than %d", label, *dropped)


def _advise_on_unknown(label: str, counts: ShardCounts, unknown: str) -> None:
    """Say so where the vocabulary does not know the text."""
    if counts.unknown_tokens > counts.tokens * _MANY_UNKNOWN:
        share = 100 * counts.unknown_tokens / counts.tokens
        todo = "take a larger vocabulary, or text that has spaces between its words"
        logger.warning("%s: %.0f%% of the tokens are %s; %s", label, share, unknown, todo)


def _make_set(store: Store, recipe: Recipe, build: Callable[[Path], dict[str, Any]], recorded: Mapping[str, Any]) -> Output:
    """Find or make a set; one with a bucket that is missing or damaged is made again, which remakes that bucket."""
    shards = store.make(recipe, build, recorded=recorded)
    if not shards.found or all(store.whole("bucket", entry["key"], verify=True) for entry in shards.facts["buckets"]):
        return shards
    store.withdraw(recipe.stage, recipe.key)
    return store.make(recipe, build, recorded=recorded)


def _check(label: str, split: str, counts: ShardCounts, settings: ShardSettings, text: TextSettings) -> None:
    """See that there are rows, and labels of both kinds to learn from.

    :raises CorpusError: there are not; says what of the text or the settings is the cause.
    """
    documents = f"{label}: {counts.documents} documents"
    if not counts.pairs:
        lacks = "no two sentences in one of them, so no pair" if settings.pairs == "neighbours" else "no sentence in them"
        raise CorpusError(f"{documents} and {lacks}; {wanted_text(text)}")
    if settings.pairs == "sentence_order" and counts.dropped_one_sentence == counts.pairs:
        raise CorpusError(f"{documents} and no two sentences in one of them, so no order; {wanted_text(text)}")
    if not counts.rows:
        raise CorpusError(f"{label}: none of {counts.pairs} pairs can be used: {_why_dropped(split, counts, settings)}")
    if split != "train" or settings.pairs == "none" or counts.followed not in (0, counts.rows):
        return
    if settings.pairs == "next_sentence" and counts.documents_of_one_sentence == counts.documents:
        raise CorpusError(f"{documents} of one sentence each, so B never follows A; {wanted_text(text)}, or set shards.pairs to none")
    todo = "bring more text or try another shards.seed"
    raise CorpusError(f"{label}: all {counts.rows} pairs got the same label, so there is nothing to learn from it; {todo}")


def _why_dropped(split: str, counts: ShardCounts, settings: ShardSettings) -> str:
    few = f"bring more text or set fewer {_buckets_setting(split)} than {settings.buckets}"
    if settings.pairs == "sentence_order":
        return f"{counts.dropped_one_sentence} have one sentence and {counts.dropped_no_negative} are in order both ways; bring other text"
    if settings.pairs == "next_sentence":
        if counts.documents > 1:
            return f"for {counts.dropped_no_negative} no honest random B exists in another document of their bucket; {few}"
        return (
            "there is one document, and a random B is from another; part the text into documents by blank lines, "
            "or set text.documents to paragraph, or shards.pairs to sentence_order or none"
        )
    return (
        f"{counts.dropped_too_long} are longer than shards.max_length, {settings.max_length} tokens, and for "
        f"{counts.dropped_no_negative} no honest negative exists in their bucket; "
        f"{'raise shards.max_length' if counts.dropped_too_long > counts.dropped_no_negative else few}"
    )
