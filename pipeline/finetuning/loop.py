"""The loop of fine-tuning.

In: a run, and a local folder to write to. Out: in that folder an encoder with its head; live metrics and facts in the work
folder. The decision that matters: order and dropout of a step come from (seed, step) alone, so that one seed gives one model
on a CPU, and a run that was killed goes on from its last checkpoint to the same one.
"""

import json
import logging
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..encoder_format import CONFIG, TOKENIZER_CONFIG, WEIGHTS
from ..errors import NonFiniteError, TrainingError
from ..storage import Output, Store, open_output, verify_digests
from ..tensors import save_tensors
from ..tokens import TOKENIZER
from ..training.checkpoint import Checkpoints, restore, training_state
from ..training.distributed import World
from ..training.loop import derived_seed
from ..training.optimizer import learning_rate, make_optimizer, set_learning_rate
from ..training.precision import autocast, chosen_precision
from ..training.replicas import Replicas
from .evaluation import evaluate
from .examples import Example, Labelled, Question
from .features import Row
from .head_format import Head, config_with_head, named_weights, open_tokenizer
from .labelled import HELD_OUT, TRAIN, read_labelled
from .prediction import Finetuned, batch_of
from .run import FACTS, METRICS, FinetuningRun
from .settings import FinetuningSettings
from .start import start_model

LOG_EVERY = 10  # steps between writes of metrics, for which the device is waited for
_KEPT = 2  # checkpoints

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """A row to learn from. :param label: number of its class; of a window the places of the answer's first and last token."""

    row: Row
    label: int | tuple[int, int]


def finetune(run: FinetuningRun, folder: Path) -> None:
    """Train to the end and write the folder.

    :raises TrainingError: the encoder does not fit the settings. :raises NonFiniteError: a loss is not finite.
    """
    begun, settings, store = time.monotonic(), run.settings, Store(run.store)
    labelled, encoder = open_output(run.labelled), open_output(run.encoder)
    verify_digests(encoder)
    train, held_out = (read_labelled(store, labelled, split) for split in (TRAIN, HELD_OUT))
    head = _head(run, labelled)
    device = _device(settings.device)
    torch.manual_seed(derived_seed(settings.seed, "weights"))
    with store.local(encoder) as source:
        model, shape = start_model(source, head, settings, random_encoder=run.random_encoder)
        tokenizer, table = open_tokenizer(source)
        finetuned = Finetuned(model.to(device), head, tokenizer, table, device)
        with (Path(run.work) / METRICS).open("w", encoding="utf-8") as file:
            steps = _Loop(finetuned, settings, _targets(finetuned, train), held_out, file, checkpoints(run)).take_all()
        save_tensors(folder / WEIGHTS, named_weights(model.state_dict(), shape))
        config = config_with_head(shape, table, head, settings.dropout)
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", "utf-8")
        for name in (TOKENIZER, TOKENIZER_CONFIG):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    shutil.copyfile(Path(run.work) / METRICS, folder / METRICS)
    figures = evaluate(Finetuned.load(folder), held_out)  # of what was written, on the CPU, as those of other versions are
    facts = {
        "task": run.task,
        "labels": list(head.labels),
        "steps": steps,
        "rows": {TRAIN: len(train), HELD_OUT: len(held_out)},
        "held_out": figures,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": f"{device.type} ({platform.processor() or platform.machine()})",
        "seconds": time.monotonic() - begun,
    }
    (Path(run.work) / FACTS).write_text(json.dumps(facts, indent=1), "utf-8")
    logger.info("held out: %s", _shown(figures))


def checkpoints(run: FinetuningRun) -> Checkpoints:
    """Those of a fine-tuning; whoever publishes what it wrote deletes them."""
    return Checkpoints(run.store, run.key, _KEPT)


def _head(run: FinetuningRun, labelled: Output) -> Head:
    settings, facts = run.settings, labelled.facts
    impossible = bool(facts[TRAIN].get("impossible"))
    return Head(
        run.task, tuple(facts["labels"]), settings.max_length, settings.doc_stride, settings.max_answer_length, impossible=impossible
    )


