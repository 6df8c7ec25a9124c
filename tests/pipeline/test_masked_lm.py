"""Masks: distributions over many tokens, and rows at the edge."""

import dataclasses

import numpy as np
import pytest

from pipeline.masked_lm import Masks, Streams, dynamic_masks, make_masks
from pipeline.ragged import offsets_of
from pipeline.settings import ShardSettings, load_preset
from pipeline.tokens import WORD_LEVEL_TOKENS, WORDPIECE_TOKENS, TokenTable

VOCABULARY = 1_000
FIRST_WORD_ID = len(WORD_LEVEL_TOKENS)
TABLE = TokenTable([*WORD_LEVEL_TOKENS.values(), *(f"w{number}" for number in range(VOCABULARY - FIRST_WORD_ID))], WORD_LEVEL_TOKENS)
CLS_ID, SEP_ID, MASK_ID, UNKNOWN_ID = TABLE.cls_id, TABLE.sep_id, TABLE.mask_id, TABLE.unknown_id
SETTINGS = load_preset("tiny").shards
PIECES = TokenTable(
    [*WORDPIECE_TOKENS.values(), *(f"{'##' * (n % 2)}p{n}" for n in range(VOCABULARY - FIRST_WORD_ID))], WORDPIECE_TOKENS, "##"
)
FIRST, MORE = FIRST_WORD_ID, FIRST_WORD_ID + 1  # a piece that begins a word, and one that goes on with it
WHOLE = dataclasses.replace(SETTINGS, whole_word=True, max_predictions_per_seq=20)


def mask(
    lengths: np.ndarray, settings: ShardSettings = SETTINGS, fill: int | None = None, table: TokenTable = TABLE
) -> tuple[np.ndarray, np.ndarray, Masks]:
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
    return ids, offsets, make_masks(ids, offsets, random, settings, table)


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


def words_of(ids: np.ndarray, table: TokenTable = PIECES) -> list[range]:
    """The places of each word's pieces, by the rule read aloud: a piece goes on with the word before it, if there is one."""
    found: list[range] = []
    for place, token in enumerate(ids.tolist()):
        if table.never_masked[token]:
            continue
        goes_on = table.continues_word[token] and found and found[-1].stop == place
        found.append(range(found.pop().start, place + 1) if goes_on else range(place, place + 1))
    return found


def one_row(ids: list[int], settings: ShardSettings, order: int = 0) -> Masks:
    """A single row, masked."""
    number = np.zeros(1, np.uint64)
    random = Streams(np.array([order], np.uint64), number, number, number)
    return make_masks(np.array(ids, np.int32), np.array([0, len(ids)]), random, settings, PIECES)


def test_all_pieces_of_a_word_are_masked_or_none() -> None:
    ids, offsets, masks = mask(np.random.default_rng(5).integers(20, 129, 9_000), WHOLE, table=PIECES)
    assert len(ids) > 100_000 and len(masks.labels) > 50_000
    assert (masks.labels == ids[rows(offsets, masks)]).all()
    masked = np.zeros(len(ids), bool)
    masked[rows(offsets, masks)] = True
    words = words_of(ids)
    shares = np.array([masked[word.start : word.stop].mean() for word in words])
    assert set(shares) == {0, 1}
    lengths = np.array([len(word) for word in words])
    assert (lengths == 1).sum() > 10_000 and (lengths > 2).sum() > 10_000
    wanted = np.minimum(20, np.maximum(1, np.rint(np.diff(offsets) * 0.15)))
    assert (np.diff(masks.offsets) <= wanted).all() and np.diff(masks.offsets).sum() > 0.99 * wanted.sum()
    became = masks.input_ids[masked]
    assert abs((became == PIECES.mask_id).mean() - 0.8) < 0.01 and abs((became == ids[masked]).mean() - 0.1) < 0.01


