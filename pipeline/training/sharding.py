"""A model of which each rank has a part: weights, gradients and optimizer (FSDP2, `fully_shard`).

In: a model. Out: the answers of `Replicas`. The decision that matters: the layers are sharded one by one and the rest with
the root, so that the root's weights, embeddings and heads, are whole while the model runs; the heads use them directly.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from ..model.pretraining import BertForPretraining
from .distributed import World
from .replicas import Replicas


class Shards(Replicas):
    """A model whose layers are gathered one at a time while it runs."""

    def __init__(self, model: BertForPretraining, world: World) -> None:
        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in model.encoder.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        register_fsdp_forward_method(model, "logits")  # gathers weights as a forward does
        self.model, self.world, self.module = model, world, model

    @contextmanager
    def unsummed(self) -> Iterator[None]:
        """Where gradients stay this rank's own, whole: that takes the memory of all gradients, and one sum a step."""
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_requires_gradient_sync(True)

    def whole(self, value: Tensor) -> Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def own(self, value: Tensor) -> Tensor:
        return value.to_local() if isinstance(value, DTensor) else value

    def placed(self, value: Tensor, like: Tensor) -> Tensor:
        """Each rank takes its part of what it has read itself, so that nothing is sent."""
        if isinstance(value, DTensor) or not isinstance(like, DTensor) or value.shape != like.shape:
            return value if isinstance(value, DTensor) else value.to(like.device)
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    def rest(self) -> None:
        self._root.reshard()  # the root alone stays gathered after a forward

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)
        return self.model