def _device(wanted: str) -> torch.device:
    """:raises TrainingError: this machine has no such device."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise TrainingError("finetuning.device: got cuda, but torch sees no GPU here; set it to auto or cpu")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def _targets(model: Finetuned, examples: Sequence[Example]) -> list[Target]:
    """The rows of the training data with what they are to give."""
    if model.head.labels:
        numbers = {label: number for number, label in enumerate(model.head.labels)}
        labelled = [row for row in examples if isinstance(row, Labelled)]
        rows = model.rows.of((row.text, row.text_pair) for row in labelled)
        return [Target(row, numbers[example.label]) for row, example in zip(rows, labelled, strict=True)]
    return list(_answer_targets(model, [row for row in examples if isinstance(row, Question)]))


def _answer_targets(model: Finetuned, questions: Sequence[Question]) -> Iterator[Target]:
    """A target for each window: the first answer, or `<cls>` where the window has not all of it (Devlin et al., section 4.3)."""
    unseen = 0
    for question, windows in zip(questions, model.rows.windows((row.question, row.context) for row in questions), strict=True):
        found = [window.places(start, len(text)) for window in windows for text, start in question.answers[:1]] or [None] * len(windows)
        unseen += bool(question.answers) and not any(found)
        for window, places in zip(windows, found, strict=True):
            yield Target(window.row, places or (0, 0))
    if unseen:
        logger.info("%d of %d answers are in no window as a whole; they are not learnt", unseen, len(questions))


class _Loop:
    """Model, optimizer and targets."""

    def __init__(
        self,
        model: Finetuned,
        settings: FinetuningSettings,
        targets: Sequence[Target],
        held_out: Sequence[Example],
        file: TextIO,
        checkpoints: Checkpoints,
    ) -> None:
        self.model, self.settings, self.targets, self.held_out = model, settings, targets, held_out
        self.file, self.checkpoints = file, checkpoints
        self.training = settings.training(len(targets))
        if settings.freeze_encoder:
            model.model.encoder.requires_grad_(False)
        self.learning = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(model.model, self.training)
        self.shared = Replicas(model.model, World(0, 1, model.device))
        self.precision = chosen_precision(settings.precision, model.device)
        self.waiting: list[tuple[int, Tensor, Tensor, float]] = []

    def take_all(self) -> int:
        """Go through all epochs, from a checkpoint where there is one. Returns the steps."""
        steps, of_epoch = self.training.steps, self.training.steps // self.settings.epochs
        logger.info("fine-tuning on %s rows, %d steps on %s, %s", f"{len(self.targets):,}", steps, self.model.device.type, self.precision)
        step, saved_at = self._go_on(), time.monotonic()
        order: NDArray[np.int64] | None = None
        while step < steps:
            epoch, place = divmod(step, of_epoch)
            if order is None or place == 0:
                order = np.random.default_rng(derived_seed(self.settings.seed, "order", epoch)).permutation(len(self.targets))
            step += 1
            self._take(step, order[place * self.settings.batch_size :][: self.settings.batch_size])
            if step % LOG_EVERY == 0 or step == steps:
                self._write()
            if place + 1 == of_epoch:
                figures = evaluate(self.model, self.held_out)
                self._write()
                self._row("held_out", step, figures)
                logger.info("epoch %d of %d, step %d of %d: held out %s", epoch + 1, self.settings.epochs, step, steps, _shown(figures))
            if step < steps and self._checkpoint_is_due(step, saved_at):
                self._save(step)
                saved_at = time.monotonic()
        return step

    def _go_on(self) -> int:
        """Restore the newest checkpoint. Returns its step."""
        step, lines, state = self.checkpoints.load()
        self.checkpoints.delete_after(step)  # what was passed over
        if step:
            restore(state, self.shared, self.optimizer)
            logger.info("going on from the checkpoint of step %d", step)
        for line in lines:
            self.file.write(f"{line}\n")
        self.file.flush()
        return step

    def _checkpoint_is_due(self, step: int, saved_at: float) -> bool:
        steps, seconds = self.settings.checkpoint_every_steps, self.settings.checkpoint_every_seconds
        return bool(steps and step % steps == 0) or bool(seconds and time.monotonic() - saved_at >= seconds)

    def _save(self, step: int) -> None:
        self._write()
        state = training_state(self.shared, self.optimizer)
        self.checkpoints.save(step, state, Path(self.file.name).read_text("utf-8"))

    def _take(self, step: int, numbers: Iterable[int]) -> None:
        """One update. :param numbers: of its rows."""
        targets = sorted((self.targets[number] for number in numbers), key=lambda target: len(target.row.input_ids))
        model, device = self.model.model, self.model.device
        torch.manual_seed(derived_seed(self.settings.seed, "dropout", step))
        model.train()
        if self.settings.freeze_encoder:
            model.encoder.eval()
        self.optimizer.zero_grad()
        labels = torch.tensor([target.label for target in targets]).to(device)
        with autocast(self.precision, device):
            logits = model(batch_of([target.row for target in targets], device))
        loss = model.loss(logits, labels)
        torch.autograd.backward(loss)
        norm = nn.utils.get_total_norm([p.grad for p in self.learning if p.grad is not None])
        if self.settings.max_gradient_norm:
            nn.utils.clip_grads_with_norm_(self.learning, self.settings.max_gradient_norm, norm)
        rate = learning_rate(step, self.training)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.waiting.append((step, loss.detach(), norm, rate))

    def _write(self) -> None:
        """Write the steps that were noted.

        :raises NonFiniteError: a loss or gradient was not finite.
        """
        for step, loss, norm, rate in self.waiting:
            if not (loss.isfinite() and norm.isfinite()):
                raise NonFiniteError(f"step {step}: loss {float(loss)}, gradient norm {float(norm)}; lower finetuning.learning_rate")
            self._row("train", step, {"loss": float(loss), "gradient_norm": float(norm), "learning_rate": rate})
        self.waiting.clear()

    def _row(self, kind: str, step: int, values: dict[str, float]) -> None:
        row: dict[str, Any] = {"kind": kind, "step": step, **values}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())
