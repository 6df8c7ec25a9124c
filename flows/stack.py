"""`python -m flows.stack up|down|status`: Prefect, MLflow, deployments and a worker on this machine.

In: ports from PREFECT_PORT and MLFLOW_PORT, the artifacts folder. Out: servers on loopback that share MLflow's database
with `pretrain-bert run`. The decision that matters: `up` leaves all of it running or nothing that it started.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from pipeline.errors import PipelineError

from . import services
from .places import QUIET, STORE, artifacts, mlflow_artifacts, mlflow_database, store
from .services import HOST, Service, ServiceError

POOL = "cpu"
PROJECT = "prefect.yaml"
_NAMES = ("mlflow-server", "prefect-server", "worker")  # in the order in which they start
_PORTS = {"prefect-server": ("PREFECT_PORT", 4200), "mlflow-server": ("MLFLOW_PORT", 5000)}


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flows.stack", description="Servers, deployments and a worker on this machine.")
    parser.add_argument("action", choices=["up", "down", "status"])
    action = parser.parse_args().action
    try:
        return {"up": up, "down": down, "status": status}[action]()
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def up() -> int:
    """Start what does not run, wait until it works, and deploy.

    :raises ServiceError: something cannot be started; what this call started is ended again.
    """
    if not Path(PROJECT).is_file():
        raise ServiceError(f"{Path.cwd()}: no {PROJECT} here; wanted the project's folder as the working folder")
    prefect, mlflow = (_port(name) for name in _PORTS)
    known = _services(prefect, mlflow)
    new = [service for service in known if services.running(service.state) is None]
    for service in new:
        service.check_port()
    try:
        for service in known:
            print(f"{service.name}: {'starts' if service in new else 'runs already'}", flush=True)
            if service in new:
                service.start()
            if service.name == "prefect-server":  # the two servers start at the same time; the worker needs both
                for server in known[:2]:
                    server.wait()
        known[-1].wait()
        deployed = _deploy(_prefect_api(prefect))
    except BaseException:
        for service in reversed(new):
            services.end(service.state)
        raise
    print(deployed)
    _say_where(prefect, mlflow)
    run = ".venv/bin/prefect deployment run pretrain-bert/tiny --watch"
    print("\nnext, in this shell:")
    print(f"  export PREFECT_API_URL={_prefect_api(prefect)} MLFLOW_TRACKING_URI=http://{HOST}:{mlflow}")
    print(f"  {run}                                  # WikiText-2")
    print(f"  {run} --param corpus=/path/to/folder   # your own texts")
    return 0


def down() -> int:
    """End what `up` started."""
    ended = []
    for name in reversed(_NAMES):
        ended.append(services.end(_state(name)))
        print(f"{name}: {'ended' if ended[-1] else 'did not run'}", flush=True)
    if any(ended):
        print("\nnext, in the shell of the export, which else looks for servers that are gone:")
        print("  unset PREFECT_API_URL MLFLOW_TRACKING_URI")
    return 0


def status() -> int:
    """Say what runs. Returns 0 where all of it does."""
    alive = {name: services.running(_state(name)) is not None for name in _NAMES}
    for name, runs in alive.items():
        print(f"{name}: {'runs' if runs else 'does not run'}")
    if all(alive.values()):
        _say_where(_port("prefect-server"), _port("mlflow-server"))
    return 0 if all(alive.values()) else 3


def _say_where(prefect: int, mlflow: int) -> None:
    print(f"Prefect  http://{HOST}:{prefect}")
    print(f"MLflow   http://{HOST}:{mlflow}")
    print(f"logs     {artifacts() / 'logs'}")


def _state(name: str) -> Path:
    return services.state_file(artifacts(), name)


def _port(name: str) -> int:
    """The port of a running server, else the one to start it on.

    :raises ServiceError: the environment's is not a port.
    """
    if services.running(_state(name)) and (known := services.port_of(_state(name))):
        return known
    variable, default = _PORTS[name]
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise ServiceError(f"{variable}: got {text!r}, wanted a port from 1 to 65535")
    return int(text)


def _prefect_api(port: int) -> str:
    return f"http://{HOST}:{port}/api"


def _services(prefect: int, mlflow: int) -> list[Service]:
    """The servers and the worker, in the order in which they start."""
    api, tracking = _prefect_api(prefect), f"http://{HOST}:{mlflow}"
    folder = artifacts()
    home = {"PREFECT_HOME": str(artifacts() / "servers" / "prefect"), "PREFECT_API_URL": api}
    work = {
        STORE: store().root,
        "BERT_HOME": str(Path.cwd()),
        "MLFLOW_TRACKING_URI": tracking,
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    tool = [sys.executable, "-m"]
    # The default root is a plain path on this machine, as `pretrain-bert run` writes it: either reads the other's.
    files = ["--backend-store-uri", mlflow_database(), "--default-artifact-root", str(mlflow_artifacts())]
    return [
        Service(
            "mlflow-server",
            [*tool, "mlflow", "server", "--host", HOST, "--port", str(mlflow), "--workers", "1", *files],
            QUIET | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            lambda: services.answers(f"{tracking}/health"),
            folder,
            port=mlflow,
            variable="MLFLOW_PORT",
        ),
        Service(
            "prefect-server",
            [*tool, "prefect", "server", "start", "--host", HOST, "--port", str(prefect)],
            QUIET | home,
            lambda: services.answers(f"{api}/health"),
            folder,
            port=prefect,
            variable="PREFECT_PORT",
        ),
        Service(
            "worker",
            [*tool, "prefect", "worker", "start", "--pool", POOL, "--type", "process"],  # makes the pool where there is none
            QUIET | home | work,
            lambda: services.answers(f"{api}/work_pools/{POOL}"),
            folder,
        ),
    ]


def _deploy(api: str) -> str:
    """Bring the deployments on the server into line with `prefect.yaml`, and its automations with `automations.py`.

    :raises ServiceError: Prefect refuses them.
    """
    environment = {name: value for name, value in os.environ.items() if name != "BERT_HOME"}  # the worker fills it in
    environment |= QUIET | {"PREFECT_API_URL": api, "PREFECT_HOME": str(artifacts() / "servers" / "prefect")}
    log = artifacts() / "logs" / "deploy.log"
    with log.open("w", encoding="utf-8") as said:
        for words in ("prefect work-pool create gpu --type process --overwrite", "prefect --no-prompt deploy --all", "flows.automations"):
            command = [sys.executable, "-m", *words.split()]
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            if done.returncode:
                raise ServiceError(f"python -m {words}: ended with exit status {done.returncode}; see {log}")
    return f"deployments: as in {PROJECT}"


if __name__ == "__main__":
    sys.exit(main())
