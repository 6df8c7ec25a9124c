"""Corpus and vocabulary -> shards: the stage that makes pairs and masks, bucket by bucket.

In: published corpus and vocabulary. Out: a shard set, a manifest that lists its buckets; each bucket is an output of
its own. The decision that matters: a bucket's key is made of its own documents, the settings and the vocabulary, so
that a changed corpus remakes only the buckets that its changes fall into.

Legend: S sentences, T tokens of all sentences, P pairs, R rows, N tokens of all rows.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorpusError
from ..masked_lm import Streams, make_masks
from ..ragged import I64, offsets_of, spans
from ..randomness import Purpose
from ..settings import MOST_BUCKETS, Preset, ShardSettings, TextSettings
from ..shards import SHARD, Examples, ShardCounts, write_shard
from ..storage import Output, Recipe, Store
from ..tokens import TokenTable
from .documents import DocumentReader, numbers_of, read_bucket, spill_buckets, split_label, wanted_text
from .next_sentence import FOLLOWS, Bucket, Pairs, make_pairs, neighbours
from .parallel import MOST_THREADS, map_in_threads
from .sentences import split_sentences
from .tokenizer import Vocabulary

FORMAT = 2
SPECIALS_OF_A_PAIR = 3
LARGE_BUCKET, GOOD_BUCKET = 24, 8  # MB of text
_MEMORY_OF_TEXT = 16  # bytes for each byte of text, while a bucket is built

logger = logging.getLogger(__name__)


def build_shards(store: Store, corpus: Output, vocabulary: Output, split: str, preset: Preset) -> Output:
    """Build the shards of a split (`train` or `valid`) with the training vocabulary.

    :raises CorpusError: the split gives no pair, or pairs of one label only.
    """
    settings, text = preset.shards, preset.text
    for_key = settings.for_key() | text.for_key() | {"split": split}
    recipe = Recipe("shards", FORMAT, for_key, {"corpus": corpus.key, "vocabulary": vocabulary.key})

    recorded: dict[str, int] = {}

    def build(folder: Path) -> dict[str, Any]:
        words = Vocabulary.open(vocabulary)
        documents = spill_buckets(DocumentReader.of(corpus, split, text), settings.buckets, folder)
        _advise_on_size(list(documents))
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
        _check(split_label(corpus, split), counts, settings, text)
        if split == "train" and counts.followed in (0, counts.rows):
            raise CorpusError(
                f"{split_label(corpus, split)}: all {counts.rows} pairs got the same label, so next-sentence prediction has nothing "
                "to learn; bring more text or try another shards.seed"
            )
        contents = hashlib.sha256("".join(output.facts["contents"] for output in outputs).encode()).hexdigest()
        return {
            "split": split,
            "counts": counts.as_dict(),
            "contents": contents,
            "vocabulary_size": len(words),
            "buckets": [{"key": output.key, "rows": output.facts["counts"]["rows"]} for output in outputs],
        }

    return _make_set(store, recipe, build, recorded)


def _advise_on_size(buckets: list[Path]) -> None:
    """Say so where fewer, larger buckets than is good take memory."""
    largest = max(path.stat().st_size for path in buckets) >> 20
    wanted = min(len(buckets) * largest // GOOD_BUCKET, MOST_BUCKETS)
    if largest > LARGE_BUCKET and wanted > len(buckets):
        logger.warning(
            "shards.buckets: %d buckets of up to %d MB of text, built in some %d MB of memory each, one a core at a time (at most %d); "
            "for less memory set it to %d",
            *(len(buckets), largest, largest * _MEMORY_OF_TEXT, MOST_THREADS, wanted),
        )


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


def make_examples(documents: pa.Table, vocabulary: Vocabulary, settings: ShardSettings, text: TextSettings) -> tuple[Examples, ShardCounts]:
    """Pairs and masks of one bucket.

    :param documents: columns text and digest, sorted by digest.
    """
    sentences = split_sentences(documents.column("text").combine_chunks(), text)
    ids, offsets = vocabulary.encode(sentences.text)
    filled = np.diff(offsets) > 0  # an empty sentence is none
    document, offsets = sentences.document[filled], offsets_of(np.diff(offsets)[filled])
    digests, occurrence = _count_among_equals(documents.column("digest").combine_chunks())
    bucket = Bucket(document, _identities(ids, offsets), digests, occurrence)
    pairs = make_pairs(bucket, settings.seed)

    lengths = np.diff(offsets)
    row_lengths = lengths[pairs.first] + lengths[pairs.second] + SPECIALS_OF_A_PAIR
    fits = row_lengths <= settings.max_length
    pairs = Pairs(pairs.first[fits], pairs.second[fits], pairs.label[fits], pairs.number[fits], pairs.without_negative)
    input_ids, token_type_ids, row_offsets = _rows(ids, offsets, pairs, vocabulary.table)
    own = document[pairs.first]
    order, kind, word = (bucket.streams(settings.seed, p)[own] for p in (Purpose.MASK_ORDER, Purpose.MASK_KIND, Purpose.MASK_WORD))
    masks = make_masks(input_ids, row_offsets, Streams(order, kind, word, pairs.number.astype(np.uint64)), settings, vocabulary.table)
    examples = Examples(
        input_ids=masks.input_ids,
        token_type_ids=token_type_ids,
        offsets=row_offsets,
        masked_lm_positions=masks.positions,
        masked_lm_labels=masks.labels,
        mask_offsets=masks.offsets,
        next_sentence_label=pairs.label,
        document=own.astype(np.int32),
    )
    first = neighbours(document)
    per_document = np.bincount(document, minlength=len(documents))
    counts = ShardCounts(
        documents=len(documents),
        documents_of_one_sentence=int((per_document == 1).sum()),
        sentences=len(lengths),
        tokens=len(ids),
        unknown_tokens=int((ids == vocabulary.table.unknown_id).sum()),
        pairs=len(first),
        pairs_that_fit=int((lengths[first] + lengths[first + 1] + SPECIALS_OF_A_PAIR <= settings.max_length).sum()),
        dropped_too_long=int((~fits).sum()),
        dropped_no_negative=pairs.without_negative,
        rows=len(examples),
        row_tokens=len(input_ids),
        followed=int((pairs.label == FOLLOWS).sum()),
        masked=len(masks.labels),
        masked_as_mask=masks.kinds[0],
        masked_as_random=masks.kinds[1],
        masked_kept=masks.kinds[2],
    )
    return examples, counts


def _count_among_equals(digests: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Of sorted digests: 64 bits of each, and how many equal ones stand before it."""
    numbers = numbers_of(digests)
    new = np.ones(len(numbers), bool)
    new[1:] = (numbers[1:] != numbers[:-1]).any(1)
    place = np.arange(len(numbers))
    first = np.maximum.accumulate(np.where(new, place, 0)) if len(place) else place
    return numbers[:, 1].copy(), (place - first).astype(np.uint64)


