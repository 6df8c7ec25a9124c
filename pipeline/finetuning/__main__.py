"""`python -m pipeline.finetuning RUN.json FOLDER`: the child process that fine-tunes.

Prints progress on standard output. A `PipelineError` ends it with one line on standard error and exit status 1.
"""

import argparse
import logging
import sys
from pathlib import Path

from ..errors import PipelineError
from ..training.memory import keep_freed_memory
from .loop import finetune
from .run import FinetuningRun


def main() -> int:
    """Fine-tune what the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.finetuning", description="Fine-tune as a run.json describes.")
    parser.add_argument("run", type=Path, metavar="RUN.json", help="as the flow writes it")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the encoder with its head goes; it is there and empty")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    keep_freed_memory()
    try:
        finetune(FinetuningRun.read(arguments.run), arguments.folder)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or arguments.run}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
