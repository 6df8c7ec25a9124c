"""What commands print."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.errors import PipelineError


def print_lines(lines: Iterable[str]) -> None:
    """Print each as it comes; see `printing`. What goes wrong in making one is not taken for a fault of printing."""
    for line in lines:
        with printing():
            print(line)


@contextmanager
def printing() -> Iterator[None]:
    """Where nobody reads any more, as after `| head`, the command ends quietly; what else goes wrong is one line."""
    if sys.stdout is None:
        raise PipelineError("standard output: closed; wanted it open, or a file by --to")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        raise PipelineError(f"standard output: {error.strerror}") from error


def numbers(values: Sequence[float]) -> str:
    """The first numbers of a vector."""
    return "[" + ", ".join(f"{value:.4f}" for value in values) + ", …]"
