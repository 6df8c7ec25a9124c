"""A run that was cancelled: nothing of it goes on, and its state says so. What looks after such runs, and after those whose worker
died, which test_gpu_worker.py has."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flows import automations, processes

from .conftest import ROOT, Stack, until, write_corpus
from .test_end_to_end import SMALL

CANCEL_SECONDS = 60  # on a busy machine; on a quiet one EXPERIMENTS.md has it within 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, text: Callable[[int, int], str]) -> str:
    return str(write_corpus(tmp_path_factory.mktemp("corpora") / "stopped-birds", text, train=100, valid=20))


def test_a_cancel_ends_every_process_of_the_run(stack: Stack, corpus: str) -> None:
    run = stack.start(SMALL | {"corpus": corpus, "steps": 100_000})
    until(lambda: any("pairs/s" in line for line in stack.said(run)), seconds=120)
    family = stack.runs()
    assert len(family) == 2, "the flow run's process and its training"
    stack.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": False})  # as the page does
    until(lambda: not family & processes.running().keys(), seconds=CANCEL_SECONDS)
    until(lambda: not stack.runs(), seconds=60)  # Prefect looks for hooks in a process of its own, then says so
    until(lambda: stack.state(run)["type"] == "CANCELLED", seconds=60)
    assert not [line for line in stack.said(run) if "Traceback" in line]


def test_automations_are_brought_once_and_change_with_their_definition(stack: Stack) -> None:
    def known() -> list[dict[str, Any]]:
        return sorted((entry for entry in stack.ask("automations/filter", {}) if entry["name"].endswith("of pretrain-bert")), key=str)

    def seconds() -> list[int]:
        return sorted(entry["trigger"]["within"] for entry in known())

    def bring(**changed: str) -> str:
        """As `up` does, and whoever has other servers."""
        command = [sys.executable, "-m", "flows.automations"]
        return subprocess.run(command, cwd=ROOT, env=stack.environment | changed, capture_output=True, text=True, check=True).stdout

    bring(**{automations.STALE: "45"})
    assert seconds() == [45, automations.CANCEL_SECONDS]
    bring()
    assert seconds() == [automations.CANCEL_SECONDS, automations.STALE_SECONDS]
    before = known()
    assert bring().count("as it is here") == 2
    assert known() == before


def test_a_run_that_nobody_cancels_is_marked(stack: Stack, corpus: str) -> None:
    """As where it is cancelled just before a process takes it."""
    code = "from flows import automations; print(automations.bring(automations.endless_cancels(10)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=stack.environment, capture_output=True, text=True)
    assert done.stdout.strip() == "changed", done.stderr
    deployment = stack.ask("deployments/name/pretrain-bert/tiny")["id"]
    far = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    run = stack.ask(f"deployments/{deployment}/create_flow_run", {"parameters": SMALL | {"corpus": corpus}, "state": far})["id"]
    for state in ("PENDING", "RUNNING", "CANCELLING"):
        stack.ask(f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})
    until(lambda: stack.state(run)["type"] == "CANCELLED", seconds=60)
    subprocess.run([sys.executable, "-m", "flows.automations"], cwd=ROOT, env=stack.environment, check=True)


def test_automations_without_a_server_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert automations.main() == 1
    assert capsys.readouterr().err.startswith("error: PREFECT_API_URL: got none")


def test_a_silence_shorter_than_a_heartbeat_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    for text in ("30", "0", "-1", "soon"):
        monkeypatch.setenv(automations.STALE, text)
        assert automations.main() == 1
        assert capsys.readouterr().err.startswith(f"error: BERT_STALE_SECONDS: got {text!r}")
