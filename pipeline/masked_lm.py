"""Masks for masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

In: rows `<cls> A <sep> B <sep>`. Out: the rows with masks applied, the sorted masked positions and the tokens that
stood there. The decision that matters: special tokens are never candidates; a random replacement is a real word; masks
depend on the streams alone, so that the same can be made beforehand or while training.

Legend: R rows, N tokens of all rows, M masked positions of all rows, W words of all rows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .ragged import I64, offsets_of, spans
from .randomness import U64, Purpose, below, bits, streams, unit
from .settings import ShardSettings
from .shards import IntArray
from .tokens import TokenTable

_LAST = np.uint64(2**64 - 1)
_ROWS_AT_ONCE = 1024  # so that one long row makes few others wide
_DRAWN_BITS = np.uint64(40)  # of a draw, beside a row's number below 2**24
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

    draws = bits(np.repeat(random.order, lengths), counter)
    if settings.whole_word:
        chosen = _whole_words(draws, input_ids, offsets, counts, settings.max_predictions_per_seq, table)
        counts = np.diff(np.searchsorted(chosen, offsets))
    else:
        # Each candidate draws a number, no two of a row the same one; the row's smallest are chosen.
        draws[special] = _LAST
        chosen = np.flatnonzero((draws <= np.repeat(_smallest(draws, offsets, counts), lengths)) & ~special)

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


def no_masks(input_ids: npt.NDArray[np.int32], offsets: I64) -> Masks:
    """Rows as they are, for masks that are drawn while training."""
    return Masks(input_ids, np.zeros(0, np.int16), np.zeros(0, np.int32), np.zeros_like(offsets), (0, 0, 0))


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


def _whole_words(draws: U64, input_ids: npt.NDArray[np.int32], offsets: I64, wanted: I64, most: int, table: TokenTable) -> I64:
    """The places [M] of whole words, taken in random order while they fit into what is wanted of their row [R].

    A word that would exceed it is passed over and the next one tried, as in BERT's code. Where every word would, the
    shortest is taken (its first `most` tokens, should it be longer than that), so that no row is without.
    """
    special = table.never_masked[input_ids]
    after_special = np.ones(len(input_ids), bool)  # or at a row's beginning: begins a word, whatever it is
    after_special[1:] = special[:-1]
    after_special[offsets[:-1]] = True
    begins = ~special & (after_special | ~table.continues_word[input_ids])
    marks = np.append(np.flatnonzero(begins | special), len(input_ids))  # a word ends at the next of them
    lengths = np.diff(marks)[begins[marks[:-1]]]
    start = np.flatnonzero(begins)
    row = np.repeat(np.arange(len(wanted)), np.diff(offsets))[start]

    keys = (row.astype(np.uint64) << _DRAWN_BITS) + (draws[start] >> (np.uint64(64) - _DRAWN_BITS))  # one sorts faster than two
    order = np.argsort(keys, kind="stable")
    taken = np.zeros(len(start), bool)
    left = wanted.copy()
    open_ = order
    while len(open_ := open_[lengths[open_] <= left[row[open_]]]):
        fits = _sums_within_rows(lengths[open_], row[open_]) <= left[row[open_]]
        first_that_does_not = _sums_within_rows((~fits).astype(np.int64), row[open_])
        now = open_[first_that_does_not == 0]
        taken[now] = True
        left -= np.bincount(row[now], lengths[now], len(left)).astype(np.int64)
        open_ = open_[first_that_does_not > 1]

    without = np.flatnonzero((np.bincount(row[taken], minlength=len(wanted)) == 0)[row])
    shortest = without[np.lexsort((keys[without], lengths[without], row[without]))]
    shortest = shortest[np.diff(row[shortest], prepend=-1) > 0]
    taken[shortest] = True
    lengths[shortest] = np.minimum(lengths[shortest], most)
    return spans(start[taken], lengths[taken])


def _sums_within_rows(values: I64, row: I64) -> I64:
    """Running sums [W], anew with each row."""
    sums = np.cumsum(values)
    first = np.diff(row, prepend=-1) > 0
    before = np.maximum.accumulate(np.where(first, sums - values, 0))
    within: I64 = sums - before
    return within


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
