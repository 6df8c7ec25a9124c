"""The dtype of matrix products.

In: the setting and the device. Out: fp32 or bf16. The decision that matters: only products and what they hand on are
bf16 (autocast); weights, optimizer state, norms, softmax and losses are always fp32.
"""

import logging

import torch

logger = logging.getLogger(__name__)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def chosen_precision(wanted: str, device: torch.device) -> str:
    """fp32 or bf16: what was asked for, or with auto bf16 where the device is fast at it."""
    fast = has_fast_bf16(device)
    if wanted == "auto":
        return "bf16" if fast else "fp32"
    if wanted == "bf16" and not fast:
        logger.warning("training.precision: bf16 is slow on this %s, which has no hardware for it; auto takes fp32 here", device.type)
    return wanted


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which matrix products have this precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
