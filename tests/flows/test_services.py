"""Servers are started once and ended whole, and nothing else is ended."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows import processes, services

from .conftest import ROOT, act, environment, free_port, lives

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def service(folder: Path, code: str, port: int | None = None, ready: bool = True) -> services.Service:
    return services.Service("it", [sys.executable, "-c", code], {}, lambda: ready, folder, port, "IT_PORT")


def test_a_service_is_found_again_and_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "GRACE_SECONDS", 1.0)  # this child ends by force alone
    one = service(tmp_path, f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True).wait()")
    one.start()
    one.wait()
    found = services.running(one.state)
    assert found is not None
    while len(family := processes.descendants([found])) < 2:
        pass
    assert services.end(one.state)
    assert not any(lives(process.pid) for process in family)
    assert services.running(one.state) is None
    assert not services.end(one.state), "there is nothing left to end"


def test_an_id_that_another_process_has_by_now_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP)
    try:
        state = services.state_file(tmp_path, "it")
        state.parent.mkdir()
        state.write_text(json.dumps({"pid": stranger.pid, "started": "long ago", "port": None}), "utf-8")
        assert services.running(state) is None
        assert not services.end(state)
        assert stranger.poll() is None
        assert not state.exists()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_broken_state_is_no_running_service(tmp_path: Path, text: str) -> None:
    state = tmp_path / "it.json"
    state.write_text(text, "utf-8")
    assert services.running(state) is None


def test_a_service_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    one = service(tmp_path, "raise SystemExit('no such database')", ready=False)
    one.start()
    with pytest.raises(services.ServiceError, match=r"its last words: no such database; see .*it\.log"):
        one.wait()


def test_a_port_in_use_is_named_with_its_variable(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(services.ServiceError, match=rf"port {port} .*IT_PORT"):
            service(tmp_path, "", port).check_port()


def test_up_with_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = str(listener.getsockname()[1])
        settings = environment(BERT_STORE=str(tmp_path), PREFECT_PORT=taken, MLFLOW_PORT=str(free_port()))
        done = act("up", settings)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: prefect-server: port {taken} ")
    assert "PREFECT_PORT" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1"])
def test_a_port_that_is_none_is_an_error(tmp_path: Path, port: str) -> None:
    done = act("up", environment(BERT_STORE=str(tmp_path), MLFLOW_PORT=port))
    assert (done.returncode, done.stderr) == (1, f"error: MLFLOW_PORT: got {port!r}, wanted a port from 1 to 65535\n")


def test_up_elsewhere_than_in_the_project_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.stack", "up"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "no prefect.yaml here" in done.stderr
