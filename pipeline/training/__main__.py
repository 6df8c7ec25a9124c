"""`python -m pipeline.training RUN.json`, alone or under torchrun.

Prints progress on standard output. A `PipelineError` ends it with one line on standard error and exit status 1; the
full traceback goes to `training.log` in the run's work folder.
"""

import argparse
import logging
import sys
from pathlib import Path

from ..errors import PipelineError
from ..storage import Store
from .checkpoint import Checkpoints
from .distributed import alone_at, join_world
from .loop import train
from .memory import keep_freed_memory
from .run import STAGE, read_run

LOG = "training.log"


def main() -> int:
    """Train the run named on the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.training", description="Train the run that a run.json describes.")
    parser.add_argument("run", type=Path, metavar="RUN.json", help="run settings, as the flow writes them")
    path = parser.parse_args().run
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        run = read_run(path)
        _log_to(Path(run.work) / LOG)
        keep_freed_memory()
        with alone_at(run) as lease, join_world(run.training.device) as world:
            if found := Store(run.store).find(STAGE, run.key):  # whoever was at it has finished it
                print(f"{found.address}: found, nothing to do")
                if world.writes:
                    Checkpoints(run).delete_after(-1)  # a kill may have left some
                return 0
            train(run, world, lease)
    except PipelineError as error:
        logging.getLogger("traceback").debug("%s", error, exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk under the work folder, most likely
        logging.getLogger("traceback").debug("%s", error, exc_info=True)
        print(f"error: {error.filename or path}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _log_to(path: Path) -> None:
    """Write everything, tracebacks of the user's errors included, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    traceback = logging.getLogger("traceback")
    traceback.setLevel(logging.DEBUG)
    traceback.propagate = False
    traceback.addHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
