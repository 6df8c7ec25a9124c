"""Shards by the paper's recipes: each pair task and kind of masking, from text to files, and what each says of a text it cannot use."""

import itertools
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.data.build import build_shards
from pipeline.data.documents import TEXT
from pipeline.data.tokenizer import Vocabulary
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import CorpusError
from pipeline.settings import Preset, load_preset
from pipeline.shards import IGNORED, SHARD, Examples, read_shards, shard_buckets
from pipeline.storage import Store

TABLE = Vocabulary.of_words({}, 1).table


def articles(count: int, sentences: int) -> str:
    """Documents of some short lines, a blank line between, each line a sentence."""
    return "\n\n".join(
        "\n".join(f"crane {number} saw bird {line} of {number * 7 + line}" for line in range(sentences)) for number in range(count)
    )


def paper(pairs: str, **shards: object) -> Preset:
    """The paper's recipe with words for pieces."""
    return load_preset("tiny").override(
        text={"documents": "article", "sentences": "line"},
        vocabulary={"min_count": 1},
        shards={"pairs": pairs, "buckets": 2, "held_out_buckets": 1} | shards,
    )


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order", "none"])
def test_each_recipe_comes_back_from_its_files_as_it_was_made(tmp_path: Path, publish, pairs: str, masking: str) -> None:
    store, preset = Store(str(tmp_path)), paper(pairs, masking=masking)
    corpus = publish(store, articles(60, 12), articles(6, 12), form=TEXT)
    vocabulary = build_vocabulary(store, corpus, preset)
    for split in ("train", "valid"):
        shards = build_shards(store, corpus, vocabulary, split, preset)
        counts = shards.facts["counts"]
        assert (shards.facts["pairs"], shards.facts["masking"]) == (pairs, masking)
        assert len(shards.facts["buckets"]) == (2 if split == "train" else 1)
        dropped = counts["dropped_no_negative"] + counts["dropped_one_sentence"] + counts["dropped_too_long"]
        assert counts["rows"] + dropped == counts["pairs"] and counts["rows"] >= 12
        examples = read_shards(shard_buckets(store, shards))
        assert (len(examples), len(examples.input_ids)) == (counts["rows"], counts["row_tokens"])
        assert np.diff(examples.offsets).max() <= 64
        assert examples.has_labels == (pairs != "none") and examples.has_masks == (masking == "static")
        assert len(examples.mask_offsets) == len(examples) + 1 and examples.mask_offsets[-1] == counts["masked"]
        assert (examples.next_sentence_label == IGNORED).all() == (pairs == "none") and examples.next_sentence_label.dtype == np.int8
        assert TABLE.mask_id in examples.input_ids or masking == "dynamic"
        names = set(pq.read_schema(Path(shard_buckets(store, shards)[0]) / SHARD).names)
        assert ("next_sentence_label" in names) == (pairs != "none")
        assert ("masked_lm_positions" in names) == ("masked_lm_labels" in names) == (masking == "static")


