"""The optimizer, what it keeps, and the learning rate of each step.

In: a model and the settings. Out: Adam (Kingma and Ba 2014, arXiv 1412.6980), AdamW (Loshchilov and Hutter 2017, arXiv
1711.05101) or LAMB (You et al. 2019, arXiv 1904.00962). The decision that matters: the rate is a function of the step and
the settings, so that a resumed run needs no schedule's state.
"""

import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TrainingError
from ..settings import TrainingSettings


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """The rate of a step, counted from 1: a linear rise to the peak over the warm-up, then what the schedule says.

    The first step after the warm-up has the peak too, and a falling rate would be 0 one step after the last.
    """
    warmup, left = settings.warmup_steps, settings.steps - step + 1
    if step <= warmup:
        return settings.learning_rate * (step / warmup)
    share = left / (settings.steps - warmup)
    factors = {
        "constant": 1.0,
        "linear": share,
        "cosine": (1 - math.cos(math.pi * share)) / 2,
        "wsd": min(1.0, left / max(settings.decay_steps, 1)),
    }
    return settings.learning_rate * factors[settings.schedule]


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer that the settings name.

    :raises TrainingError: it is LAMB, and the package that has it is not installed.
    """
    rate, epsilon = settings.learning_rate, settings.adam_epsilon
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, eps=epsilon, fused=True)
    weights, others = _split(model.parameters())
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate, eps=epsilon, fused=True)
    groups[1]["adam"] = True  # as in the authors' code: what has no decay has no ratio of norms either
    # The update is the paper's: the decay is part of it, its first moment is not corrected, nor is a norm held below 10.
    optimizer: torch.optim.Optimizer = _lamb()(groups, lr=rate, eps=epsilon, weight_decouple=False, adam_debias=True)
    optimizer.clamp = math.inf  # type: ignore[attr-defined]
    return optimizer


def _lamb() -> Any:
    """The class; it is an extra's, and its import takes seconds."""
    try:
        return importlib.import_module("pytorch_optimizer").Lamb
    except ImportError as error:
        raise TrainingError("training.optimizer: lamb is not installed; .venv/bin/pip install -c constraints.txt -e '.[lamb]'") from error


def _split(parameters: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weights, and biases and norms, which have one dimension."""
    found: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for parameter in parameters:
        found[parameter.ndim < 2].append(parameter)
    return found


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps, for each parameter and for each group, by name; numbers become scalars of 64 bits."""
    kept = {f"parameter.{name}": optimizer.state[parameter] for name, parameter in model.named_parameters()}
    kept |= {f"group.{number}": _kept(optimizer, group) for number, group in enumerate(optimizer.param_groups)}
    return {f"{owner}.{entry}": _tensor(value) for owner, entries in kept.items() for entry, value in entries.items()}


def _beside(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.device)


def restore_optimizer(
    state: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, placed: Callable[[Tensor, Tensor], Tensor] = _beside
) -> None:
    """Give an optimizer back what `optimizer_state` took.

    :param placed: puts a tensor where a parameter lies.
    """

    def of(owner: str) -> dict[str, Tensor]:
        return {name.removeprefix(f"{owner}."): value for name, value in state.items() if name.startswith(f"{owner}.")}

    for name, parameter in model.named_parameters():
        entries = of(f"parameter.{name}")
        optimizer.state[parameter] = {entry: _value(value, parameter, placed) for entry, value in entries.items()}
    for number, group in enumerate(optimizer.param_groups):
        group |= {entry: _value(value, value, placed) for entry, value in of(f"group.{number}").items()}


def _kept(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """What a group has beside its parameters and what it was made with: LAMB counts its steps there."""
    return {name: value for name, value in group.items() if name != "params" and name not in optimizer.defaults}


def _tensor(value: Tensor | float) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
    return value


def _value(value: Tensor, like: Tensor, placed: Callable[[Tensor, Tensor], Tensor]) -> Tensor | float:
    return value.item() if value.dtype in (torch.int64, torch.float64) else placed(value, like)
