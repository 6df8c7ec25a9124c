"""Corpus and vocabulary -> shards: the stage that makes pairs and masks, bucket by bucket.

In: published corpus and vocabulary. Out: a shard set, a manifest that lists its buckets; each bucket is an output of
its own. The decision that matters: a bucket's key is made of its own documents, the settings and the vocabulary, so
that a changed corpus remakes only the buckets that its changes fall into.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CorpusError
from ..settings import MOST_BUCKETS, Preset, ShardSettings, TextSettings
from ..shards import SHARD, ShardCounts, write_shard
from ..storage import Output, Recipe, Store
from .documents import DocumentReader, numbers_of, read_bucket, spill_buckets, split_label, wanted_text
from .examples import make_examples
from .parallel import MOST_THREADS, map_in_threads
from .tokenizer import Vocabulary

FORMAT = 2
_HELD_OUT = "held_out_buckets"
LARGE_BUCKET, GOOD_BUCKET = 24, 8  # MB of text
_MANY_DROPPED = 0.1  # of the pairs
_MANY_UNKNOWN = 0.2  # share of a split's tokens; a word-level vocabulary leaves some 6% of English unknown
_MEMORY_OF_TEXT, _MEMORY_OF_REPEAT = 16, 7  # bytes for each byte of text, while a bucket is built; more for each further time through

logger = logging.getLogger(__name__)


def build_shards(store: Store, corpus: Output, vocabulary: Output, split: str, preset: Preset, *, long: bool = False) -> Output:
    """Build the shards of a split (`train` or `valid`) with the training vocabulary.

    :param long: those of training's last part, of rows of `shards.long_max_length`.
    :raises CorpusError: the split gives no row, or labels of one kind only.
    """
    settings, text = _of_split(preset.shards.of_long_part() if long else preset.shards, split), preset.text
    for_key = {name: value for name, value in settings.for_key().items() if name != _HELD_OUT} | text.for_key() | {"split": split}
    recipe = Recipe("shards", FORMAT, for_key, {"corpus": corpus.key, "vocabulary": vocabulary.key})

    recorded: dict[str, int] = {}

    def build(folder: Path) -> dict[str, Any]:
        words = Vocabulary.open(vocabulary)
        documents = spill_buckets(DocumentReader.of(corpus, split, text), settings.buckets, folder)
        _advise_on_size(list(documents), _buckets_setting(split), settings.dupe_factor)
        empty = next((path for path, count in documents.items() if not count), None)  # all that are empty are one output
        distinct = [path for path, count in documents.items() if count or path == empty]
        built = dict(
            zip(
                distinct,
                map_in_threads(lambda path: _build_bucket(store, path, words, vocabulary.key, settings, text), distinct),
                strict=True,
            )
        )
        outputs = [built[path if count or empty is None else empty] for path, count in documents.items()]
        for path in documents:
            path.unlink()
        found = sum(output.found for output in built.values())
        recorded.update(buckets_found=found, buckets_made=len(built) - found)
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


def _of_split(settings: ShardSettings, split: str) -> ShardSettings:
    """The held-out split has buckets of its own number, and is gone through once: repeating it would tell nothing new."""
    return settings if split == "train" else replace(settings, buckets=settings.held_out_buckets, dupe_factor=1)


def _buckets_setting(split: str) -> str:
    return "shards.buckets" if split == "train" else f"shards.{_HELD_OUT}"


def _advise_on_size(buckets: list[Path], setting: str, dupe_factor: int) -> None:
    """Say so where fewer, larger buckets than is good take memory."""
    largest = max(path.stat().st_size for path in buckets) >> 20
    wanted = min(len(buckets) * largest // GOOD_BUCKET, MOST_BUCKETS)
    if largest > LARGE_BUCKET and wanted > len(buckets):
        memory = largest * (_MEMORY_OF_TEXT + _MEMORY_OF_REPEAT * (dupe_factor - 1))
        logger.warning(
            "%s: %d buckets of up to %d MB of text, built in some %d MB of memory each, one a core at a time (at most %d); "
            "for less memory set it to %d",
            *(setting, len(buckets), largest, memory, MOST_THREADS, wanted),
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


def _build_bucket(store: Store, path: Path, words: Vocabulary, vocabulary_key: str, settings: ShardSettings, text: TextSettings) -> Output:
    documents = read_bucket(path)
    contents = hashlib.sha256(numbers_of(documents.column("digest").combine_chunks()).tobytes()).hexdigest()
    for_key = {name: value for name, value in settings.for_key().items() if not name.endswith("buckets")} | text.for_key()
    recipe = Recipe("bucket", FORMAT, for_key, {"documents": contents, "vocabulary": vocabulary_key})

    def build(folder: Path) -> dict[str, Any]:
        examples, counts = make_examples(documents, words, settings, text)
        write_shard(folder / SHARD, examples)
        return {"counts": counts.as_dict(), "contents": examples.digest()}

    return store.make(recipe, build, verify=True)


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
