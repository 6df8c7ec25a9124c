"""Adam (Kingma and Ba 2014, arXiv 1412.6980) and the learning rate of each step."""

import torch
from torch import nn

from ..settings import TrainingSettings


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """The rate of a step, counted from 1: a linear rise to the peak over the warm-up, then constant."""
    return settings.learning_rate * min(1.0, step / max(settings.warmup_steps, 1))


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Adam:
    """Adam over all parameters, as the deck has it."""
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
