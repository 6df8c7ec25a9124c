"""How much there is of everything: text, rows, steps, products.

In: a preset, a scale, rates. Out: the quantities of a run, and of each part of its training. The decision that matters: the
steps on long rows are a part of their own, since their shards are a set of their own and attention grows with the square.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..settings import Preset, ShardSettings
from . import arithmetic
from .arithmetic import Work
from .scale import Rates, Scale

_ROW_BYTES, _TOKEN_BYTES, _MASK_BYTES = 21, 5, 6  # of examples in memory, shards.Examples
LENGTHS = (64, 128, 512)  # at which rows were measured


@dataclass(frozen=True)
class Part:
    """Shards of one length, and the steps that take them.

    :param rows: made of the training split. :param held_out: rows of the held-out split. :param row: tokens of a mean row.
    :param masked: of them. :param length: the longest row's. :param shard_bytes: of both splits.
    :param evaluations: over the held-out split.
    """

    name: str
    rows: float
    held_out: float
    row: float
    masked: float
    length: int
    shard_bytes: float
    steps: int
    evaluations: int

    def work(self, rows: float) -> Work:
        """A batch of mean rows."""
        return Work.of_rows(rows, self.row, self.masked, self.length)


@dataclass(frozen=True)
class Quantities:
    """Of a run."""

    preset: Preset
    scale: Scale
    rates: Rates

    @cached_property
    def train_text(self) -> float:
        """Bytes."""
        return self.scale.corpus_gigabytes * 1e9 * (1 - self.scale.held_out)

    @cached_property
    def held_out_text(self) -> float:
        """Bytes."""
        return self.scale.corpus_gigabytes * 1e9 * self.scale.held_out

    @property
    def of_words(self) -> bool:
        return self.preset.vocabulary.kind == "words"

    @property
    def vocabulary_size(self) -> int:
        if self.scale.vocabulary_size:
            return self.scale.vocabulary_size
        return self.rates.words if self.of_words else self.preset.vocabulary.size

    @cached_property
    def parameters(self) -> int:
        return arithmetic.parameters(self.preset.model, self.vocabulary_size)

    @property
    def on_gpu(self) -> bool:
        """Taken for granted where training.device does not say cpu."""
        return self.preset.training.device != "cpu"

    @property
    def bf16(self) -> bool:
        precision = self.preset.training.precision
        return precision == "bf16" or (precision == "auto" and self.on_gpu)

    @cached_property
    def parts(self) -> list[Part]:
        """One, or two where the last steps take long rows."""
        training, shards = self.preset.training, self.preset.shards
        first = training.steps - training.long_steps
        every = training.evaluate_every
        all_but_last = (training.steps - 1) // every if every else 0
        if not training.long_steps:
            return [self._part("training", shards, training.steps, all_but_last + 1)]
        short = first // every if every else 0
        long = self._part("training, long rows", shards.of_long_part(), training.long_steps, all_but_last - short + 1)
        return [self._part("training", shards, first, short), long]

    def _part(self, name: str, shards: ShardSettings, steps: int, evaluations: int) -> Part:
        tokens = self.rates.words_per_byte if self.of_words else self.rates.pieces_per_byte
        if shards.pairs == "neighbours":
            repeat, fill = self.rates.repeat_neighbours, self.rates.fill_neighbours
        else:
            repeat, fill = (self._at(shards.max_length, name) for name in ("repeat", "fill"))
        row = shards.max_length * fill
        rows, held_out = (text * tokens * repeat / row for text in (self.train_text, self.held_out_text))
        rows *= shards.dupe_factor
        masked = min(shards.max_predictions_per_seq, max(1.0, shards.masking_rate * row))
        size = self.rates.shard_bytes if shards.masking == "static" else self.rates.shard_bytes_dynamic
        return Part(name, rows, held_out, row, masked, shards.max_length, (rows + held_out) * row * size, steps, evaluations)

    def _at(self, length: int, rate: str) -> float:
        """A rate of segments between the lengths at which it was measured."""
        return float(np.interp(length, LENGTHS, [getattr(self.rates, f"{rate}_{measured}") for measured in LENGTHS]))

    @cached_property
    def device_rows(self) -> int:
        """Rows of a step that the device with most of them has."""
        return -(-self.preset.training.batch_size // self.scale.devices)

    @cached_property
    def micro_rows(self) -> int:
        """Rows that it takes at a time."""
        return min(self.preset.training.micro_batch_size or self.device_rows, self.device_rows)

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return -(-self.device_rows // self.micro_rows)

    def step_flop(self, part: Part) -> float:
        """Of a step's products, of the device with most rows."""
        work = part.work(self.device_rows)
        return arithmetic.TRAINING * arithmetic.forward_flop(self.preset.model, self.vocabulary_size, work)

    def part_flop(self, part: Part) -> float:
        """Of all products of a part's steps, over all devices."""
        work = part.work(self.preset.training.batch_size)
        return part.steps * arithmetic.TRAINING * arithmetic.forward_flop(self.preset.model, self.vocabulary_size, work)

    def evaluation_flop(self, part: Part) -> float:
        """Of a part's evaluations, over all devices."""
        return part.evaluations * arithmetic.forward_flop(self.preset.model, self.vocabulary_size, part.work(part.held_out))

    @property
    def flop_rate(self) -> float:
        """FLOP/s of a device."""
        return self.scale.device_tflops * 1e12 * self.scale.utilisation

    @cached_property
    def network_bytes(self) -> float:
        """That a device sends in a step.

        With ddp a ring sums all gradients once. With fsdp a ring gathers the weights for the forward and the backward pass of each
        micro batch, and sums gradients once.
        """
        others = (self.scale.devices - 1) / self.scale.devices
        whole = 4.0 * self.parameters
        gathers = 2 if self.preset.training.data_parallel == "ddp" else 1 + 2 * self.micro_batches
        return gathers * others * whole

    def device_bytes(self, part: Part) -> float:
        """The most memory that a device takes: state, what the sum over devices needs, and a micro batch's activations."""
        model, count = self.preset.model, self.parameters
        work = part.work(self.micro_rows)
        activations = arithmetic.activation_bytes(model, self.vocabulary_size, work, on_gpu=self.on_gpu, bf16=self.bf16)
        return self.state_bytes + (2.0 * count if self.bf16 else 0.0) + activations

    @cached_property
    def state_bytes(self) -> float:
        """Weights, gradients and moments on a device; beside them, with several, buckets of gradients or gathered layers."""
        state, devices = arithmetic.state_bytes(self.parameters), self.scale.devices
        if devices == 1:
            return state
        if self.preset.training.data_parallel == "ddp":
            return state + 4.0 * self.parameters
        layer = arithmetic.layer_parameters(self.preset.model)
        root = self.parameters - self.preset.model.num_hidden_layers * layer
        unsummed = 4.0 * self.parameters if self.micro_batches > 1 else 0.0
        return state / devices + 8.0 * (root + 2 * layer) + unsummed

    def window_bytes(self, part: Part) -> float:
        """Rows that a process which trains holds: a window and the next one, where there are several; a window is whole buckets."""
        held_in_bucket = part.rows / self.preset.shards.buckets
        window = max(held_in_bucket, min(part.rows, self.preset.training.shuffle_buffer_rows))
        row = _ROW_BYTES + part.row * _TOKEN_BYTES + part.masked * _MASK_BYTES
        return (window if part.rows <= window else 2 * window) * row

    def bucket_text(self, split: str) -> float:
        """Bytes of text of a mean bucket; documents spread evenly, so that none is much larger."""
        shards = self.preset.shards
        return self.train_text / shards.buckets if split == "train" else self.held_out_text / shards.held_out_buckets

    def builder_bytes(self, split: str) -> float:
        """Memory of whoever builds a bucket."""
        further = self.preset.shards.dupe_factor - 1 if split == "train" else 0
        return self.rates.stage_memory + self.bucket_text(split) * (self.rates.bucket_memory + self.rates.repeat_memory * further)

    @property
    def cores(self) -> int:
        return self.preset.builders.workers or self.scale.cores
