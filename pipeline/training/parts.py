"""The parts of training: which examples each step takes, and what it is held out against.

In: a run. Out: one part, or two where the last steps take long rows (Devlin et al. 2018, arXiv 1810.04805, A.2). The
decision that matters: the number of a step alone says which part it falls into and where in it, so that a resumed run
lands where it was.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import TrainingError
from ..shards import IntArray
from .batches import Rows
from .distributed import World
from .masking import DynamicMasking, read_table
from .order import Order
from .run import RunSettings
from .split import LoadedWindow, Split, cache_of
from .unigram import unigram_loss
from .windows import Windows


@dataclass(frozen=True)
class Part:
    """Steps that take their rows from one set of shards.

    :param first: steps before it. :param windows: its rows, from its own step 0.
    :param masking: how masks are drawn; None: the examples have them.
    :param unigram_loss: what the held-out masked-language-model loss has to beat.
    """

    first: int
    train: Split
    valid: Split
    windows: Windows
    masking: DynamicMasking | None
    unigram_loss: float

    def rows(self, step: int) -> Rows:
        """The rows of a step of the run, counted from 0."""
        epoch, window, rows = self.windows.rows(step - self.first)
        return Rows(window.examples, rows, epoch, self.masking, window.numbers)


def read_parts(run: RunSettings, world: World) -> list[Part]:
    """Go through the shards of each part, in the order of their steps, each rank through its share of them.

    :raises DamagedOutputError: names the shard. :raises TrainingError: there is none for the steps on long rows, or a
        shard was made with another vocabulary, or another rank met one of these.
    """
    training, long_steps = run.training, run.training.long_steps
    if long_steps and not run.train_long:
        raise TrainingError(f"training.long_ratio: got {long_steps} steps on long rows, but no shards of them; make them, or set it to 0")
    table = world.together(partial(read_table, run)) if run.shards.masking == "dynamic" else None
    cache = cache_of(run)
    wanted = [(0, training.steps - long_steps, run.train, run.valid, run.shards)]
    if long_steps:
        wanted.append((training.steps - long_steps, long_steps, run.train_long, run.valid_long, run.shards.of_long_part()))
    parts = []
    for first, steps, train_buckets, valid_buckets, settings in wanted:
        train, valid = (Split(buckets, run, world, cache) for buckets in (train_buckets, valid_buckets))
        masking = DynamicMasking(settings, table) if table else None
        order = Order(train.rows, training.batch_size, training.seed, training.shuffle_buffer_rows)
        level = _unigram_loss(train, valid, masking, run.vocabulary_size)
        parts.append(Part(first, train, valid, Windows(train, order, steps), masking, level))
    return parts


def part_of(parts: list[Part], step: int) -> Part:
    """The part that a step, counted from 0, falls into."""
    return next(part for part in reversed(parts) if step >= part.first)


def _unigram_loss(train: Split, valid: Split, masking: DynamicMasking | None, vocabulary_size: int) -> float:
    """Read every shard once, which compares its bytes with those that were published, and count its labels [V]."""

    def possible(window: LoadedWindow) -> IntArray:
        """How often each token is a label in training; of masks that are yet to be drawn, how often it can be one."""
        if masking is None:
            return np.bincount(window.examples.masked_lm_labels, minlength=vocabulary_size)
        return np.where(masking.table.never_masked, 0, np.bincount(window.examples.input_ids, minlength=vocabulary_size))

    def held_out(window: LoadedWindow) -> IntArray:
        """How often each token is a label in an evaluation."""
        if masking is None:
            return possible(window)
        drawn = masking.draw(window.examples.input_ids, window.examples.offsets, window.numbers, 0)
        return np.bincount(drawn.labels, minlength=vocabulary_size)

    return unigram_loss(train.count(vocabulary_size, possible), valid.count(vocabulary_size, held_out))
