"""Checkpoints: weights and optimizer, with the metrics up to their step.

In: a training state, of pretraining or fine-tuning. Out: `<store>/checkpoints/<run key>/step-…`, each a published folder.
The decision that matters: a checkpoint is whole or absent, an older one goes only after a newer one is published, and a
damaged one is passed over for the one before it. Its tensors are whole too, so that any number of ranks goes on from it,
however they share.
"""

import logging
from collections.abc import Mapping
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import PipelineError, StoreUnavailableError
from ..storage import Store, open_output, verify_digests
from ..tensors import save_tensors
from .optimizer import optimizer_state, restore_optimizer
from .replicas import Replicas
from .run import METRICS, RunSettings

STATE = "state.safetensors"
STAGE = "checkpoints"

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a run.

    :param store: its root. :param key: the run's. :param keep: how many of the newest are kept.
    """

    def __init__(self, store: str, key: str, keep: int) -> None:
        self._store, self._key, self._keep = Store(store), key, keep
        self._root = self._store.address(STAGE, key)

    @classmethod
    def of(cls, run: RunSettings) -> Self:
        """Those of a pretraining."""
        return cls(run.store, run.key, run.training.keep_checkpoints)

    def save(self, step: int, state: dict[str, Tensor], metrics: str) -> None:
        """Publish the state after a step, then delete all but the newest few."""
        address = f"{self._root}/step-{step:09d}"
        with self._store.staging() as folder:
            save_tensors(folder / STATE, state)
            (folder / METRICS).write_text(metrics, "utf-8")
            self._store.publish_at(address, folder, {"stage": STAGE, "key": self._key, "step": step, "facts": {}})
        for old in self._names()[: -self._keep]:
            self._store.delete(f"{self._root}/{old}")

    def load(self) -> tuple[int, list[str], dict[str, Tensor]]:
        """Read the newest checkpoint that is whole.

        :returns: its step, the lines of its metrics and its state; (0, [], {}) where there is none.
        """
        for name in reversed(self._names()):
            try:
                output = open_output(f"{self._root}/{name}")
                verify_digests(output)
            except StoreUnavailableError:  # which says nothing of the checkpoint
                raise
            except PipelineError as error:
                logger.warning("checkpoint %s is passed over: %s", name, error)
                continue
            with self._store.local(output) as folder:
                lines = (folder / METRICS).read_text("utf-8").splitlines()
                return int(output.manifest["step"]), lines, load_file(folder / STATE)
        return 0, [], {}

    def newest(self) -> int:
        """The step of the newest that was published; 0 where there is none."""
        whole = (name for name in reversed(self._names()) if self._store.whole(STAGE, f"{self._key}/{name}"))
        return int(next(whole, "step-0").removeprefix("step-"))

    def delete_after(self, step: int) -> None:
        """Delete those after a step: what a resumed run passed over, or with -1 all, once the run is published."""
        for name in self._names():
            if int(name.removeprefix("step-")) > step:
                self._store.delete(f"{self._root}/{name}")

    def _names(self) -> list[str]:
        return [name for name in self._store.children(self._root) if name.startswith("step-")]


def training_state(shared: Replicas, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What a checkpoint holds, on the rank that writes; all ranks call this.

    Dropout and order are functions of the step, so no generator's state is needed.
    """
    state = {f"model.{name}": value for name, value in shared.model.state_dict().items()}
    state |= {f"optimizer.{name}": value for name, value in optimizer_state(shared.model, optimizer).items()}
    return shared.gather(state)


def restore(state: Mapping[str, Tensor], shared: Replicas, optimizer: torch.optim.Optimizer) -> None:
    """Give model and optimizer back what `training_state` took; all ranks call this."""

    def of(owner: str) -> dict[str, Tensor]:
        return {name.removeprefix(owner): value for name, value in state.items() if name.startswith(owner)}

    shared.load(of("model."))
    restore_optimizer(of("optimizer."), shared.model, optimizer, shared.placed)
