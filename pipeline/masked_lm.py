"""Masks for masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

In: rows `<cls> A <sep> B <sep>`. Out: the rows with masks applied, the sorted masked positions and the tokens that
stood there. The decision that matters: special tokens are never candidates; a random replacement is a real word.

Legend: R rows, N tokens of all rows, M masked positions of all rows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .ragged import I64, offsets_of
from .randomness import U64, Purpose, below, bits, streams, unit
from .settings import ShardSettings
from .shards import IntArray
from .tokens import TokenTable

_LAST = np.uint64(2**64 - 1)
_ROWS_AT_ONCE = 1024  # so that one long row makes few others wide
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


def make_masks(input_ids: npt.NDArray[np.int32], offsets: I64, random: Streams, settings: ShardSettings, table: TokenTable) -> Masks:
    """Mask a share of each row's length, at least one position where there is a candidate."""
    lengths = np.diff(offsets)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    counter = np.repeat(random.number * _ROW_SPAN, lengths) + position.astype(np.uint64)

    special = table.never_masked[input_ids]
    candidates = lengths - np.diff(np.cumsum(np.concatenate([[0], special]))[offsets])
    wanted = np.minimum(np.maximum(1, np.rint(lengths * settings.masking_rate).astype(np.int64)), settings.max_predictions_per_seq)
    counts = np.minimum(wanted, candidates)

    # Each candidate draws a number, no two of a row the same one; the row's smallest are chosen.
    drawn = bits(np.repeat(random.order, lengths), counter)
    drawn[special] = _LAST
    chosen = np.flatnonzero((drawn <= np.repeat(_smallest(drawn, offsets, counts), lengths)) & ~special)

    labels = input_ids[chosen]
    row = np.repeat(np.arange(len(lengths)), counts)
    kind = unit(random.kind[row], counter[chosen])
    words = table.words[below(random.word[row], counter[chosen], np.uint64(len(table.words))).astype(np.int64)]
    as_mask = kind < settings.mask_token_rate
    as_random = ~as_mask & (kind < settings.mask_token_rate + settings.random_token_rate)
    masked = input_ids.copy()
    masked[chosen[as_mask]] = table.mask_id
    masked[chosen[as_random]] = words[as_random]
    kinds = (int(as_mask.sum()), int(as_random.sum()), int((~as_mask & ~as_random).sum()))
    return Masks(masked, position[chosen].astype(np.int16), labels, offsets_of(counts), kinds)


def dynamic_masks(
    input_ids: npt.NDArray[np.int32], offsets: I64, rows: I64, settings: ShardSettings, table: TokenTable, epoch: int
) -> Masks:
    """Masks of unmasked rows, others in each epoch, that depend on (seed, epoch, row) alone.

    :param rows: int64 [R], the number of each row among all rows.
    """
    numbers = rows.astype(np.uint64)
    epochs = np.full_like(numbers, epoch)
    order, kind, word = (
        streams(numbers, epochs, settings.seed, purpose) for purpose in (Purpose.MASK_ORDER, Purpose.MASK_KIND, Purpose.MASK_WORD)
    )
    return make_masks(input_ids, offsets, Streams(order, kind, word, np.zeros_like(numbers)), settings, table)


def _smallest(values: U64, offsets: I64, counts: I64) -> U64:
    """The last of each row's `counts` smallest values; 0 where that is none."""
    found = np.zeros(len(counts), np.uint64)
    for start in range(0, len(counts), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        ends = offsets[start : start + _ROWS_AT_ONCE + 1]
        lengths = np.diff(ends)
        grid = np.full((len(lengths), int(lengths.max())), _LAST)
        grid[np.arange(grid.shape[1]) < lengths[:, None]] = values[ends[0] : ends[-1]]
        grid.sort(axis=1)
        found[rows] = np.where(counts[rows] > 0, grid[np.arange(len(lengths)), counts[rows] - 1], 0)
    return found
