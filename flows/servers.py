"""What a stack consists of: `laptop`, for one person on one machine, or `team`, with PostgreSQL and passwords.

In: the environment's ports, workers and store. Out: services in the order in which they start, and the variables that a
client of them needs. The decision that matters: both kinds are the same servers, pools and deployments, so that what works
on a laptop works for a team; they differ in where the servers keep their data and in whom they let in.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .credentials import TEAM, Credentials, keep_credentials
from .names import POOLS
from .places import QUIET, STORE, artifacts, mlflow_artifacts, mlflow_database, store
from .postgres import Postgres, find_postgres
from .services import HOST, PREFECT_AUTH, Service, ServiceError, answers, ask, nothing, port_of, running, state_file

KINDS = ("laptop", "team")
WORKERS = "BERT_WORKERS"
NAMES = ("postgres", "mlflow-server", "prefect-server", "worker", "worker-gpu")
"""Every service of any kind, in the order in which they start."""
_PORTS = {"postgres": ("POSTGRES_PORT", 5433), "prefect-server": ("PREFECT_PORT", 4200), "mlflow-server": ("MLFLOW_PORT", 5000)}
_EXTRA = {"psycopg2": "psycopg2-binary", "flask_wtf": "Flask-WTF"}  # what the team's MLflow server imports
_TOOL = [sys.executable, "-m"]
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA's driver, AMD's, that of Windows' Linux
# READ, MLflow's own default, would let nobody but its maker log to the experiment that all runs are in; EDIT cannot delete.
_PERMISSION = "EDIT"
# Seconds for which a password that was right is not hashed again: by itself, MLflow spends more on that than on the request.
_REMEMBERED = 60


@dataclass(frozen=True)
class Stack:
    """What runs together.

    :param servers: groups that start one after the other, each once the one before works. :param workers: start last.
    :param client: variables of a client's environment. :param file: one that holds them, for a shell to source.
    """

    kind: str
    servers: tuple[tuple[Service, ...], ...]
    workers: tuple[Service, ...]
    client: Mapping[str, str]
    file: Path | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """Where the servers are: what of `client` is no secret."""
        return {name: self.client[name] for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")}

    @property
    def services(self) -> list[Service]:
        return [service for group in (*self.servers, self.workers) for service in group]


def find_stack(kind: str) -> Stack:
    """The stack of a kind on this machine, by the environment; nothing is started.

    :raises ServiceError: a setting is wrong, or what the kind needs is not installed.
    """
    return _team() if kind == "team" else _laptop()


def port(name: str) -> int:
    """The port of a running server, else the one to start it on.

    :raises ServiceError: the environment's is not a port.
    """
    state = state_file(artifacts(), name)
    if running(state) and (known := port_of(state)):
        return known
    variable, default = _PORTS[name]
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise ServiceError(f"{variable}: got {text!r}, wanted a port from 1 to 65535")
    return int(text)


def _addresses() -> dict[str, str]:
    return {
        "PREFECT_API_URL": f"http://{HOST}:{port('prefect-server')}/api",
        "MLFLOW_TRACKING_URI": f"http://{HOST}:{port('mlflow-server')}",
    }


def _laptop() -> Stack:
    """Both servers keep their data in SQLite and let in whoever is on this machine."""
    client = _addresses()
    # The default root is a plain path on this machine, as `pretrain-bert run` writes it: either reads the other's.
    files = ["--backend-store-uri", mlflow_database(), "--default-artifact-root", str(mlflow_artifacts())]
    return Stack("laptop", ((_mlflow(files, {}), _prefect({})),), _workers(client), client)


def _team() -> Stack:
    """Both servers keep their data in PostgreSQL and ask for a password; MLflow hands out its files itself."""
    if missing := [package for module, package in _EXTRA.items() if importlib.util.find_spec(module) is None]:
        raise ServiceError(f"STACK=team: {', '.join(missing)} not installed; make .venv/installed-team")
    servers = artifacts() / "servers"
    data = Path(os.environ.get("POSTGRES_DATA") or servers / "postgres").absolute()
    find_postgres(data, 0, "")  # before any file is made
    credentials = keep_credentials(servers, _addresses(), data=data)
    postgres = find_postgres(data, port("postgres"), credentials.servers["POSTGRES_PASSWORD"])
    service = Service(
        "postgres",
        postgres.command,
        {},
        postgres.accepts,
        artifacts(),
        port=postgres.port,
        variable="POSTGRES_PORT",
        prepare=postgres.initialise,
        user=postgres.user,
        stop=signal.SIGINT,  # does not wait for clients to leave; SIGTERM would
    )
    both = (_team_mlflow(postgres, credentials), _team_prefect(postgres, credentials))
    return Stack("team", ((service,), both), _workers(credentials.team), credentials.team, servers / TEAM)


def _team_mlflow(postgres: Postgres, credentials: Credentials) -> Service:
    # Its drivers read the password from PGPASSWORD, so that no address and no file holds it.
    database, password = f"postgresql+psycopg2://mlflow@{HOST}:{postgres.port}/mlflow", credentials.servers["MLFLOW_DATABASE_PASSWORD"]
    configuration = artifacts() / "servers" / "mlflow-auth.ini"

    def prepare() -> None:
        postgres.make_database("mlflow", password)
        lines = ["[mlflow]", f"default_permission = {_PERMISSION}", f"database_uri = {database}", f"auth_cache_ttl_seconds = {_REMEMBERED}"]
        configuration.write_text("\n".join(lines) + "\n", "utf-8")

    environment = {
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": os.environ.get("MLFLOW_ARTIFACTS_DESTINATION") or str(artifacts() / "servers" / "mlflow"),
        "MLFLOW_AUTH_CONFIG_PATH": str(configuration),
        "MLFLOW_AUTH_ADMIN_USERNAME": credentials.team["MLFLOW_TRACKING_USERNAME"],
        "MLFLOW_AUTH_ADMIN_PASSWORD": credentials.team["MLFLOW_TRACKING_PASSWORD"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": credentials.servers["MLFLOW_FLASK_SERVER_SECRET_KEY"],
        "PGPASSWORD": password,
    }
    return _mlflow(["--app-name", "basic-auth"], environment, prepare)


def _team_prefect(postgres: Postgres, credentials: Credentials) -> Service:
    password = credentials.servers["PREFECT_DATABASE_PASSWORD"]
    environment = {
        "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://prefect@{HOST}:{postgres.port}/prefect",
        "PREFECT_SERVER_API_AUTH_STRING": credentials.team[PREFECT_AUTH],
        "PGPASSWORD": password,
    }
    return _prefect(environment, lambda: postgres.make_database("prefect", password))


def _mlflow(options: list[str], environment: Mapping[str, str], prepare: Callable[[], None] = nothing) -> Service:
    number = port("mlflow-server")
    return Service(
        "mlflow-server",
        [*_TOOL, "mlflow", "server", "--host", HOST, "--port", str(number), "--workers", "1", *options],
        QUIET | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | dict(environment),
        lambda: answers(f"http://{HOST}:{number}/health"),
        artifacts(),
        port=number,
        variable="MLFLOW_PORT",
        prepare=prepare,
    )


def _prefect(environment: Mapping[str, str], prepare: Callable[[], None] = nothing) -> Service:
    number = port("prefect-server")
    api = f"http://{HOST}:{number}/api"
    return Service(
        "prefect-server",
        [*_TOOL, "prefect", "server", "start", "--host", HOST, "--port", str(number)],
        QUIET | home() | {"PREFECT_API_URL": api} | dict(environment),
        lambda: answers(f"{api}/health"),
        artifacts(),
        port=number,
        variable="PREFECT_PORT",
        prepare=prepare,
    )


def home() -> dict[str, str]:
    """Prefect's own folder for what the stack runs, apart from that of `pretrain-bert run`."""
    return {"PREFECT_HOME": str(artifacts() / "servers" / "prefect")}


