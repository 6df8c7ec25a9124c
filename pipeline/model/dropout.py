"""Dropout (Srivastava et al. 2014) whose random numbers are cheap on a CPU.

In: a tensor and a rate. Out: the tensor with some entries zero and the others scaled up. The decision that matters: on a
CPU one draw of 64 random bits decides on four entries, where torch's own dropout draws a number for each.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STEPS = 2**16  # of the rate, which 16 bits decide; none is off by more than 1 / 2**16


class Dropout(nn.Module):
    """Zeroes entries at a rate while training; does nothing in evaluation."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of x's shape."""
        if not self.training or not self.rate:
            return x
        return x * _keep(x, self.rate) if x.device.type == "cpu" else F.dropout(x, self.rate)


def _keep(x: Tensor, rate: float) -> Tensor:
    """0 at the rate, else 1 / (1 - rate), in x's shape, fp32 where x is less."""
    dropped = min(round(rate * _STEPS), _STEPS - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return (bits >= dropped - _STEPS // 2).to(torch.promote_types(x.dtype, torch.float32)).mul_(_STEPS / (_STEPS - dropped))
