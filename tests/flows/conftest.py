"""Servers that the tests of the flows share."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(**changed: str) -> dict[str, str]:
    """This process's environment without settings of its own servers and stores."""
    ours = ("PREFECT_", "MLFLOW_", "BERT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | changed


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


def act(action: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the stack's command in the project's folder."""
    return subprocess.run(
        [sys.executable, "-m", "flows.stack", action], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prefect, MLflow, the deployments and a worker on free ports, with an artifacts folder of their own."""
    folder = tmp_path_factory.mktemp("stack")
    prefect, mlflow = free_port(), free_port()
    client = environment(
        BERT_STORE=str(folder),
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
        assert act("down", client).returncode == 0


def lives(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