def test_a_word_too_long_for_what_is_left_is_passed_over_and_the_next_one_tried() -> None:
    row = [2, *[FIRST, MORE, MORE] * 5, FIRST, 3]  # five words of three pieces and one of one
    settings = dataclasses.replace(WHOLE, masking_rate=4 / len(row))
    for order in range(200):  # whatever the order: a word of three and the one of one
        positions = one_row(row, settings, order).positions.tolist()
        assert len(positions) == 4 and positions[-1] == len(row) - 2


@pytest.mark.parametrize(("most", "wanted"), [(20, 2), (1, 1)])
def test_where_every_word_is_too_long_the_shortest_is_masked(most: int, wanted: int) -> None:
    masks = one_row([2, FIRST, MORE, MORE, FIRST, MORE, 3], dataclasses.replace(WHOLE, max_predictions_per_seq=most))
    assert masks.positions.tolist() == [4, 5][:wanted] and masks.labels.tolist() == [FIRST, MORE][:wanted]


def test_a_piece_at_the_head_of_a_segment_begins_a_word() -> None:
    row = [2, MORE, MORE, 3, MORE, FIRST, 3]
    assert one_row(row, dataclasses.replace(WHOLE, masking_rate=1.0)).positions.tolist() == [1, 2, 4, 5]
    few = dataclasses.replace(WHOLE, masking_rate=1 / 7)
    assert {tuple(one_row(row, few, order).positions) for order in range(40)} == {(4,), (5,)}


def test_words_of_one_piece_each_are_masked_alike_with_and_without_whole_words() -> None:
    lengths = np.random.default_rng(7).integers(8, 65, 2_000)
    _, _, single = mask(lengths)
    _, _, whole = mask(lengths, dataclasses.replace(SETTINGS, whole_word=True))
    assert (whole.positions == single.positions).all() and (whole.offsets == single.offsets).all()


@pytest.mark.parametrize("settings", [SETTINGS, WHOLE], ids=["pieces", "whole words"])
def test_dynamic_masks_are_others_in_each_epoch_and_the_same_in_any_batch(settings: ShardSettings) -> None:
    lengths = np.random.default_rng(8).integers(20, 65, 4_000)
    ids, offsets, _ = mask(lengths, table=PIECES)
    assert len(ids) > 100_000
    numbers = np.arange(len(lengths))
    first, again, second = (dynamic_masks(ids, offsets, numbers, settings, PIECES, epoch) for epoch in (0, 0, 1))
    assert (first.input_ids == again.input_ids).all() and (first.positions == again.positions).all()
    for masks in (first, second):
        assert abs(len(masks.labels) / len(ids) - 0.15) < 0.01
        assert np.abs(np.array(masks.kinds) / len(masks.labels) - (0.8, 0.1, 0.1)).max() < 0.01
        assert (masks.labels == ids[rows(offsets, masks)]).all()
    both = np.intersect1d(rows(offsets, first), rows(offsets, second))
    assert abs(len(both) / len(first.labels) - 0.16) < 0.03  # as chance has it
    some = slice(3_000, 3_010)
    tokens = slice(offsets[3_000], offsets[3_010])
    part = dynamic_masks(ids[tokens], offsets_of(lengths[some]), numbers[some], settings, PIECES, 1)
    assert (part.input_ids == second.input_ids[tokens]).all()


def test_another_seed_gives_other_dynamic_masks() -> None:
    ids, offsets, _ = mask(np.full(100, 40))
    settings = [dataclasses.replace(SETTINGS, seed=seed) for seed in (0, 1)]
    assert len({dynamic_masks(ids, offsets, np.arange(100), each, TABLE, 0).positions.tobytes() for each in settings}) == 2


def test_random_words_are_spread_evenly_over_all_but_special_ones() -> None:
    all_random = dataclasses.replace(SETTINGS, mask_token_rate=0.0, random_token_rate=1.0)
    _, offsets, masks = mask(np.full(20_000, 40), all_random)
    became = np.bincount(masks.input_ids[rows(offsets, masks)], minlength=VOCABULARY)
    assert became.sum() > 100_000 and not became[:FIRST_WORD_ID].any()
    spread = became[FIRST_WORD_ID:]
    assert 0.8 < spread.var() / spread.mean() < 1.2  # as a Poisson variable
