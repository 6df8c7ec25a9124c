"""Masks for masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

In: rows `<cls> A <sep> B <sep>`. Out: the rows with masks applied, the sorted masked positions and the tokens that
stood there. The decision that matters: special tokens are never candidates; a random replacement is a real word.

Legend: R rows, N tokens of all rows, M masked positions of all rows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..settings import ShardSettings
from ..shards import IntArray
from ..tokens import CLS_ID, FIRST_WORD_ID, MASK_ID, PAD_ID, SEP_ID
from .ragged import I64, offsets_of
from .randomness import U64, below, bits, unit

_ROW_SPAN = np.uint64(1 << 15)  # counters of a row's positions; max_length is below it


@dataclass(frozen=True)
class Streams:
    """Random streams [R] of each row's document, and the row's count within the document [R]."""

    order: U64
    kind: U64
    word: U64
    number: U64


@dataclass(frozen=True)
class Masks:
    """Masks of rows.

    :param input_ids: int32 [N], masks applied. :param positions: int16 [M], within the row, sorted.
    :param labels: int32 [M]. :param offsets: int64 [R + 1].
    :param kinds: how many became (mask, random word, kept).
    """

    input_ids: IntArray
    positions: IntArray
    labels: IntArray
    offsets: I64
    kinds: tuple[int, int, int]


def make_masks(input_ids: npt.NDArray[np.int32], offsets: I64, random: Streams, settings: ShardSettings, vocabulary_size: int) -> Masks:
    """Mask a share of each row's length, at least one position where there is a candidate."""
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(offsets[-1]) - offsets[row]
    counter = random.number[row] * _ROW_SPAN + position.astype(np.uint64)

    special = np.isin(input_ids, (PAD_ID, CLS_ID, SEP_ID, MASK_ID))
    candidates = np.bincount(row[~special], minlength=len(lengths))
    wanted = np.minimum(np.maximum(1, np.rint(lengths * settings.masking_rate).astype(np.int64)), settings.max_predictions_per_seq)
    counts = np.minimum(wanted, candidates)

    # Rank each row's candidates by a random number: sort by row, then special last, then 63 - 1 random bits.
    order_key = (bits(random.order[row], counter) >> np.uint64(1)) | (special.astype(np.uint64) << np.uint64(63))
    by_row = np.lexsort((order_key, row))
    rank = np.empty_like(by_row)
    rank[by_row] = np.arange(len(by_row)) - offsets[row]
    chosen = np.flatnonzero(rank < counts[row])

    labels = input_ids[chosen]
    kind = unit(random.kind[row[chosen]], counter[chosen])
    words = below(random.word[row[chosen]], counter[chosen], np.uint64(vocabulary_size - FIRST_WORD_ID)).astype(np.int32)
    as_mask = kind < settings.mask_token_rate
    as_random = ~as_mask & (kind < settings.mask_token_rate + settings.random_token_rate)
    masked = input_ids.copy()
    masked[chosen[as_mask]] = MASK_ID
    masked[chosen[as_random]] = words[as_random] + FIRST_WORD_ID
    kinds = (int(as_mask.sum()), int(as_random.sum()), int((~as_mask & ~as_random).sum()))
    return Masks(masked, position[chosen].astype(np.int16), labels, offsets_of(counts), kinds)
