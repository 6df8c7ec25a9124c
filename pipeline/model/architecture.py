"""What an architecture decides, beside the sizes.

In: its name. Out: a frozen description that the encoder and the heads build from. The decision that matters: the two
differ in this table alone, so that no layer asks which one it is in.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "gelu": F.gelu}


@dataclass(frozen=True)
class Architecture:
    """The choices, under transformers' names where it has one.

    :param normed_embeddings: whether a norm and dropout follow the embeddings.
    :param initializer_range: standard deviation of the initial weights, biases being 0; None: torch's own defaults.
    :param tie_word_embeddings: whether the masked-language-model head's weight is the token embedding.
    """

    hidden_act: str
    layer_norm_eps: float
    normed_embeddings: bool
    initializer_range: float | None
    tie_word_embeddings: bool

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The function; it may overwrite what it is given."""
        return _ACTIVATIONS[self.hidden_act]

    def norm(self, size: int) -> nn.LayerNorm:
        """A layer norm."""
        return nn.LayerNorm(size, eps=self.layer_norm_eps)

    def initialize(self, module: nn.Module) -> None:
        """Draw the initial weights of a module's linear layers and embeddings; norms stay 1 and 0."""
        if self.initializer_range is None:
            return
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=self.initializer_range)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)


ARCHITECTURES = {
    # Devlin et al. 2018, arXiv 1810.04805, and its published code.
    "bert": Architecture("gelu", 1e-12, normed_embeddings=True, initializer_range=0.02, tie_word_embeddings=True),
    # Dive into Deep Learning, "Bidirectional Encoder Representations from Transformers".
    "deck": Architecture("relu", 1e-5, normed_embeddings=False, initializer_range=None, tie_word_embeddings=False),
}