def test_shards_of_the_last_part_are_longer_and_a_set_of_their_own(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    preset = paper("next_sentence").override(
        shards={"long_max_length": 200, "long_max_predictions_per_seq": 30}, training={"long_ratio": 0.1}
    )
    corpus = publish(store, articles(60, 40), form=TEXT)
    vocabulary = build_vocabulary(store, corpus, preset)
    short, long = (build_shards(store, corpus, vocabulary, "train", preset, long=long) for long in (False, True))
    lengths = [np.diff(read_shards(shard_buckets(store, shards)).offsets).max() for shards in (short, long)]
    assert lengths == [64, 200] and short.key != long.key
    alone = paper("next_sentence", max_length=200, max_predictions_per_seq=30)
    assert build_shards(store, corpus, vocabulary, "train", alone).key == long.key


def test_the_held_out_split_is_gone_through_once_and_each_split_heeds_its_own_buckets(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, articles(30, 12), articles(10, 12), form=TEXT)
    vocabulary = build_vocabulary(store, corpus, paper("sentence_order"))

    def keys(**shards: object) -> list[str]:
        return [build_shards(store, corpus, vocabulary, split, paper("sentence_order", **shards)).key for split in ("train", "valid")]

    as_it_is = keys()
    for name, changed in (("buckets", "train"), ("dupe_factor", "train"), ("held_out_buckets", "valid")):
        train, valid = keys(**{name: 3})
        assert (train != as_it_is[0], valid != as_it_is[1]) == (changed == "train", changed == "valid")


def test_the_first_time_through_is_that_of_going_through_once(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, articles(40, 20), form=TEXT)
    vocabulary = build_vocabulary(store, corpus, paper("next_sentence"))
    once, thrice = (
        read_shards(
            shard_buckets(store, build_shards(store, corpus, vocabulary, "train", paper("next_sentence", buckets=1, dupe_factor=n)))
        )
        for n in (1, 3)
    )
    assert thrice.table().slice(0, len(once)).equals(once.table())
    rows = [thrice.input_ids[a:b].tobytes() for a, b in itertools.pairwise(thrice.offsets)]
    assert len(rows) > 2.5 * len(once) and len(set(rows)) > 0.98 * len(rows)


def test_neighbours_are_gone_through_with_other_coins_and_masks(small_built, tmp_path: Path) -> None:
    preset = small_built.preset.override(shards={"dupe_factor": 2, "buckets": 1})
    shards = build_shards(Store(str(tmp_path)), small_built.corpus, small_built.vocabulary, "train", preset)
    examples = read_shards(shard_buckets(Store(str(tmp_path)), shards))
    half = len(examples) // 2
    assert len(examples) == 2 * half and shards.facts["counts"]["pairs"] == 2 * small_built.train.facts["counts"]["pairs"]
    assert (examples.document[:half] == examples.document[half:]).all()
    assert 0.3 < (examples.next_sentence_label[:half] == examples.next_sentence_label[half:]).mean() < 0.7


@pytest.mark.parametrize(
    ("train", "preset", "cause"),
    [
        (
            "a b c\n\nd e\n\nf g h\n\ni j",
            paper("next_sentence", buckets=1),
            "one sentence each.*one after each sentence makes",
        ),
        ("a b c\n\nd e\n\nf g h\n\ni j", paper("sentence_order"), "no two sentences in one of them.*one after each sentence"),
        (
            articles(1, 50),
            paper("next_sentence"),
            "one document, .*by blank lines, .*shards.pairs to sentence_order or none",
        ),
        (articles(2, 9), paper("next_sentence", buckets=128), "in another document of their bucket; .*fewer shards.buckets than 128"),
        ("hello\ntom sawyer\nhow are you", paper("next_sentence"), "there is one document"),
        ("a b\na b\n\na b\na b\na b", paper("sentence_order"), "in order both ways"),
        ("a b\nc d\ne f", paper("sentence_order", seed=1), "all 1 pairs got the same label"),
    ],
)
def test_a_corpus_that_a_recipe_cannot_use_says_why(tmp_path: Path, publish, train: str, preset: Preset, cause: str) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, train, form=TEXT)
    vocabulary = build_vocabulary(store, corpus, preset)
    with pytest.raises(CorpusError, match=rf"(?s)train split: .*{cause}"):
        build_shards(store, corpus, vocabulary, "train", preset)
    assert not (tmp_path / "shards").exists()


def test_many_pairs_that_buckets_of_few_documents_leave_out_are_said(tmp_path: Path, publish, caplog: pytest.LogCaptureFixture) -> None:
    store, preset = Store(str(tmp_path)), paper("next_sentence", buckets=16)
    corpus = publish(store, articles(24, 20), form=TEXT)
    vocabulary = build_vocabulary(store, corpus, preset)
    counts = build_shards(store, corpus, vocabulary, "train", preset).facts["counts"]
    said = f"{counts['dropped_no_negative']} of {counts['pairs']} pairs are left out, .* set fewer shards.buckets than 16"
    assert 0 < counts["dropped_no_negative"] < counts["pairs"] and re.search(said, caplog.text)
    caplog.clear()
    build_shards(store, corpus, vocabulary, "train", paper("next_sentence", buckets=1))
    assert not caplog.text


def test_one_document_is_enough_without_a_pair_task(tmp_path: Path, publish) -> None:
    store, preset = Store(str(tmp_path)), paper("none", buckets=1)
    corpus = publish(store, articles(1, 200), form=TEXT)
    shards = build_shards(store, corpus, build_vocabulary(store, corpus, preset), "train", preset)
    examples = read_shards(shard_buckets(store, shards))
    assert len(examples) > 15 and not examples.token_type_ids.any()
    separators = examples.input_ids == TABLE.sep_id
    assert separators.sum() == len(examples) and separators[examples.offsets[1:] - 1].all()


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order", "none"])
def test_a_sentence_longer_than_a_row_is_cut_to_it(tmp_path: Path, publish, pairs: str) -> None:
    store, preset = Store(str(tmp_path)), paper(pairs, max_length=512, buckets=1).override(model={"max_position_embeddings": 512})
    lines = [" ".join(f"w{line}" if word % 7 else f"x{word}" for word in range(600)) for line in range(36)]
    text = "\n\n".join("\n".join(lines[first : first + 4]) for first in range(0, 36, 4))
    corpus = publish(store, text, form=TEXT)
    shards = build_shards(store, corpus, build_vocabulary(store, corpus, preset), "train", preset)
    assert shards.facts["counts"]["truncated"] == shards.facts["counts"]["rows"] > 0
    assert (np.diff(read_shards(shard_buckets(store, shards)).offsets) == 512).all()


def test_a_shard_with_one_of_the_two_mask_columns_is_refused(small_built) -> None:
    table = read_shards(shard_buckets(small_built.store, small_built.train)).table()
    with pytest.raises(ValueError, match=r"got columns .*, wanted "):
        Examples.from_table(table.drop_columns(["masked_lm_labels"]))
    with pytest.raises(ValueError, match="got columns"):
        Examples.from_table(table.drop_columns(["document"]))
    both = Examples.from_table(table.drop_columns(["masked_lm_labels", "masked_lm_positions"]))
    assert not both.has_masks and both.has_labels