def _workers(client: Mapping[str, str]) -> tuple[Service, ...]:
    work = {STORE: store().root, "BERT_HOME": str(Path.cwd()), "PREFECT_WORKER_QUERY_SECONDS": "2"}
    return tuple(_worker(pool, QUIET | home() | dict(client) | work) for pool in _pools())


def _worker(pool: str, environment: dict[str, str]) -> Service:
    limit = ["--limit", "1"] if pool == "gpu" else []  # a training takes all GPUs of its machine
    address, known = f"{environment['PREFECT_API_URL']}/work_pools/{pool}", environment.get(PREFECT_AUTH, "")
    return Service(
        "worker" if pool == "cpu" else f"worker-{pool}",
        [*_TOOL, "prefect", "worker", "start", "--pool", pool, "--type", "process", *limit],
        environment,
        lambda: json.loads(ask(address, known) or b'{"status": "NOT_READY"}')["status"] != "NOT_READY",
        artifacts(),
    )


def _pools() -> list[str]:
    """The pools that get a worker: those of BERT_WORKERS, else `cpu`, and `gpu` where torch sees one.

    :raises ServiceError: the environment names another pool.
    """
    named = os.environ.get(WORKERS, "").split()
    if unknown := [name for name in named if name not in POOLS]:
        raise ServiceError(f"{WORKERS}: got {' '.join(unknown)!r}, wanted names of pools: {', '.join(POOLS)}")
    return [name for name in POOLS if name in named] or (["cpu", "gpu"] if _sees_gpu() else ["cpu"])


def _sees_gpu() -> bool:
    """Torch is asked in a process of its own, since it takes seconds to import, and only where a driver is there."""
    if not any(Path(device).exists() for device in _DEVICES):
        return False
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() not in ("", "0")
