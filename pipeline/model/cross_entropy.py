"""The cross-entropy over a large vocabulary, with its gradients computed on the way.

In: vectors, the output layer and labels. Out: the summed loss. The decision that matters: logits exist for a block of
rows at a time and are turned into gradients while they lie in the cache, so an M x V matrix is never held nor computed twice.

Legend: M rows, C rows of a block, D hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS_A_BLOCK, _ROWS_A_BLOCK_ON_GPU = 512, 4096


def linear_cross_entropy_sum(x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, labels_M: Tensor) -> Tensor:
    """The cross-entropies in nats of softmax(x W^T + b) against the labels, summed.

    Matrix products take autocast's dtype where it is on; the softmax, the loss and the sums of gradients are fp32.
    """
    kind = x_MD.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
    loss: Tensor = _LinearCrossEntropySum.apply(x_MD, weight_VD, bias_V, labels_M, dtype)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropySum(torch.autograd.Function):
    """With p = softmax(x W^T + b) - onehot(labels): dx = p W, dW = p^T x, db = the sum of p over rows."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, labels_M: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(x_MD.device.type, enabled=False):
            return _forward(ctx, x_MD, weight_VD, bias_V, labels_M, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved.mul(gradients[0]) for saved in ctx.saved_tensors), None, None


def _forward(ctx: Any, x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, labels_M: Tensor, dtype: torch.dtype) -> Tensor:
    dx_MD, dweight_VD, dbias_V = (torch.zeros_like(value, dtype=torch.float32) for value in (x_MD, weight_VD, bias_V))
    loss = dbias_V.new_zeros(())
    weight, bias = weight_VD.to(dtype), bias_V.to(dtype)
    rows = _ROWS_A_BLOCK if x_MD.device.type == "cpu" else _ROWS_A_BLOCK_ON_GPU
    for x_block, labels_C, dx_CD in zip(*(torch.split(value, rows) for value in (x_MD, labels_M, dx_MD)), strict=True):
        x_CD, label_C1 = x_block.to(dtype), labels_C[:, None]
        logits_CV = torch.addmm(bias, x_CD, weight.t()).float()
        p_CV = torch.softmax(logits_CV, 1)
        # log(sum of exp) = largest logit - log(its probability), which is at least 1 / V, so that nothing underflows.
        loss += (logits_CV.amax(1, keepdim=True) - p_CV.amax(1, keepdim=True).log() - logits_CV.gather(1, label_C1)).sum()
        p_CV.scatter_add_(1, label_C1, p_CV.new_full((1, 1), -1.0).expand_as(label_C1))
        dbias_V += p_CV.sum(0)
        p_CV = p_CV.to(dtype)
        dx_CD.copy_(p_CV @ weight)
        dweight_VD += p_CV.t() @ x_CD
    ctx.save_for_backward(dx_MD, dweight_VD, dbias_V)
    return loss
