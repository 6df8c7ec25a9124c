"""The training loop.

In: a run. Out: a published run folder: final weights, metrics, run settings. The decision that matters: a step is a
function of (weights, optimizer, seed, step), so a run that was killed goes on from a checkpoint bit for bit.
"""

import hashlib
import logging
import platform
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..encoder_format import WEIGHTS as ENCODER_WEIGHTS
from ..encoder_format import from_transformers
from ..errors import NonFiniteError, TrainingError
from ..lease import Lease
from ..model.pretraining import Batch, BertForPretraining
from ..settings import TrainingSettings
from ..storage import Output, Store, open_output, verify_digests
from ..tensors import save_tensors
from .batches import BatchLoader, Rows
from .checkpoint import Checkpoints, restore, training_state
from .distributed import World
from .evaluate import evaluate
from .metrics import LOSSES, Metrics, held_out_line, progress_line
from .optimizer import learning_rate, make_optimizer, set_learning_rate
from .parts import part_of, read_parts
from .precision import autocast, chosen_precision
from .replicas import share
from .run import FILE, METRICS, WEIGHTS, RunSettings
from .stopwatch import Stopwatch

logger = logging.getLogger(__name__)


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed for one purpose, so that no two uses of randomness share a generator's state."""
    return int.from_bytes(hashlib.sha256(repr((seed, purpose, *numbers)).encode()).digest()[:8], "little") >> 1


