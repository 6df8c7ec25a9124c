"""Where a run's things lie, and the environment in which Prefect and MLflow call nobody.

In: the environment variables BERT_STORE, a folder or an fsspec address, and MLFLOW_TRACKING_URI; without them
`artifacts` in the working folder. The decision that matters: what only this machine needs (logs, work, databases)
stays in a local folder, whatever the store.
"""

import os
from pathlib import Path

from pipeline.addresses import without_credentials
from pipeline.storage import Store
from pipeline.stores import check_shared

ARTIFACTS = "artifacts"
EXPERIMENT = "pretrain-bert"
STORE = "BERT_STORE"
CORPUS = "BERT_CORPUS"
"""A corpus's address with its credentials; parameters, which are recorded, hold it without them."""

# Set before Prefect and MLflow are imported, which read it then; what the user has set stands.
QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # each step of a database migration is INFO
}


def full_address(shown: str | None) -> str | None:
    """The address to fetch: BERT_CORPUS, where that is the given one with credentials, else the given one."""
    known = os.environ.get(CORPUS)
    return known if known and without_credentials(known) == shown else shown


def store() -> Store:
    """The store of stage outputs.

    :raises SettingsError: it cannot hold outputs that other processes see, or its address holds credentials.
    """
    root = os.environ.get(STORE) or ARTIFACTS
    check_shared(STORE, root)
    return Store(root)


def artifacts() -> Path:
    """The local folder, absolute: the store itself where that is local, else `artifacts`."""
    found = store()
    return Path(found.root) if found.local_root else Path(ARTIFACTS).absolute()


def mlflow_artifacts() -> Path:
    """Files of MLflow's runs and models."""
    return artifacts() / "mlflow"


def mlflow_database() -> str:
    """MLflow's own database, as an address."""
    return f"sqlite:///{artifacts() / 'mlflow.db'}"


def tracking_uri() -> str:
    """The MLflow server that the environment names, else the database in the artifacts folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or mlflow_database()
