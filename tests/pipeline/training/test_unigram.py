"""The unigram level against a direct count."""

import math
from collections import Counter

import numpy as np
import pytest

from pipeline.shards import read_shards, shard_buckets
from pipeline.training.loop import Trainer
from pipeline.training.unigram import unigram_loss
from tests.pipeline.training.runs import ALONE, FIRST_WORD, PRESET, VOCABULARY, examples, run_on


def counted(train: list[int], held_out: list[int], size: int) -> float:
    """-log((n + 1) / (N + V)) of each held-out label, averaged."""
    seen = Counter(train)
    return sum(-math.log((seen[label] + 1) / (len(train) + size)) for label in held_out) / max(len(held_out), 1)


def test_two_labels_of_three_seen_once_and_thrice() -> None:
    found = unigram_loss(np.array([1, 3, 0]), np.array([1, 1, 2]))
    assert found == pytest.approx(-(math.log(2 / 7) + math.log(4 / 7) + 2 * math.log(1 / 7)) / 4)
    assert unigram_loss(np.array([1, 3]), np.array([0, 0])) == 0.0


def test_of_static_masks_the_labels_count(tmp_path) -> None:
    train, valid = examples([9, 12, 16] * 30, 1), examples([10, 12] * 10, 2)
    (part,) = Trainer(run_on(tmp_path, train, valid), ALONE).parts
    labels = train.masked_lm_labels.tolist(), valid.masked_lm_labels.tolist()
    assert part.unigram_loss == pytest.approx(counted(*labels, len(VOCABULARY)))


def test_of_drawn_masks_what_could_be_a_label_counts(tmp_path) -> None:
    train, valid = examples([9, 12, 16] * 30, 1, 0), examples([10, 12] * 10, 2, 0)
    trainer = Trainer(run_on(tmp_path, train, valid, preset=PRESET.override(shards={"masking": "dynamic"})), ALONE)
    (part,) = trainer.parts
    assert part.masking is not None
    drawn = part.masking.draw(valid.input_ids, valid.offsets, np.arange(len(valid)), 0).labels
    wanted = counted([token for token in train.input_ids.tolist() if token >= FIRST_WORD], drawn.tolist(), len(VOCABULARY))
    assert part.unigram_loss == pytest.approx(wanted) == trainer.evaluate()["unigram_loss"]


def test_of_wikitext_2_it_is_6_74_nats(wikitext2_built) -> None:
    train, valid = (read_shards(shard_buckets(wikitext2_built.store, split)) for split in (wikitext2_built.train, wikitext2_built.valid))
    size = wikitext2_built.vocabulary.facts["size"]
    found = unigram_loss(*(np.bincount(split.masked_lm_labels, minlength=size) for split in (train, valid)))
    assert found == pytest.approx(counted(train.masked_lm_labels.tolist(), valid.masked_lm_labels.tolist(), size))
    assert found == pytest.approx(6.739, abs=0.001)
