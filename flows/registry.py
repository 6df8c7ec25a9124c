"""Everything MLflow but models: the connection, runs, metrics.

In: settings and metrics. Out: a run that shows them live. The decision that matters: every call names its run, since
MLflow's active run is a thread's own.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.logging_utils import disable_logging
from sqlalchemy.exc import SQLAlchemyError

from pipeline.addresses import without_credentials
from pipeline.errors import RegistryError, RegistryUnavailableError
from pipeline.storage import Store

from .places import EXPERIMENT, artifacts, mlflow_artifacts, mlflow_database, tracking_uri

_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
_AWAY = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"}  # also the code of an error that no server sent
_CREDENTIALS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
_REFUSALS = {"UNAUTHENTICATED": " there", "PERMISSION_DENIED": " that may do this"}  # 401 and 403
_HIDDEN = {"kind", "step"}  # of a metrics row
ROWS = 50  # of metrics at a time, since MLflow takes 1,000 values at most
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_PAGE = 1000  # entries that one search brings


@dataclass(frozen=True)
class Version:
    """A registered model version; `tags` lead back to what it was made from."""

    name: str
    number: str
    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/{self.number}"

    @property
    def page(self) -> str | None:
        """The version's page, where a server shows one."""
        return _page(f"models/{self.name}/versions/{self.number}")

    @property
    def run_page(self) -> str | None:
        """The page of the run that made it, where a server shows one."""
        return _page(f"runs/{self.run_id}")


def _page(path: str) -> str | None:
    base = without_credentials(tracking_uri())
    return f"{base}/#/{path}" if base.startswith("http") else None


@contextmanager
def connect() -> Iterator[MlflowClient]:
    """A client of the tracking server or database.

    :raises RegistryUnavailableError: it cannot be reached. :raises RegistryError: it refuses. Either message has the
        address and the answer.
    """
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow.set_tracking_uri(tracking_uri())
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # tells of each try
    disable_logging()  # each registration is told on standard error otherwise
    try:
        _make_database()
        yield MlflowClient()
    except MlflowException as error:
        shown = without_credentials(tracking_uri())
        reason = _reason(error).replace(tracking_uri(), shown)
        message = f"MLflow at {shown}: {reason}"
        if error.error_code in _REFUSALS:
            todo = f"set {' and '.join(_CREDENTIALS)} to those of an account{_REFUSALS[error.error_code]}"
            raise RegistryError(f"{_CREDENTIALS[0]}: {_shown_user()} is refused by MLflow at {shown}; {todo}") from error
        if error.error_code not in _AWAY:
            raise RegistryError(message) from error
        ours = tracking_uri() == mlflow_database()
        hint = "check that it can be written" if ours else "check that it runs, or unset MLFLOW_TRACKING_URI to use a database here"
        raise RegistryUnavailableError(f"{message}; {hint}") from error
    except SQLAlchemyError as error:  # a database that is damaged, or no database
        raise RegistryError(f"MLflow at {without_credentials(tracking_uri())}: {str(error).splitlines()[0]}") from error
    except ImportError as error:  # of a database's or a store's driver
        raise RegistryError(f"MLflow at {without_credentials(tracking_uri())}: {error}; install it into .venv") from error


def _shown_user() -> str:
    name = os.environ.get(_CREDENTIALS[0])
    return f"{name!r} with its password" if name else "a client without a name"


def _reason(error: MlflowException) -> str:
    """The line that says what is wrong, without the request's address and the database's advice."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if not line.startswith("(raised as a result")), lines[0]).partition(" with url: ")[0]


def _make_database() -> None:
    """Make MLflow's own database whole or not at all: a kill amid its migrations would leave one that nothing opens again."""
    database = artifacts() / "mlflow.db"
    if tracking_uri() != mlflow_database() or database.exists():
        return
    with Store(str(artifacts())).staging() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another process was faster
            database.hardlink_to(folder / "mlflow.db")


def experiment(client: MlflowClient) -> str:
    """The experiment's id. A local database keeps files under artifacts/mlflow, where `make up` serves them too."""
    if known := client.get_experiment_by_name(EXPERIMENT):
        _check_files(str(known.artifact_location))
        return str(known.experiment_id)
    local = None if tracking_uri().startswith("http") else mlflow_artifacts().as_uri()
    try:
        return str(client.create_experiment(EXPERIMENT, artifact_location=local))
    except MlflowException:  # another process was faster
        if known := client.get_experiment_by_name(EXPERIMENT):
            return str(known.experiment_id)
        raise


