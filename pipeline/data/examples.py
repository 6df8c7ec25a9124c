"""The documents of a bucket -> examples: the rows of a shard.

In: documents, a vocabulary, settings. Out: rows with pairs and masks, and what was counted. The decision that matters: a
bucket may be gone through several times (`dupe_factor`), each time with random numbers of its own, and the first time
gives what going through once gives.

Legend: S sentences, T tokens of all sentences, R rows, N tokens of all rows.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..masked_lm import Masks, Streams, make_masks, no_masks
from ..ragged import I64, offsets_of, spans
from ..randomness import Purpose
from ..settings import ShardSettings, TextSettings
from ..shards import Examples, ShardCounts, concatenate
from ..tokens import TokenTable
from .documents import numbers_of
from .next_sentence import FOLLOWS, Bucket
from .segments import Segments, make_segments, specials_of
from .sentences import split_sentences
from .tokenizer import Vocabulary

_ROWS_AT_ONCE = 4096  # drawing masks takes some 60 bytes a token, which memory holds for these alone


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
    per_document = np.bincount(document, minlength=len(documents))
    counts = ShardCounts(
        documents=len(documents),
        documents_of_one_sentence=int((per_document == 1).sum()),
        sentences=len(document),
        tokens=len(ids),
        unknown_tokens=int((ids == vocabulary.table.unknown_id).sum()),
    )
    parts: list[Examples] = []
    for repeat in range(settings.dupe_factor):
        segments, of_pairs = make_segments(bucket, offsets, settings, repeat)
        counts += of_pairs
        for start in range(0, len(segments), _ROWS_AT_ONCE):
            rows = segments.take(slice(start, start + _ROWS_AT_ONCE))
            examples, of_rows = _rows_and_masks(bucket, ids, rows, settings, vocabulary.table, repeat)
            parts.append(examples)
            counts += of_rows
    return concatenate(parts), counts


def _rows_and_masks(
    bucket: Bucket, ids: npt.NDArray[np.int32], segments: Segments, settings: ShardSettings, table: TokenTable, repeat: int
) -> tuple[Examples, ShardCounts]:
    input_ids, token_type_ids, offsets = _rows(ids, segments, specials_of(settings.pairs), table)
    if settings.masking == "dynamic":
        masks = no_masks(input_ids, offsets)
    else:
        masks = _masks(bucket, input_ids, offsets, segments, settings, table, repeat)
    examples = Examples(
        input_ids=masks.input_ids,
        token_type_ids=token_type_ids,
        offsets=offsets,
        masked_lm_positions=masks.positions,
        masked_lm_labels=masks.labels,
        mask_offsets=masks.offsets,
        next_sentence_label=segments.label,
        document=segments.document.astype(np.int32),
    )
    counts = ShardCounts(
        rows=len(examples),
        row_tokens=len(input_ids),
        followed=int((segments.label == FOLLOWS).sum()),
        masked=len(masks.labels),
        masked_as_mask=masks.kinds[0],
        masked_as_random=masks.kinds[1],
        masked_kept=masks.kinds[2],
    )
    return examples, counts


def _masks(
    bucket: Bucket,
    input_ids: npt.NDArray[np.int32],
    offsets: I64,
    segments: Segments,
    settings: ShardSettings,
    table: TokenTable,
    repeat: int,
) -> Masks:
    purposes = Purpose.MASK_ORDER, Purpose.MASK_KIND, Purpose.MASK_WORD
    order, kind, word = (bucket.streams(settings.seed, purpose, repeat)[segments.document] for purpose in purposes)
    return make_masks(input_ids, offsets, Streams(order, kind, word, segments.number.astype(np.uint64)), settings, table)


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
    ids: npt.NDArray[np.int32], segments: Segments, specials: int, table: TokenTable
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8], I64]:
    """`<cls> A <sep> B <sep>`, or with two specials `<cls> A <sep>`, of each row [N]; the segment of each token [N]; offsets [R + 1]."""
    a, b = segments.first_length, segments.second_length
    offsets = offsets_of(a + b + specials)
    start = offsets[:-1]
    input_ids = np.full(offsets[-1], table.sep_id, np.int32)
    input_ids[start] = table.cls_id
    input_ids[spans(start + 1, a)] = ids[spans(segments.first, a)]
    token_type_ids = np.zeros(offsets[-1], np.int8)
    if specials > 2:
        input_ids[spans(start + a + 2, b)] = ids[spans(segments.second, b)]
        token_type_ids[spans(start + a + 2, b + 1)] = 1
    return input_ids, token_type_ids, offsets
