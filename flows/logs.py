"""Logs of a run: what `pipeline` says reaches Prefect; an error of the user's is one line, its traceback a file's.

Prefect prints a traceback for a failed task and a longer one for its flow. For a `PipelineError`, whose message says
all that the user needs, the traceback goes to `artifacts/logs/errors.log` instead.
"""

import logging
from pathlib import Path

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from pipeline.errors import PipelineError

from .places import artifacts

_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def error_log() -> Path:
    """The file of full tracebacks."""
    return artifacts() / "logs" / "errors.log"


def write_traceback(error: BaseException) -> None:
    """Append an error with its traceback to the file; where that cannot be, the error is what matters."""
    try:
        error_log().parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(error_log())
    except OSError:  # the same full disk or missing permission, most likely
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.emit(logging.LogRecord("errors", logging.ERROR, "", 0, str(error), None, (type(error), error, error.__traceback__)))
    handler.close()


def set_up() -> None:
    """Do both, once a process."""
    for name in _RUN_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _OneLine) for known in logger.filters):
            logger.addFilter(_OneLine())
    logger = logging.getLogger("pipeline")
    logger.setLevel(logging.INFO)
    logger.propagate = False  # Prefect's root handler would print each line a second time
    if not any(isinstance(known, _ToRun) for known in logger.handlers):
        logger.addHandler(_ToRun())


class _OneLine(logging.Filter):
    """Lets a PipelineError through once, from its task, as one line without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, PipelineError):
            record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
            if error.told:
                return False
            error.told = True
            write_traceback(error)
        elif str(record.msg).startswith("Finished in state Failed("):
            record.msg, record.args = "Finished in state Failed()", None  # the error stands above
        return True


class _ToRun(logging.Handler):
    """Hands records to the logger of the current task or flow run."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_run_logger().log(record.levelno, record.getMessage())
        except MissingContextError:  # outside a run
            logging.lastResort and logging.lastResort.handle(record)
