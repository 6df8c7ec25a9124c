"""The whole way through real servers: a deployment run by name, then its encoder loaded elsewhere."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from .conftest import ROOT, Stack, environment, write_corpus

SMALL = {
    "steps": 3,
    "seed": 1,
    "vocabulary_settings": {"min_count": 1},
    "shard_settings": {"buckets": 2},
    "model_settings": {"intermediate_size": 32, "max_position_embeddings": 64},
    "training_settings": {"batch_size": 16, "learning_rate": 1e-3, "device": "cpu"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, text: Callable[[int, int], str]) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpora") / "river-birds", text, train=100, valid=20)


def run_deployment(stack: Stack, parameters: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """`prefect deployment run pretrain-bert/tiny --watch`, as a user types it."""
    command = [sys.executable, "-m", "prefect", "deployment", "run", "pretrain-bert/tiny", "--watch", "--params", json.dumps(parameters)]
    return subprocess.run(command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def finished(stack: Stack, corpus: Path) -> Stack:
    """The stack after one run of the deployment."""
    done = run_deployment(stack, SMALL | {"corpus": str(corpus)})
    log = (stack.folder / "logs" / "worker.log").read_text("utf-8")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
    assert "Traceback" not in log
    return stack


def test_a_second_up_is_harmless(stack: Stack) -> None:
    states = {path: path.read_text("utf-8") for path in stack.folder.glob("servers/*.json")}
    assert len(states) == 3
    done = stack.act("up")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs already") == 3
    assert {path: path.read_text("utf-8") for path in stack.folder.glob("servers/*.json")} == states
    assert stack.act("status").returncode == 0


def test_the_encoder_is_registered_and_loads_elsewhere(finished: Stack, tmp_path: Path) -> None:
    code = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import json, mlflow
model = mlflow.pyfunc.load_model("models:/bert-tiny-river-birds@champion")
found = model.predict([{"text": "a crane is flying"}, {"text": "a crane driver came", "text_pair": "he just left"}])
print(json.dumps([[len(entry["tokens"]), len(entry["vectors"]), len(entry["vectors"][0])] for entry in found]))
assert "flows" not in sys.modules and "pipeline" not in sys.modules
"""
    settings = environment(MLFLOW_TRACKING_URI=finished.mlflow, MLFLOW_DISABLE_TELEMETRY="true")
    settings.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[6, 6, 128], [10, 10, 128]]


def test_mlflow_has_settings_metrics_data_and_pictures(finished: Stack) -> None:
    client = MlflowClient(finished.mlflow)
    version = client.get_model_version_by_alias("bert-tiny-river-birds", "champion")
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["training.steps"] == "3"
    assert run.data.params["shards.seed"] == run.data.params["training.seed"] == "1"
    assert run.data.params["model.hidden_size"] == "128"
    assert [entry.step for entry in client.get_metric_history(run.info.run_id, "train/mlm_loss")] == [1, 2, 3]
    assert client.get_metric_history(run.info.run_id, "held_out/mlm_accuracy")
    assert len(run.inputs.dataset_inputs) == 2
    assert {"loss_curve.png", "sample_encodings.json"} <= {file.path for file in client.list_artifacts(run.info.run_id)}
    assert run.data.tags["corpus_key"]
    assert version.tags["encoder_key"]
    assert "(1, 6, 128)" in version.description
    assert "(1, 10, 128)" in version.description


def test_prefect_shows_what_was_built(finished: Stack, corpus: Path) -> None:
    run, *_ = (run for run in finished.ask("flow_runs/filter", {}) if run["parameters"].get("corpus") == str(corpus))
    of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    shown = {artifact["key"]: artifact for artifact in finished.ask("artifacts/filter", of_run)}
    assert set(shown) >= {"training-progress", "what-was-built", "loss-curve", "sample-encodings", "model-version"}
    assert set(shown) >= {"shards-train", "shards-valid"}
    assert float(shown["training-progress"]["data"]) == 100.0
    assert "data:image/png;base64," in shown["loss-curve"]["data"]
    assert f"{finished.mlflow}/#/models/bert-tiny-river-birds/versions/1" in shown["model-version"]["data"]
    lines = [entry["message"] for entry in finished.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200})]
    assert any(line.startswith("step 3/3") for line in lines), "what training prints is in the run's log"


def test_running_it_again_finds_all_of_it(finished: Stack, corpus: Path) -> None:
    manifests = {path: path.stat().st_mtime_ns for path in finished.folder.glob("*/*/manifest.json")}
    done = run_deployment(finished, SMALL | {"corpus": str(corpus)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished.folder.glob("*/*/manifest.json")} == manifests
    assert len(MlflowClient(finished.mlflow).search_model_versions("name = 'bert-tiny-river-birds'")) == 1


def test_the_database_serves_a_run_without_the_server(finished: Stack, tmp_path: Path) -> None:
    """`pretrain-bert encode` reads beside the server what went in through it."""
    settings = environment(BERT_STORE=str(finished.folder))
    command = [sys.executable, "-m", "flows.cli", "encode", "models:/bert-tiny-river-birds/1", "a crane is flying"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("shape (1, 6, 128)")


def test_the_server_refuses_wrong_parameters(finished: Stack) -> None:
    ours = {"flows": {"name": {"any_": ["pretrain-bert"]}}}
    before = len(finished.ask("flow_runs/filter", ours))
    secret = "s3://key:HIDDEN@bucket/a"
    wrongs = {"preset": "huge"}, {"steps": 0}, {"training_settings": {"learning_rat": 1.0}}, {"warm_start": secret}
    for wrong in wrongs:
        done = run_deployment(finished, wrong)
        assert done.returncode != 0
        assert next(iter(wrong)) in done.stdout + done.stderr
    assert len(finished.ask("flow_runs/filter", ours)) == before


def test_a_missing_corpus_fails_with_one_line_and_no_traceback(finished: Stack, tmp_path: Path) -> None:
    done = run_deployment(finished, {"corpus": str(tmp_path / "nowhere.zip")})
    assert done.returncode == 1
    logs = finished.ask("logs/filter", {"logs": {"level": {"ge_": 40}}})
    assert any("nowhere.zip" in entry["message"] for entry in logs)
    assert not [entry["message"] for entry in logs if "Traceback" in entry["message"]]
    assert "Traceback" in (finished.folder / "logs" / "errors.log").read_text("utf-8")
