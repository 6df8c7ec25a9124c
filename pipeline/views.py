"""What an encoder makes of a sentence, for pictures: its last layer's attention, and its vectors in a plane.

In: an encoder and texts. Out: arrays. The decision that matters: the attention is computed from what goes into the last
layer and from that layer's own weights, since the fused kernel that the model runs gives out no weights.

Legend: L length, D hidden size, H heads, N vectors.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .encoding import Encoder
from .model.encoder import SelfAttention


def last_attention(encoder: Encoder, text: str, text_pair: str | None = None) -> Tensor:
    """How much each token of a sentence or pair attends to each in the last layer: (H, L, L), where each row sums to 1."""
    attention: SelfAttention = encoder.model.encoder.layers[-1].attention  # type: ignore[assignment]
    taken: list[Tensor] = []
    with attention.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0])):
        encoder.encode(text, text_pair)
    return attention_weights(attention, taken[0])


@torch.inference_mode()
def attention_weights(attention: SelfAttention, x_LD: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D / H)) of one row, without dropout: (H, L, L) (Vaswani et al. 2017, arXiv 1706.03762, section 3.2)."""
    L, D = x_LD.shape
    q, k, _ = F.linear(x_LD, attention.qkv.weight, attention.qkv.bias).view(L, 3, attention.heads, D // attention.heads).permute(1, 2, 0, 3)
    return torch.softmax(q @ k.transpose(1, 2) * (D // attention.heads) ** -0.5, -1)


def in_a_plane(vectors: Sequence[Tensor]) -> tuple[Tensor, list[float]]:
    """Vectors on the plane in which they differ most: their first two principal components.

    :param vectors: (D) each. :returns: (N, 2), and the share of the variance that each of the two axes holds.
    """
    centred_ND = torch.stack([*vectors]).double()
    centred_ND -= centred_ND.mean(0)
    _, strengths, axes_KD = torch.linalg.svd(centred_ND, full_matrices=False)
    shares = strengths.square() / strengths.square().sum().clamp(min=1e-30)
    return centred_ND @ axes_KD[:2].T, shares[:2].tolist()
