"""When training that was handed over is given up, and what may not travel. With real servers: test_gpu_worker.py."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.logging import disable_run_logger
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows import handover
from pipeline.errors import SettingsError, TrainingError
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.run import RunSettings


@pytest.fixture
def run(small_built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunSettings]:
    """A run that is to train elsewhere, with a checkpoint at each step."""
    monkeypatch.setenv("BERT_STORE", small_built.store.root)
    with disable_run_logger():
        yield small_built.write_run(tmp_path / "work", steps=4, checkpoint_every_steps=1, keep_checkpoints=4, deployment="there/gpu")


def ends(monkeypatch: pytest.MonkeyPatch, *does: Callable[[], Any]) -> list[dict[str, Any]]:
    """Have each child that is submitted do something and end in the state that this gives. Returns the parameters, as they come."""
    submitted: list[dict[str, Any]] = []

    def run_once(deployment: str, parameters: dict[str, Any], attempt: int) -> FlowRun:
        submitted.append(parameters)
        assert (deployment, attempt) == ("there/gpu", len(submitted))
        return FlowRun(flow_id=uuid4(), name="child", state=does[attempt - 1]())

    monkeypatch.setattr(handover, "_run_once", run_once)
    return submitted


def crash() -> Any:
    return Crashed(message="its machine has died.")


def test_a_run_that_crashes_is_submitted_again_while_it_gets_on(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch, train: Callable[..., Any], small_built: Any
) -> None:
    checkpoints: list[str] = []

    def get_on() -> Any:
        """One more checkpoint."""
        (folder := Path(small_built.store.root) / "checkpoints" / run.key).mkdir(parents=True, exist_ok=True)
        (folder / checkpoints.pop(0)).symlink_to(hidden / f"step-{4 - len(checkpoints):09d}")
        return crash()

    def finish() -> Any:
        os.rename(hidden / "run", Path(small_built.store.root) / "run")
        return crash()

    hidden = Path(run.work).parent / "hidden"
    hidden.mkdir()
    checkpoints += [f"step-{step:09d}" for step in (1, 2, 3, 4)]
    assert train(run).returncode == 0
    for step in checkpoints:
        (hidden / step).mkdir()
        (hidden / step / "manifest.json").write_text('{"files": []}', "utf-8")
    os.rename(Path(small_built.store.root) / "run", hidden / "run")
    assert handover.find_trained(run) is None
    does = [crash, crash, get_on, crash, crash, get_on, get_on, get_on, crash, finish]
    submitted = ends(monkeypatch, *does)
    trained = handover.train_elsewhere(run, {"training.steps": 4}, {"run_key": run.key}, "bert-mine")
    assert len(submitted) == len(does), "one that crashed after its work has done it"
    assert (
        submitted[0]
        == submitted[-1]
        == {
            "plan": submitted[0]["plan"],
            "model_name": "bert-mine",
            "params": {"training.steps": "4"},
            "tags": {"run_key": run.key},
        }
    )
    assert trained.key == run.key
    assert handover.find_trained(run) is not None
    assert Checkpoints.of(run).newest() == 0, "what was left is cleared away"


def test_a_run_that_gets_nowhere_is_given_up(run: RunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = ends(monkeypatch, *[crash] * 10)
    with pytest.raises(TrainingError, match=r"'child': crashed 3 times in a row without a new checkpoint, at last: its machine has died"):
        handover.train_elsewhere(run, {}, {}, "bert-mine")
    assert len(submitted) == 3


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (Failed(message="Flow run encountered an exception: NonFiniteError: step 3: got NaN"), r"^training run 'child': step 3: got NaN$"),
        (Failed(message="Flow run encountered an exception: KeyError: 'x: y'"), "'child': 'x: y'$"),
        (Failed(message="Validation of flow parameters failed: plan"), "'child': Validation of flow parameters failed: plan$"),
        (Cancelled(), "'child': was cancelled; run this flow again"),
        (Completed(), "completed, but there is no run/.* give its worker the same BERT_STORE"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_other_ends_are_errors_that_say_why(run: RunSettings, state: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = ends(monkeypatch, lambda: state)
    with pytest.raises(TrainingError, match=message):
        handover.train_elsewhere(run, {}, {}, "bert-mine")
    assert len(submitted) == 1


def test_credentials_do_not_travel(run: RunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = ends(monkeypatch)
    with pytest.raises(SettingsError, match=r"corpus_source: got https://host/text with a user, a password or a query") as raised:
        handover.train_elsewhere(run, {"corpus_source": "https://me:secret@host/text?signature=secret"}, {}, "bert-mine")
    assert "secret" not in str(raised.value)
    assert not submitted


def test_a_server_that_is_away_is_asked_again_and_one_that_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_ASK_AGAIN_SECONDS", 0.0)
    answers: list[Any] = []

    def ask() -> str:
        status = answers.pop(0)
        if status is None:
            raise httpx.ConnectError("refused")
        httpx.Response(status, request=httpx.Request("GET", "http://127.0.0.1/api")).raise_for_status()
        return "answer"

    with disable_run_logger():
        answers += [None, 503, None, 200]
        assert handover._patiently(ask) == "answer"
        answers += [422, 200]
        with pytest.raises(httpx.HTTPStatusError):
            handover._patiently(ask)
