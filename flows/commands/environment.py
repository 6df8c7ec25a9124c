"""What a command that runs a flow sets before Prefect and MLflow are imported.

In: the environment as the user has it. Out: one in which they call nobody and need no server; what the user has set stands.
"""

import os
import signal
import sys
from pathlib import Path

from pipeline.errors import PipelineError

from ..places import QUIET, artifacts
from ..services import check_prefect


def prepare() -> None:
    """Set it, see that a server that is named is there, and have SIGTERM end the command as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _terminate)
    defaults = QUIET | {
        "PREFECT_HOME": str(artifacts() / "prefect"),
        "PREFECT_API_URL": "",  # no server needed
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    make_folder(os.environ["PREFECT_HOME"])
    if server := os.environ["PREFECT_API_URL"]:
        check_prefect(server)


def set_quiet() -> None:
    """Have them call nobody, where a command runs no flow."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def make_folder(path: str) -> Path:
    """:raises PipelineError: it cannot be made."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}; wanted a folder that can be written") from error
    return folder


def _terminate(number: int, frame: object) -> None:
    """End as Ctrl-C does, so that the temporary server ends too."""
    print("error: terminated; the same command goes on from the last checkpoint", file=sys.stderr)
    sys.exit(128 + number)
