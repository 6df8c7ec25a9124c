"""`python -m flows.stack up|down|status`: Prefect, MLflow, deployments and workers on this machine.

In: the kind of the stack from STACK, the artifacts folder. Out: servers on loopback, which `up` leaves running whole or
not at all. The decision that matters: `up` writes down what it runs, so that `down` and `status` need no setting.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

from . import services
from .places import QUIET, artifacts
from .servers import KINDS, NAMES, Stack, find_stack, home
from .services import Service, ServiceError

KIND = "STACK"
PROJECT = "prefect.yaml"


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flows.stack", description="Servers, deployments and workers on this machine.")
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
    stack = find_stack(_wanted_kind())
    new = [service for service in stack.services if services.running(service.state) is None]
    for service in new:
        service.check_port()
    _record().parent.mkdir(parents=True, exist_ok=True)
    record = {"kind": stack.kind, "services": [service.name for service in stack.services], "addresses": stack.addresses}
    _record().write_text(json.dumps(record), "utf-8")
    try:
        for group in stack.servers:
            _start(group, new)
            for service in group:
                service.wait()
        log = artifacts() / "logs" / "deploy.log"
        log.unlink(missing_ok=True)
        _tell_prefect(stack, log, "flows.automations")
        _start(stack.workers, new)
        print(f"deployments: brought to the server, as in {PROJECT}; this takes a moment", flush=True)
        _tell_prefect(stack, log, "prefect --no-prompt deploy --all")
        for service in stack.workers:
            service.wait()
    except BaseException:
        for service in reversed(new):
            services.end(service.state)
        raise
    _say_where(stack.addresses)
    _say_what_next(stack)
    return 0


def _start(group: tuple[Service, ...], new: list[Service]) -> None:
    for service in group:
        print(f"{service.name}: {'starts' if service in new else 'runs already'}", flush=True)
        if service in new:
            service.start()


def down() -> int:
    """End what `up` started."""
    known = _recorded()
    ended = []
    for name in reversed(NAMES):
        ran = services.end(services.state_file(artifacts(), name))
        ended.append(ran)
        if ran or name in known["services"]:
            print(f"{name}: {'ended' if ran else 'did not run'}", flush=True)
    _record().unlink(missing_ok=True)
    if any(ended):
        print("\nnext, in the shell of the export, which else looks for servers that are gone:")
        team = " PREFECT_API_AUTH_STRING MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD" if known["kind"] == "team" else ""
        print(f"  unset PREFECT_API_URL MLFLOW_TRACKING_URI{team}")
    return 0


def status() -> int:
    """Say what runs. Returns 0 where all of it does."""
    known = _recorded()
    alive = {name: services.running(services.state_file(artifacts(), name)) is not None for name in known["services"]}
    for name, runs in alive.items():
        print(f"{name}: {'runs' if runs else 'does not run'}")
    if all(alive.values()) and known["addresses"]:
        _say_where(known["addresses"])
    return 0 if all(alive.values()) else 3


def _say_where(addresses: Mapping[str, str]) -> None:
    print(f"Prefect  {addresses['PREFECT_API_URL'].removesuffix('/api')}")
    print(f"MLflow   {addresses['MLFLOW_TRACKING_URI']}")
    print(f"logs     {artifacts() / 'logs'}")


def _say_what_next(stack: Stack) -> None:
    run = ".venv/bin/prefect deployment run pretrain-bert/tiny --watch"
    print("\nnext, in this shell:")
    if stack.file:
        print(f"  source {stack.file}   # addresses and passwords; both pages ask for them")
    else:
        print(f"  export {' '.join(f'{name}={value}' for name, value in stack.client.items())}")
    print(f"  {run}                                  # WikiText-2")
    print(f"  {run} --param corpus=/path/to/folder   # your own texts")


def _wanted_kind() -> str:
    """The kind to bring up.

    :raises ServiceError: there is no such kind, or another one runs here.
    """
    kind = os.environ.get(KIND) or KINDS[0]
    if kind not in KINDS:
        raise ServiceError(f"{KIND}: got {kind!r}, wanted {' or '.join(KINDS)}")
    runs = _recorded()["kind"] if any(services.running(services.state_file(artifacts(), name)) for name in NAMES) else kind
    if runs != kind:
        raise ServiceError(f"{KIND}: got {kind}, while the stack `{runs}` runs here; make down ends it, make up {KIND}={runs} keeps it")
    return kind


def _record() -> Path:
    return artifacts() / "servers" / "stack"


def _recorded() -> dict[str, Any]:
    """The kind, services and addresses of the last `up`; the services that a laptop always has, where there was none."""
    try:
        known: dict[str, Any] = json.loads(_record().read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {"kind": KINDS[0], "services": ["mlflow-server", "prefect-server", "worker"], "addresses": {}}
    return known


def _tell_prefect(stack: Stack, log: Path, *commands: str) -> None:
    """Bring the server's pools, automations and deployments into line with what stands here.

    :raises ServiceError: Prefect refuses them.
    """
    environment = {name: value for name, value in os.environ.items() if name != "BERT_HOME"}  # the worker fills it in
    environment |= QUIET | home() | dict(stack.client)
    with log.open("a", encoding="utf-8") as said:
        for words in commands:
            command = [sys.executable, "-m", *words.split()]
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            if done.returncode:
                last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
                raise ServiceError(f"python -m {words}: ended with exit status {done.returncode}; its last words: {last}; see {log}")


if __name__ == "__main__":
    sys.exit(main())
