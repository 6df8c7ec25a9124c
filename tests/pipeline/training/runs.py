"""Runs on examples that are made by hand, published as the stages before training publish theirs."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.ragged import offsets_of
from pipeline.settings import Preset, load_preset
from pipeline.shards import IGNORED, SHARD, Examples, write_shard
from pipeline.storage import Output, Recipe, Store
from pipeline.tokens import TOKENIZER, WORDPIECE_TOKENS, TokenTable
from pipeline.training.distributed import World
from pipeline.training.loop import Trainer
from pipeline.training.run import RunSettings, plan_run

ALONE = World(0, 1, torch.device("cpu"))
VOCABULARY = [*WORDPIECE_TOKENS.values(), *(f"word{number}" for number in range(45))]
TABLE = TokenTable(VOCABULARY, WORDPIECE_TOKENS)
FIRST_WORD = 5

PRESET = load_preset("mini").override(
    shards={"max_length": 16, "max_predictions_per_seq": 3, "buckets": 1, "held_out_buckets": 1},
    model={
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    },
    training={"steps": 10, "batch_size": 8, "device": "cpu", "precision": "fp32", "evaluate_every": 0, "checkpoint_every_seconds": 0.0},
)


def examples(lengths: Sequence[int], seed: int = 0, masks: int = 2, pairs: bool = True) -> Examples:
    """Rows `[CLS] A [SEP] B [SEP]` of these lengths; some of A's first tokens are masked, none with masks 0."""
    random, lengths = np.random.default_rng(seed), np.asarray(lengths)
    offsets = offsets_of(lengths)
    input_ids = random.integers(FIRST_WORD, len(VOCABULARY), offsets[-1], dtype=np.int32)
    segments = np.zeros(offsets[-1], np.int8)
    for start, end in pairwise(offsets.tolist()):
        middle = start + max(masks + 1, (end - start) // 2)
        input_ids[[start, middle, end - 1]] = TABLE.cls_id, TABLE.sep_id, TABLE.sep_id
        segments[middle + 1 : end] = 1
    positions = np.tile(np.arange(1, masks + 1, dtype=np.int16), len(lengths))
    masked = np.repeat(offsets[:-1], masks) + positions
    labels = input_ids[masked]
    input_ids[masked] = TABLE.mask_id
    return Examples(
        input_ids=input_ids,
        token_type_ids=segments,
        offsets=offsets,
        masked_lm_positions=positions,
        masked_lm_labels=labels,
        mask_offsets=np.arange(len(lengths) + 1) * masks,
        next_sentence_label=(np.arange(len(lengths)) % 2 if pairs else np.full(len(lengths), IGNORED)).astype(np.int8),
        document=np.zeros(len(lengths), np.int32),
    )


def unequal_rows() -> Examples:
    """A row with 1 mask, of word 5, and a row with 9, of word 6: masks weigh, rows and batches do not."""
    few, many = examples([12], masks=1), examples([24], masks=9)
    joined = {name: np.concatenate([getattr(few, name), getattr(many, name)]) for name in vars(few)}
    joined |= {"offsets": np.array([0, 12, 36]), "mask_offsets": np.array([0, 1, 10])}
    return Examples(**joined | {"masked_lm_labels": np.array([FIRST_WORD] + [FIRST_WORD + 1] * 9, np.int32)})


def publish_vocabulary(store: Store) -> Output:
    tokenizer = {"model": {"type": "WordPiece", "vocab": {token: n for n, token in enumerate(VOCABULARY)}}, "added_tokens": []}

    def build(folder: Path) -> dict[str, Any]:
        (folder / TOKENIZER).write_text(json.dumps(tokenizer), "utf-8")
        return {}

    return store.make(Recipe("vocabulary", 1, {}, {}), build)


def publish_shards(store: Store, rows: Examples, vocabulary: Output) -> Output:
    """One bucket, and the set of it."""

    def build(folder: Path) -> dict[str, Any]:
        write_shard(folder / SHARD, rows)
        return {"counts": {"rows": len(rows)}}

    bucket = store.make(Recipe("bucket", 1, {}, {"contents": rows.digest()}), build)
    facts = {"vocabulary_size": len(VOCABULARY), "buckets": [{"key": bucket.key, "rows": len(rows)}]}
    return store.make(Recipe("shards", 1, {}, {"bucket": bucket.key, "vocabulary": vocabulary.key}), lambda folder: facts)


def run_on(folder: Path, train: Examples, valid: Examples, *long: Examples, preset: Preset = PRESET) -> RunSettings:
    """A run on these rows in a store of its own, which a second call with the same folder finds again.

    :param long: rows of both splits for the steps on long rows.
    """
    store = Store(str(folder / "store"))
    vocabulary = publish_vocabulary(store)
    first, second, *rest = (publish_shards(store, rows, vocabulary) for rows in (train, valid, *long))
    return plan_run(store, preset, first, second, folder / "work", long=(rest[0], rest[1]) if rest else None).save()


def say_word_6(model: torch.nn.Module) -> None:
    """Make the model give word 6 a loss of 0 and word 5 one of 10, whatever it reads."""
    with torch.no_grad():
        model.encoder.token_embedding.weight.zero_()
        model.masked_lm.decoder.bias.fill_(-30.0)
        model.masked_lm.decoder.bias[FIRST_WORD : FIRST_WORD + 2] = torch.tensor([-10.0, 0.0])


def stepped(trainer: Trainer, steps: int) -> Trainer:
    """Take some steps."""
    for _ in range(steps):
        trainer.take_step()
    trainer.loader.close()
    return trainer


def rows_of(trainer: Trainer) -> list[dict[str, Any]]:
    """What the trainer's log holds."""
    assert trainer.metrics
    trainer.metrics.flush()
    return [json.loads(line) for line in trainer.metrics.text().splitlines()]
