"""Masks: distributions over many tokens, and rows at the edge."""

import dataclasses

import numpy as np
import pytest

from pipeline.masked_lm import Masks, Streams, make_masks
from pipeline.ragged import offsets_of
from pipeline.settings import ShardSettings, load_preset
from pipeline.tokens import WORD_LEVEL_TOKENS, TokenTable

VOCABULARY = 1_000
FIRST_WORD_ID = len(WORD_LEVEL_TOKENS)
TABLE = TokenTable([*WORD_LEVEL_TOKENS.values(), *(f"w{number}" for number in range(VOCABULARY - FIRST_WORD_ID))], WORD_LEVEL_TOKENS)
CLS_ID, SEP_ID, MASK_ID, UNKNOWN_ID = TABLE.cls_id, TABLE.sep_id, TABLE.mask_id, TABLE.unknown_id
SETTINGS = load_preset("tiny").shards


def mask(lengths: np.ndarray, settings: ShardSettings = SETTINGS, fill: int | None = None) -> tuple[np.ndarray, np.ndarray, Masks]:
    """Rows `<cls> … <sep> … <sep>` of random words (or of one token), masked."""
    offsets = offsets_of(lengths)
    ids = np.random.default_rng(0).integers(FIRST_WORD_ID, VOCABULARY, offsets[-1], dtype=np.int32)
    if fill is not None:
        ids[:] = fill
    ids[offsets[:-1]] = CLS_ID
    ids[offsets[:-1] + lengths // 2] = SEP_ID
    ids[offsets[1:] - 1] = SEP_ID
    stream = np.random.default_rng(1).integers(0, 2**63, (3, len(lengths)), dtype=np.uint64)
    random = Streams(*stream, number=np.arange(len(lengths), dtype=np.uint64) % np.uint64(5))
    return ids, offsets, make_masks(ids, offsets, random, settings, TABLE)


def rows(offsets: np.ndarray, masks: Masks) -> np.ndarray:
    """The place of each masked position among all tokens."""
    return np.repeat(offsets[:-1], np.diff(masks.offsets)) + masks.positions


def test_distribution_over_a_hundred_thousand_masks() -> None:
    ids, offsets, masks = mask(np.random.default_rng(2).integers(8, 65, 20_000))
    place = rows(offsets, masks)
    assert len(place) > 100_000
    assert (masks.labels == ids[place]).all()
    became, was = masks.input_ids[place], ids[place]
    assert abs((became == MASK_ID).mean() - 0.8) < 0.005
    assert abs((became == was).mean() - 0.1) < 0.005
    replaced = became[(became != MASK_ID) & (became != was)]
    assert abs(len(replaced) / len(place) - 0.1) < 0.005
    assert replaced.min() >= FIRST_WORD_ID and replaced.max() < VOCABULARY  # real words only
    assert np.bincount(replaced, minlength=VOCABULARY)[FIRST_WORD_ID:].min() > 0
    untouched = np.ones(len(ids), bool)
    untouched[place] = False
    assert (masks.input_ids[untouched] == ids[untouched]).all()


def test_counts_follow_the_decks_rule_and_positions_are_sorted_and_spread() -> None:
    lengths = np.random.default_rng(3).integers(8, 65, 10_000)
    _, _, masks = mask(lengths)
    wanted = [min(10, max(1, round(int(length) * 0.15))) for length in lengths]
    assert np.diff(masks.offsets).tolist() == wanted
    inside = np.ones(len(masks.positions), bool)
    inside[masks.offsets[:-1]] = False
    assert (np.diff(masks.positions.astype(int), prepend=0)[inside] > 0).all()
    _, _, even = mask(np.full(20_000, 43))
    seen = np.bincount(even.positions, minlength=43)
    candidates = seen[[p for p in range(43) if p not in (0, 21, 42)]]
    assert abs(candidates / candidates.mean() - 1).max() < 0.08


def test_special_tokens_are_never_masked_nor_labels() -> None:
    ids, offsets, masks = mask(np.random.default_rng(4).integers(4, 65, 10_000))
    special = np.isin(ids, (CLS_ID, SEP_ID))
    assert not special[rows(offsets, masks)].any()
    assert not np.isin(masks.labels, (0, CLS_ID, SEP_ID, MASK_ID)).any()


@pytest.mark.parametrize("length", [4, 5, 9])
def test_a_row_too_short_for_the_rate_still_has_a_mask(length: int) -> None:
    rare = dataclasses.replace(SETTINGS, masking_rate=0.05)
    assert round(length * rare.masking_rate) == 0
    _, _, masks = mask(np.full(50, length), rare)
    assert (np.diff(masks.offsets) == 1).all()


def test_a_row_without_a_candidate_has_none() -> None:
    _, _, masks = mask(np.full(3, 3), fill=SEP_ID)
    assert np.diff(masks.offsets).tolist() == [0, 0, 0]


def test_the_unknown_token_is_a_candidate_and_a_label_but_no_replacement() -> None:
    _, offsets, masks = mask(np.full(3_000, 40), fill=UNKNOWN_ID)
    became = masks.input_ids[rows(offsets, masks)]
    assert (masks.labels == UNKNOWN_ID).all()
    assert abs((became == UNKNOWN_ID).mean() - 0.1) < 0.01  # those that were kept
