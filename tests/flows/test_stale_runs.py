"""A run that was cancelled, and one whose worker died: nothing of it goes on, its state says so, and it can be run again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows import automations, processes, services

from .conftest import ROOT, Stack, write_corpus
from .test_end_to_end import SMALL, run_deployment

CANCEL_SECONDS = 10
STALE_SECONDS = 45  # a heartbeat comes each 30 seconds, which is the least that Prefect takes
LONG = SMALL | {"steps": 40, "training_settings": {**SMALL["training_settings"], "checkpoint_every_steps": 2}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, text: Callable[[int, int], str]) -> str:
    return str(write_corpus(tmp_path_factory.mktemp("corpora") / "stopped-birds", text, train=100, valid=20))


def until(holds: Callable[[], object], seconds: float) -> float:
    """Waits until something holds. Returns the seconds that it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds, "did not come about"
        time.sleep(0.1)
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def abandoned(stack: Stack, corpus: str) -> Iterator[str]:
    """A flow run whose worker was killed with all that it had started, while it trained; another worker runs by now."""
    changed = Stack(stack.folder, stack.prefect, stack.mlflow, stack.environment | {automations.STALE: str(STALE_SECONDS)})
    assert changed.act("up").returncode == 0
    run = stack.start(LONG | {"corpus": corpus})
    until(lambda: list(stack.folder.glob("checkpoints/*/*/manifest.json")), 120)
    worker = services.running(services.state_file(stack.folder, "worker"))
    assert worker is not None
    for process in processes.descendants([worker]):
        os.kill(process.pid, signal.SIGKILL)
    assert stack.state(run)["type"] == "RUNNING", "nobody is left to say otherwise"
    restarted = changed.act("up")
    assert restarted.returncode == 0, restarted.stderr
    assert "worker: starts" in restarted.stdout
    yield run
    assert stack.act("up").returncode == 0


def test_a_cancel_ends_every_process_of_the_run(stack: Stack, abandoned: str, corpus: str) -> None:
    run = stack.start(SMALL | {"corpus": corpus, "steps": 100_000})
    until(lambda: any("pairs/s" in line for line in stack.said(run)), 120)
    family = stack.runs()
    assert len(family) == 2, "the flow run's process and its training"
    stack.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": False})  # as the page does
    until(lambda: not family & processes.running().keys(), CANCEL_SECONDS)
    until(lambda: not stack.runs(), 60)  # Prefect looks for hooks in a process of its own, then says so
    until(lambda: stack.state(run)["type"] == "CANCELLED", 60)
    assert not [line for line in stack.said(run) if "Traceback" in line]


def test_a_run_whose_worker_died_is_marked_and_goes_on_when_run_again(stack: Stack, abandoned: str, corpus: str) -> None:
    until(lambda: stack.state(abandoned)["type"] != "RUNNING", 2 * STALE_SECONDS + 15)
    state = stack.state(abandoned)
    assert state["type"] == "CRASHED"
    assert "heartbeats stopped" in state["message"]
    assert "goes on from the last checkpoint" in state["message"]
    done = run_deployment(stack, LONG | {"corpus": corpus})
    assert done.returncode == 0, done.stdout + done.stderr
    again = stack.ask("flow_runs/filter", {"flows": {"name": {"any_": ["pretrain-bert"]}}, "sort": "START_TIME_DESC"})[0]["id"]
    assert again != abandoned
    assert any("going on from the checkpoint" in line for line in stack.said(again)), stack.said(again)
    steps = [entry.step for entry in MlflowClient(stack.mlflow).get_metric_history(mlflow_run(stack, corpus), "train/mlm_loss")]
    assert steps == list(range(1, LONG["steps"] + 1)), "the curve goes on, each step once"


def mlflow_run(stack: Stack, corpus: str) -> str:
    """The one MLflow run that ended as it should on a corpus; what was killed is the same run."""
    client = MlflowClient(stack.mlflow)
    (run,) = client.search_runs(["1"], f"params.corpus_source = '{corpus}' and attributes.status = 'FINISHED'")
    return str(run.info.run_id)


def test_automations_are_brought_once_and_change_with_their_definition(stack: Stack, abandoned: str) -> None:
    def known() -> list[dict[str, Any]]:
        return sorted((entry for entry in stack.ask("automations/filter", {}) if entry["name"].endswith("of pretrain-bert")), key=str)

    assert stack.act("up").returncode == 0  # the fixture's had another number of seconds
    before = known()
    assert sorted(entry["trigger"]["within"] for entry in before) == [automations.CANCEL_SECONDS, automations.STALE_SECONDS]
    assert stack.act("up").returncode == 0
    assert known() == before
    log = Path(stack.folder / "logs" / "deploy.log").read_text("utf-8")
    assert log.count("as it is here") == 2


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
    until(lambda: stack.state(run)["type"] == "CANCELLED", 60)
    assert stack.act("up").returncode == 0


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
