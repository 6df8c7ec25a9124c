"""Servers that the tests of the flows share."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows import processes, services

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(**changed: str) -> dict[str, str]:
    """This process's environment without settings of its own servers and stores."""
    ours = ("PREFECT_", "MLFLOW_", "BERT_", "POSTGRES_", "STACK")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | changed


# Runs command lines in one process, since each start of Prefect and MLflow takes seconds.
_RUN_ALL = """
import json, shlex, sys
from flows import cli
for line in json.load(sys.stdin):
    print("$", line, flush=True)
    print("status", cli.main(shlex.split(line)), flush=True)
"""


def run_all(lines: Sequence[str], folder: Path, settings: dict[str, str]) -> tuple[dict[str, str], str]:
    """Run lines of `pretrain-bert`, all of which are to succeed. Returns what each printed, and all of standard error."""
    command = [sys.executable, "-c", _RUN_ALL]
    done = subprocess.run(command, input=json.dumps(lines), cwd=folder, env=settings, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^\$ (.*)\n", done.stdout, flags=re.MULTILINE)
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert {text.splitlines()[-1] for text in said.values()} == {"status 0"}, done.stdout + done.stderr
    return said, done.stderr


def write_corpus(folder: Path, text: Callable[[int, int], str], *, train: int, valid: int) -> Path:
    """Make a folder in WikiText's form, of so many paragraphs, with the words of the sample sentences among others."""
    folder.mkdir()
    for split, paragraphs in (("train", train), ("valid", valid)):
        (folder / f"wiki.{split}.tokens").write_text(text(paragraphs, len(split)), "utf-8")
    return folder


@dataclass(frozen=True)
class Stack:
    """Running servers: `environment` is that of a client."""

    folder: Path
    prefect: str
    mlflow: str
    environment: dict[str, str]

    def act(self, action: str) -> subprocess.CompletedProcess[str]:
        """`python -m flows.stack ACTION`."""
        return act(action, self.environment)

    def ask(self, what: str, body: dict[str, Any] | None = None, method: str = "") -> Any:
        """Ask Prefect's REST API, with a body by POST. Its client asks again where a busy database has the server answer 503."""
        method = method or ("GET" if body is None else "POST")
        answer = SyncPrefectClient(self.prefect).request(method, f"/{what}", json=body)
        return json.loads(answer.content or b"null")

    def start(self, parameters: dict[str, Any]) -> str:
        """Run the deployment without waiting for it. Returns the id of the flow run."""
        deployment = self.ask("deployments/name/pretrain-bert/tiny")["id"]
        return str(self.ask(f"deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])

    def state(self, run: str) -> dict[str, Any]:
        """A flow run's state."""
        return dict(self.ask(f"flow_runs/{run}")["state"])

    def said(self, run: str) -> list[str]:
        """The lines of a flow run's log."""
        return [entry["message"] for entry in self.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200})]

    def runs(self) -> set[processes.Process]:
        """What the worker has started that lives."""
        worker = services.running(services.state_file(self.folder, "worker"))
        return processes.descendants([worker]) - {worker} if worker else set()


def act(action: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the stack's command in the project's folder."""
    return subprocess.run(
        [sys.executable, "-m", "flows.stack", action], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prefect, MLflow, the deployments and a worker on free ports, with an artifacts folder of their own."""
    folder = tmp_path_factory.mktemp("stack")
    prefect, mlflow = free_port(), free_port()
    client = environment(
        BERT_STORE=str(folder),
        BERT_WORKERS="cpu",  # also where there is a GPU
        PREFECT_PORT=str(prefect),
        MLFLOW_PORT=str(mlflow),
        PREFECT_API_URL=f"http://127.0.0.1:{prefect}/api",
        PREFECT_HOME=str(folder / "client"),
        MLFLOW_TRACKING_URI=f"http://127.0.0.1:{mlflow}",
    )
    done = act("up", client)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield Stack(folder, client["PREFECT_API_URL"], client["MLFLOW_TRACKING_URI"], client)
    finally:
        done = act("down", client)
        assert done.returncode == 0
        assert done.stdout.endswith("  unset PREFECT_API_URL MLFLOW_TRACKING_URI\n")


def lives(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds: Callable[[], Any], what: str = "", seconds: float = 300) -> Any:
    """Waits until something on a server is so, and gives it. Slower than `eventually`, for what takes long."""
    begun = time.monotonic()
    while not (found := holds()):
        assert time.monotonic() - begun < seconds, f"did not come about: {what}"
        time.sleep(0.1)
    return found


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until something holds."""

    def wait(holds: Callable[[], object], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "did not come about"
            time.sleep(0.05)

    return wait


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A folder where children note their ids as file names; what still lives at the end is killed."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for entry in folder.iterdir():
        if lives(int(entry.name)):
            os.kill(int(entry.name), signal.SIGKILL)
