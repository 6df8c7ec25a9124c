"""The parts of training: which examples each step takes, and what it is held out against.

In: a run. Out: one part, or two where the last steps take long rows (Devlin et al. 2018, arXiv 1810.04805, A.2). The
decision that matters: the number of a step alone says which part it falls into and where in it, so that a resumed run
lands where it was.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import TrainingError
from ..shards import Examples, IntArray, read_shards
from ..storage import open_output, verify_digests
from .batches import Order
from .masking import DynamicMasking, read_table
from .run import RunSettings
from .unigram import unigram_loss

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Part:
    """Steps that take their rows from one set of shards.

    :param first: steps before it. :param order: of its rows, from its own step 0.
    :param masking: how masks are drawn; None: the examples have them.
    :param unigram_loss: what the held-out masked-language-model loss has to beat.
    """

    first: int
    train: Examples
    valid: Examples
    order: Order
    masking: DynamicMasking | None
    unigram_loss: float


def read_parts(run: RunSettings) -> list[Part]:
    """Read the shards of each part, in the order of their steps.

    :raises DamagedOutputError: names the shard. :raises TrainingError: there is none for the steps on long rows, or a
        shard was made with another vocabulary.
    """
    table = read_table(run) if run.shards.masking == "dynamic" else None
    long_steps = run.training.long_steps
    if long_steps and not run.train_long:
        raise TrainingError(f"training.long_ratio: got {long_steps} steps on long rows, but no shards of them; make them, or set it to 0")
    wanted = [(0, run.train, run.valid, run.shards)]
    if long_steps:
        wanted.append((run.training.steps - long_steps, run.train_long, run.valid_long, run.shards.of_long_part()))
    parts = []
    for first, train_buckets, valid_buckets, settings in wanted:
        train, valid = (_read(buckets, run.vocabulary_size) for buckets in (train_buckets, valid_buckets))
        masking = DynamicMasking(settings, table) if table else None
        level = unigram_loss(_label_counts(train, masking, run.vocabulary_size), _held_out_counts(valid, masking, run.vocabulary_size))
        parts.append(Part(first, train, valid, Order(len(train), run.training.batch_size, run.training.seed), masking, level))
    return parts


def part_of(parts: list[Part], step: int) -> Part:
    """The part that a step, counted from 0, falls into."""
    return next(part for part in reversed(parts) if step >= part.first)


def _read(buckets: list[str], vocabulary_size: int) -> Examples:
    """Shards whose bytes are those that were published.

    :raises DamagedOutputError: names the shard. :raises TrainingError: a shard was made with another vocabulary.
    """
    for bucket in buckets:
        verify_digests(open_output(bucket))
    examples = read_shards(buckets)
    if len(examples.input_ids) and int(examples.input_ids.max()) >= vocabulary_size:
        raise TrainingError(f"{buckets[0]}: got token {examples.input_ids.max()}, wanted tokens below {vocabulary_size}")
    return examples


def _label_counts(train: Examples, masking: DynamicMasking | None, vocabulary_size: int) -> IntArray:
    """How often each token [V] is a label in training; of masks that are yet to be drawn, how often it can be one."""
    if masking is None:
        return np.bincount(train.masked_lm_labels, minlength=vocabulary_size)
    return np.where(masking.table.never_masked, 0, np.bincount(train.input_ids, minlength=vocabulary_size))


def _held_out_counts(valid: Examples, masking: DynamicMasking | None, vocabulary_size: int) -> IntArray:
    """How often each token [V] is a label in an evaluation."""
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(valid), _ROWS_AT_ONCE):
        offsets = valid.offsets[start : start + _ROWS_AT_ONCE + 1]
        rows = np.arange(start, start + len(offsets) - 1)
        if masking is None:
            labels = valid.masked_lm_labels[valid.mask_offsets[rows[0]] : valid.mask_offsets[rows[-1] + 1]]
        else:
            labels = masking.draw(valid.input_ids[offsets[0] : offsets[-1]], offsets - offsets[0], rows, 0).labels
        counts += np.bincount(labels, minlength=vocabulary_size)
    return counts