class Trainer:
    """Model, optimizer and data of a run on this rank."""

    def __init__(self, run: RunSettings, world: World, lease: Lease | None = None) -> None:
        self.run, self.world, self.lease = run, world, lease
        self.parts = read_parts(run, world)
        self.losses = [name for name in LOSSES if name == "mlm_loss" or run.shards.pairs != "none"]
        ahead = world.device.type == "cuda"
        self.loader = BatchLoader(self._rows, world, micro_batch_size=run.training.micro_batch_size, ahead=ahead, steps=run.training.steps)
        self.precision = chosen_precision(run.training.precision, world.device)
        self.saving = Stopwatch()
        torch.manual_seed(derived_seed(run.training.seed, "weights"))
        self.model = BertForPretraining(run.shape).to(world.device)
        self.shared = share(self.model, world, run.training.data_parallel)
        self.optimizer = world.together(lambda: make_optimizer(self.model, run.training))
        self.checkpoints = Checkpoints.of(run)
        self.step, lines = world.together(self._start)
        self._agree()
        self.metrics = world.together(lambda: self._go_on(lines) if world.writes else None)

    def _start(self) -> tuple[int, list[str]]:
        """Load the weights to start from. Returns their step, and the lines of its metrics."""
        step, lines, state = self.checkpoints.load()
        if step:
            restore(state, self.shared, self.optimizer)
        elif self.run.encoder:
            self.shared.load(_encoder_weights(self.run, self.model.state_dict()))
        return step, lines

    def _agree(self) -> None:
        """See that all ranks start from the same step.

        :raises LeftTogether: machines find different checkpoints.
        """
        least, most = -self.world.largest(-self.step), self.world.largest(self.step)

        def check() -> None:
            if least != most:
                got = f"{self.run.store}: ranks found checkpoints of step {least} and of step {most}"
                raise TrainingError(f"{got}; wanted one; see that all machines use the same store, and start again")

        self.world.together(check)

    def _go_on(self, lines: list[str]) -> Metrics:
        self.checkpoints.delete_after(self.step)
        if self.step:
            logger.info("going on from the checkpoint of step %d", self.step)
        return Metrics(Path(self.run.work) / METRICS, lines)

    @property
    def settings(self) -> TrainingSettings:
        return self.run.training

    def _rows(self, step: int) -> Rows:
        """The rows of a step, counted from 0."""
        return part_of(self.parts, step).rows(step)

    def take_step(self) -> None:
        """One update. The loss is mean MLM loss + mean next-sentence loss, over the whole batch (Devlin et al., A.2)."""
        settings, world = self.settings, self.world
        batches, rows = world.together(partial(self.loader.load, self.step))
        self.step += 1
        torch.manual_seed(derived_seed(settings.seed, "dropout", self.step, world.rank))
        self.optimizer.zero_grad()
        losses = world.sum(self._sum_gradients(batches))
        norm = self._clip()
        rate = learning_rate(self.step, settings)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        if self.metrics:
            by_name = dict(zip(LOSSES, losses, strict=True))
            self.metrics.add(self.step, {name: by_name[name] for name in self.losses}, norm, rate, rows)

    def _sum_gradients(self, batches: list[Batch]) -> Tensor:
        """Add up the gradients of a step's batches. Returns this rank's part of its losses (MLM, next-sentence)."""
        device = self.world.device
        own = (sum(len(batch.labels) for batch in batches), sum(batch.pairs for batch in batches))
        # Filled by the device itself, so that nothing waits for a copy.
        counts = self.world.sum(torch.stack([torch.full((), count, device=device) for count in own])).clamp(min=1)
        losses = torch.zeros(2, device=device)
        for batch in batches:
            # Only the last batch's backward sums over ranks, all gradients at once.
            with nullcontext() if batch is batches[-1] else self.shared.unsummed():
                with autocast(self.precision, device):
                    found = self.shared.module(batch.to(device))
                parts = torch.stack([found.mlm_sum, found.next_sentence_sum]) / counts
                # Ranks divide by the counts of all, and gradients are averaged over ranks: world.size makes that a sum.
                torch.autograd.backward(parts.sum() * self.world.size)
            losses += parts.detach()
        return losses

    def _clip(self) -> Tensor:
        """Scale gradients down to the largest norm that is allowed. Returns their norm before that."""
        norm = self.shared.whole(nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]))
        if self.settings.max_gradient_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.max_gradient_norm, norm)
        return norm

    def write_steps(self) -> None:
        """Write the steps that were noted.

        :raises NonFiniteError: a loss or gradient was not finite.
        """
        self.world.together(lambda: self.metrics.flush() if self.metrics else None)

    def evaluate(self) -> dict[str, float]:
        """Held-out figures, noted at this step: those of the part that it belongs to."""
        self.write_steps()
        part, size = part_of(self.parts, max(self.step - 1, 0)), self.settings.micro_batch_size or self.settings.batch_size
        with autocast(self.precision, self.world.device):
            figures = evaluate(self.model, part.valid.windows(), size, self.world, part.masking)
        self.shared.rest()
        figures["unigram_loss"] = part.unigram_loss
        if self.metrics:
            self.metrics.resume_clock()
            self.metrics.held_out(self.step, figures)
            logger.info("%s", held_out_line(self.step, figures))
        return figures

    def check_weights(self) -> None:
        """An update may overflow though its loss and gradient were finite.

        :raises NonFiniteError: a weight is not finite.
        """
        if not all(bool(self.shared.own(parameter.detach()).isfinite().all()) for parameter in self.model.parameters()):
            raise NonFiniteError(f"step {self.step}: the update made weights that are not finite; lower training.learning_rate")

    def check_lease(self) -> None:
        """Before anything is published.

        :raises LeaseLostError: another process has taken the run over.
        """
        if self.lease:
            self.lease.check()

    def check(self) -> None:
        """See that this rank may publish: its weights are finite, and nobody has taken the run over."""
        self.check_weights()
        self.check_lease()

    def save(self) -> None:
        """Write a checkpoint of this step; only what was found finite is saved."""
        self.write_steps()
        with self.saving:
            self.world.together(self.check)
            state = training_state(self.shared, self.optimizer)
            self.world.together(lambda: self.checkpoints.save(self.step, state, self.metrics.text()) if self.metrics else None)
        if self.metrics:
            self.metrics.resume_clock()


