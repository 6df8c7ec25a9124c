"""How ranks share a model: each has all of it, or, in `sharding.py`, each has a part.

In: a model. Out: what is called for a loss, and what a tensor is as a whole and on this rank. The decision that matters:
the training loop and checkpoints ask these questions alone, so that both ways take the same steps and write the same files.
"""

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..model.pretraining import BertForPretraining
from .distributed import World


class Replicas:
    """A model that each rank has all of; after a backward each has the mean of all ranks' gradients.

    :param model: its parameters are what the optimizer updates.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.model, self.world = model, world
        self.module: nn.Module = DistributedDataParallel(model) if world.size > 1 else model

    def unsummed(self) -> AbstractContextManager[None]:
        """Where gradients stay this rank's own."""
        return self.module.no_sync() if isinstance(self.module, DistributedDataParallel) else nullcontext()

    def whole(self, value: Tensor) -> Tensor:
        """The whole of a tensor that has a part on each rank; all ranks call this."""
        return value

    def own(self, value: Tensor) -> Tensor:
        """This rank's part of a tensor."""
        return value

    def placed(self, value: Tensor, like: Tensor) -> Tensor:
        """A whole tensor as a parameter lies on this rank."""
        return value.to(like.device)

    def rest(self) -> None:
        """Give up what a forward without a backward has gathered."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights to whole tensors."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: self.placed(value, own.get(name, value)) for name, value in weights.items()})

    def gather(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on the rank that writes, none on the others; all ranks call this. One at a time is on a device."""
        kept = {}
        for name, value in values.items():
            whole = self.whole(value.detach()).cpu()
            if self.world.writes:  # a file of tensors takes none that share their memory
                kept[name] = whole if whole.untyped_storage().nbytes() == whole.nbytes else whole.clone()
        return kept


def share(model: BertForPretraining, world: World, data_parallel: str) -> Replicas:
    """Share a model among ranks.

    :param data_parallel: ddp or fsdp, which one process has no use for.
    """
    if world.size == 1 or data_parallel == "ddp":
        return Replicas(model, world)
    shards: Replicas = importlib.import_module(f"{__package__}.sharding").Shards(model, world)  # half as long to import as torch
    return shards
