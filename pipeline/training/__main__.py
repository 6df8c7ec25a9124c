"""`python -m pipeline.training RUN.json`, or of a plan; with one rank here, with several by the agent, which starts it under
torchrun again.

Prints progress on standard output. A `PipelineError` ends it with one line on standard error and exit status 1; the
full traceback goes to `training.log` in the run's work folder.
"""

import argparse
import logging
import os
import sys
import traceback
from pathlib import Path

from ..errors import PipelineError, SettingsError
from ..storage import Store
from .agent import device_count, train_together
from .checkpoint import Checkpoints
from .distributed import LeftTogether, agent, alone_at, die_with_agent, join_world
from .loop import train
from .memory import keep_freed_memory
from .plan import open_plan
from .run import STAGE, RunSettings, read_run

LOG = "training.log"


def main() -> int:
    """Train the run named on the command line. Returns the exit status."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    die_with_agent()
    try:
        run = _run_of(arguments)
        _log_to(Path(run.work) / LOG)
        if "RANK" in os.environ:
            return _rank(run)
        ranks = arguments.ranks or device_count(run.training.device)
        if ranks * run.training.nodes > 1:
            return train_together(run, ranks, joins=arguments.join)
        _train(run)
    except (PipelineError, OSError) as error:  # an OSError: a full disk under the work folder, most likely
        _tell(error, arguments.run)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.training", description="Train the run that a run.json or a plan describes.")
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN.json", help="run settings, as the flow writes them")
    parser.add_argument("--plan", metavar="KEY", help="a planned run of the store, instead of RUN.json")
    parser.add_argument("--store", metavar="ROOT", help="with --plan: folder or address of the store, as this machine reaches it")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="with --plan: local folder for live metrics and the log")
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="processes of this machine; without it one for each GPU, or one")
    parser.add_argument("--join", action="store_true", help="of several machines: this is not the one at training.rendezvous")
    return parser


def _run_of(arguments: argparse.Namespace) -> RunSettings:
    """The run that the command line names, with a work folder."""
    planned = (arguments.plan, arguments.store, arguments.work)
    if (arguments.run is None) != all(planned) or (arguments.run and any(planned)):
        raise SettingsError("wanted RUN.json, or all of --plan KEY --store ROOT --work FOLDER")
    if arguments.ranks < 0:
        raise SettingsError(f"--ranks: got {arguments.ranks}, wanted 1 or more")
    run = read_run(arguments.run) if arguments.run else open_plan(Store(arguments.store), arguments.plan, arguments.work)
    if not (run.store and run.work):
        todo = "give --plan KEY --store ROOT --work FOLDER"
        raise SettingsError(f"{arguments.run}: names no store or no work folder, as a plan does; {todo}")
    if arguments.join and run.training.nodes == 1:
        raise SettingsError("--join: got a run of one machine, wanted training.nodes of 2 or more")
    return run


def _rank(run: RunSettings) -> int:
    """Train as one of several ranks. Returns the exit status: 0 for the agent where all have left, since it starts others again."""
    try:
        _train(run)
    except LeftTogether as end:
        if end.error:
            _tell(end.error, Path(run.work))
        return 0 if agent() else 1
    except (PipelineError, OSError):
        raise
    except Exception:  # another rank died, or this is a bug
        traceback.print_exc()
        logging.getLogger("traceback").debug("", exc_info=True)
        sys.stderr.flush()
        os._exit(1)  # without waiting for ranks that will not come
    return 0


def _train(run: RunSettings) -> None:
    keep_freed_memory()
    store = Store(run.store)
    with alone_at(run) as lease, join_world(run.training.device, lease is not None) as world:
        found = world.together(lambda: store.find(STAGE, run.key))  # whoever was at it has finished it
        if not world.largest(found is not None):
            train(run, world, lease)
        elif world.writes:
            print(f"{store.address(STAGE, run.key)}: found, nothing to do")
            Checkpoints.of(run).delete_after(-1)  # a kill may have left some


def _tell(error: PipelineError | OSError, place: Path | None) -> None:
    """Say an error in one line; its traceback goes to the log."""
    logging.getLogger("traceback").debug("%s", error, exc_info=error)
    said = f"{error.filename or place}: {error.strerror or error}" if isinstance(error, OSError) else error
    print(f"error: {said}", file=sys.stderr)


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