def _encoder_weights(run: RunSettings, initial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the encoder that a run starts from; heads that it lacks keep their initial values.

    :raises DamagedOutputError: its files are not those that were published.
    """
    store, output = Store(run.store), open_output(run.encoder)
    verify_digests(output)
    with store.local(output) as folder:
        missing = output.facts.get("missing_heads", ())
        return {**initial, **from_transformers(load_file(folder / ENCODER_WEIGHTS), run.shape, missing)}


def train(run: RunSettings, world: World, lease: Lease | None = None) -> Output | None:
    """Train to the end, from a checkpoint where there is one, and publish the run.

    :param lease: is checked before anything is published.
    :returns: the published run on the rank that writes, None on the others.
    :raises NonFiniteError: a loss or gradient became infinite or not a number; the last good checkpoint stays.
    """
    trainer = Trainer(run, world, lease)
    with closing(trainer.loader):
        _take_all_steps(trainer)
    figures = trainer.evaluate()
    weights = trainer.shared.gather(trainer.model.state_dict())
    return world.together(lambda: _publish(trainer, weights, figures) if world.writes else None)


def _take_all_steps(trainer: Trainer) -> None:
    settings, metrics, world = trainer.settings, trainer.metrics, trainer.world
    saved_at = time.monotonic()
    if metrics:
        rows, parameters = sum(len(part.train) for part in trainer.parts), sum(p.numel() for p in trainer.model.parameters())
        where = f"{_device(world)}, {trainer.precision}"
        logger.info("training %s parameters on %s pairs, %d steps on %s", f"{parameters:,}", f"{rows:,}", settings.steps, where)
        metrics.resume_clock()
    while trainer.step < settings.steps:
        trainer.take_step()
        last = trainer.step == settings.steps
        if trainer.step % settings.log_every == 0 or last:
            trainer.write_steps()
            if metrics:
                logger.info("%s", progress_line(metrics.last, settings.steps))
        if settings.evaluate_every and trainer.step % settings.evaluate_every == 0 and not last:
            trainer.evaluate()
        if not last and _checkpoint_due(trainer, saved_at):
            trainer.save()
            saved_at = time.monotonic()
    world.together(trainer.check_weights)


def _checkpoint_due(trainer: Trainer, saved_at: float) -> bool:
    """Whether all ranks are to save now, by the steps or by the clock of the one that writes."""
    settings, world = trainer.settings, trainer.world
    if settings.checkpoint_every_steps and trainer.step % settings.checkpoint_every_steps == 0:
        return True
    if not settings.checkpoint_every_seconds:
        return False
    return bool(world.largest(world.writes and time.monotonic() - saved_at >= settings.checkpoint_every_seconds))


def _device(world: World) -> str:
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.processor() or platform.machine()
    return f"{world.size} x {world.device.type} ({name})" if world.size > 1 else f"{world.device.type} ({name})"


def _publish(trainer: Trainer, weights: dict[str, Tensor], figures: dict[str, float]) -> Output:
    run, metrics = trainer.run, trainer.metrics
    assert metrics is not None
    store = Store(run.store)

    def build(folder: Path) -> dict[str, Any]:
        save_tensors(folder / WEIGHTS, weights)
        (folder / METRICS).write_text(metrics.text(), "utf-8")
        (folder / FILE).write_text(run.text(), "utf-8")
        names = (*(f"{name}_mean" for name in trainer.losses), "pairs_per_second", "seconds", "pairs")
        return {
            "steps": trainer.step,
            **{name: metrics.last[name] for name in names},
            "held_out": figures,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "device": _device(trainer.world),
        }

    recorded = {
        "torch": torch.__version__,
        "ranks": trainer.world.size,
        "nodes": trainer.world.nodes,
        "data_parallel": run.training.data_parallel if trainer.world.size > 1 else "none",
        "settings": run.training.as_dict(),
        # Of this process, which may have gone on from a checkpoint.
        "precision": trainer.precision,
        "seconds_waiting_for_batches": trainer.loader.waiting.seconds,
        "seconds_checkpointing": trainer.saving.seconds,
        "seconds_writing_metrics": metrics.writing.seconds,
    }
    with store.staging() as folder:
        facts = build(folder)
        trainer.check_lease()
        output = store.publish(run.recipe, folder, facts, recorded)
    trainer.checkpoints.delete_after(-1)
    return output