def _check_files(location: str) -> None:
    """See that the files of an experiment are where its server is: a folder of another machine would be made here instead.

    :raises RegistryError: the experiment was made for files of the server's own machine.
    """
    server = urlsplit(tracking_uri())
    near = not server.scheme.startswith("http") or server.hostname in _LOOPBACK
    if not near and urlsplit(location).scheme in ("", "file"):
        todo = "bring it up with --artifacts-destination on a new database (docs/servers.md)"
        raise RegistryError(
            f"MLflow at {without_credentials(tracking_uri())}: keeps files of {EXPERIMENT} in {location}, a folder of its own machine; "
            f"wanted a server that hands them out (mlflow-artifacts:); {todo}"
        )


def start_run(name: str, params: Mapping[str, Any], tags: Mapping[str, str], datasets: Sequence[tuple[str, str, str]] = ()) -> str:
    """Start the run of a run key, the tag `run_key`, or go on with the one that has not finished.

    :param datasets: (name, address, digest) of what it trains on.
    :returns: its id.
    """
    with connect() as client:
        where = f"tags.run_key = '{tags['run_key']}' and attributes.status != 'FINISHED'"
        if begun := client.search_runs([experiment(client)], where, max_results=1):
            run_id = str(begun[0].info.run_id)
            client.update_run(run_id, status="RUNNING")
        else:
            run_id = str(client.create_run(experiment(client), run_name=name, tags=dict(tags)).info.run_id)
        known = begun[0].data.params if begun else {}  # for one that was begun too, since a kill may have come between
        client.log_batch(run_id, params=[Param(key, str(value)) for key, value in params.items() if key not in known])
        client.log_inputs(run_id, [_dataset_input(*entry) for entry in datasets])
    return run_id


def _dataset_input(name: str, address: str, digest: str) -> DatasetInput:
    dataset = Dataset(name, digest, source_type="local", source=json.dumps({"uri": address}))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", name)])


def log_rows(run_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Log rows of `metrics.jsonl` by step, under `train/` and `held_out/`; `ROWS` at most."""
    now = int(time.time() * 1000)
    with connect() as client:
        metrics = [Metric(f"{row['kind']}/{name}", row[name], now, row["step"]) for row in rows for name in row if name not in _HIDDEN]
        client.log_batch(run_id, metrics=metrics)


def last_step(run_id: str, metric: str) -> int:
    """The last step that a run has of a metric; 0 where it has none."""
    with connect() as client:
        return max((entry.step for entry in client.get_metric_history(run_id, metric)), default=0)


def end_run(run_id: str, error: BaseException | None = None) -> None:
    """Mark a run as finished, as failed, or, where what ended it is no `Exception`, as killed."""
    status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
    with connect() as client:
        client.set_terminated(run_id, status)


def find_run(run_key: str) -> str | None:
    """The newest run of a run key."""
    with connect() as client:
        found = client.search_runs([experiment(client)], f"tags.run_key = '{run_key}'", max_results=1)
        return str(found[0].info.run_id) if found else None


def tags_in_use(since: datetime) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Tags of every registered version, and of every run that a version was made from, or that started or ended since then.

    A run that is said to run but began before may have been killed; what it needs, its lease protects.

    :raises RegistryError: the experiment is unknown here, so that nothing can be said of what is in use.
    """
    with connect() as client:
        known = client.get_experiment_by_name(EXPERIMENT)
        if known is None:
            where = without_credentials(tracking_uri())
            raise RegistryError(
                f"MLflow at {where}: has no experiment {EXPERIMENT}; set MLFLOW_TRACKING_URI to the one that was trained with"
            )
        versions = list(_all(client.search_model_versions))
        runs = list(_all(partial(client.search_runs, [known.experiment_id])))
    made_from, earliest = {version.run_id for version in versions}, since.timestamp() * 1000
    in_use = [
        run.data.tags for run in runs if run.info.run_id in made_from or max(run.info.start_time or 0, run.info.end_time or 0) > earliest
    ]
    return [version.tags for version in versions], in_use


def _all(search: Callable[..., Any]) -> Iterator[Any]:
    """What a search finds, page after page."""
    token = None
    while True:
        page = search(max_results=_PAGE, page_token=token)
        yield from page
        if not (token := page.token):
            return
