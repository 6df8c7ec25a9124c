"""Tasks whose state says whether their work was done or found.

In: a function that calls a stage of `pipeline`. Out: a task; its call gives the function's value. The decision that
matters: the store alone says what is there, so an output that is found ends its task in the state Cached, which names
it. A cache of Prefect's own beside the store would give out addresses of outputs that are damaged or gone.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from prefect import State, get_run_logger, task
from prefect.states import Completed

from pipeline.errors import RegistryUnavailableError
from pipeline.storage import Output

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Duration:
    """How long a task took, and whether its output was found."""

    name: str
    seconds: float
    found: bool


_durations: ContextVar[list[Duration] | None] = ContextVar("durations", default=None)


@contextmanager
def timed() -> Iterator[list[Duration]]:
    """Notes how long each task that is called in the block takes."""
    durations: list[Duration] = []
    token = _durations.set(durations)
    try:
        yield durations
    finally:
        _durations.reset(token)


def _note(duration: Duration) -> None:
    """A function of its own, since Prefect sends a stage's closure to other processes, where a context variable cannot go."""
    if (durations := _durations.get()) is not None:
        durations.append(duration)


def stage(name: str, *, asks_registry: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a task.

    :param name: of its runs. :param asks_registry: it is tried again while the registry is away; a download waits by itself.
    """
    retries: dict[str, Any] = {"retries": 2, "retry_delay_seconds": [5, 20], "retry_condition_fn": _registry_away}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        made = task(task_run_name=name, **retries if asks_registry else {})(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            begun = time.monotonic()
            result = made(*args, **kwargs)
            arguments = inspect.signature(function).bind(*args, **kwargs)
            arguments.apply_defaults()
            _note(Duration(name.format(**arguments.arguments), time.monotonic() - begun, isinstance(result, State)))
            return cast(R, result.result()) if isinstance(result, State) else result

        return call

    return decorate


def _registry_away(task: Any, task_run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), RegistryUnavailableError)


def ended(output: Output, value: R) -> R:
    """A task's value, once the stage has its output; where that was found, the task's state is Cached."""
    name = f"{output.stage}/{output.key}"
    if output.found:
        return found(f"{name}: found, nothing to do", value)
    get_run_logger().info("%s: made", name)
    return value


def found(message: str, value: R) -> R:
    """A task's value that was found: ends the task in the state Cached, which the task's call turns into the value."""
    return cast(R, Completed(name="Cached", message=message, data=value))