def _identities(ids: npt.NDArray[np.int32], offsets: I64) -> I64:
    """A number [S] for each sentence, equal where the ids are equal."""
    rows = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets * 4), pa.py_buffer(ids)])
    identities: I64 = pc.dictionary_encode(rows).indices.to_numpy().astype(np.int64)
    return identities


def _rows(
    ids: npt.NDArray[np.int32], offsets: I64, pairs: Pairs, table: TokenTable
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8], I64]:
    """`<cls> A <sep> B <sep>` of each pair [N], the segment of each token [N], and the rows' offsets [R + 1]."""
    a, b = (np.diff(offsets)[side] for side in (pairs.first, pairs.second))
    row_offsets = offsets_of(a + b + SPECIALS_OF_A_PAIR)
    start = row_offsets[:-1]
    input_ids = np.full(row_offsets[-1], table.sep_id, np.int32)
    input_ids[start] = table.cls_id
    input_ids[spans(start + 1, a)] = ids[spans(offsets[pairs.first], a)]
    input_ids[spans(start + a + 2, b)] = ids[spans(offsets[pairs.second], b)]
    token_type_ids = np.zeros(row_offsets[-1], np.int8)
    token_type_ids[spans(start + a + 2, b + 1)] = 1
    return input_ids, token_type_ids, row_offsets


def _check(label: str, counts: ShardCounts, settings: ShardSettings, text: TextSettings) -> None:
    if not counts.pairs:
        raise CorpusError(f"{label}: {counts.documents} documents and no two sentences in one of them, so no pair; {wanted_text(text)}")
    if not counts.rows:
        few = f"bring more text or set fewer shards.buckets than {settings.buckets}"
        raise CorpusError(
            f"{label}: none of {counts.pairs} pairs can be used: {counts.dropped_too_long} are longer than shards.max_length, "
            f"{settings.max_length} tokens, and for {counts.dropped_no_negative} no honest negative exists in their bucket; "
            f"{'raise shards.max_length' if counts.dropped_too_long > counts.dropped_no_negative else few}"
        )
