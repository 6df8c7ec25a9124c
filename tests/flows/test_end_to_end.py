"""The whole way through real servers: a deployment run by name, then its encoder loaded elsewhere."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from .browser import Browser, start_browser
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


def run_deployment(stack: Stack, parameters: dict[str, Any], name: str = "pretrain-bert/tiny") -> subprocess.CompletedProcess[str]:
    """`prefect deployment run pretrain-bert/tiny --watch`, as a user types it."""
    command = [sys.executable, "-m", "prefect", "deployment", "run", name, "--watch", "--params", json.dumps(parameters)]
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
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"loss_curve.png", "labels_and_masks.png", "row_lengths.png", "vectors.png", "sample_encodings.json"} <= files
    assert {"attention_1.png", "attention_2.png"} <= files
    assert run.data.tags["corpus_key"]
    assert version.tags["encoder_key"]
    assert "(1, 6, 128)" in version.description
    assert "(1, 10, 128)" in version.description
    assert "licence of the corpus: not known to this project" in version.description
    assert "pretrained on river-birds" in client.get_registered_model(version.name).description


def test_the_code_in_the_model_card_runs_as_it_stands(finished: Stack, tmp_path: Path) -> None:
    version = MlflowClient(finished.mlflow).get_model_version_by_alias("bert-tiny-river-birds", "champion")
    (code,) = re.findall(r"```python\n(.*?)```", version.description, re.DOTALL)
    settings = environment(MLFLOW_TRACKING_URI=finished.mlflow, MLFLOW_DISABLE_TELEMETRY="true")
    settings.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2].startswith("['<cls>', 'a', 'crane', 'driver'")
    assert done.stdout.splitlines()[-1] == "10 vectors of 128 numbers"


def test_prefect_shows_what_was_built(finished: Stack, corpus: Path) -> None:
    run = first_run(finished, corpus)
    shown = artifacts_of(finished, run)
    assert set(shown) >= {"training-progress", "what-was-built", "loss-curve", "sample-encodings", "model-version"}
    assert set(shown) >= {"shards-train", "shards-valid", "examples-train", "report"}
    assert float(shown["training-progress"]["data"]) == 100.0
    assert re.match(r"step 3 of 3: mean MLM loss .* pairs/s, .* left", shown["training-progress"]["description"])
    assert "mask>]**" in shown["examples-train"]["data"]
    report = shown["report"]["data"]
    assert "models:/bert-tiny-river-birds/1" in report and "the unigram level" in report and "| train |" in report
    assert "data:image/png;base64," in shown["loss-curve"]["data"]
    assert f"{finished.mlflow}/#/models/bert-tiny-river-birds/versions/1" in shown["model-version"]["data"]
    lines = [entry["message"] for entry in finished.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200})]
    assert any(line.startswith("step 3/3") for line in lines), "what training prints is in the run's log"


def first_run(stack: Stack, corpus: Path) -> dict[str, Any]:
    """The flow run that made everything."""
    runs = stack.ask("flow_runs/filter", {"sort": "START_TIME_ASC"})
    return next(run for run in runs if run["parameters"].get("corpus") == str(corpus))


def artifacts_of(stack: Stack, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A flow run's artifacts by their keys."""
    found = stack.ask("artifacts/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert len({artifact["key"] for artifact in found}) == len(found), "one of each on a run's page"
    return {artifact["key"]: artifact for artifact in found}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as started:
        yield started


def test_prefects_page_shows_the_graph_the_artifacts_and_the_report(finished: Stack, corpus: Path, browser: Browser) -> None:
    run, page = first_run(finished, corpus), finished.prefect.removesuffix("/api")
    graph = {node["id"]: node for _, node in finished.ask(f"flow_runs/{run['id']}/graph-v2")["nodes"]}
    needs = {node["label"]: {graph[parent["id"]]["label"] for parent in node["parents"]} for node in graph.values()}
    order = ["fetch corpus", "find earlier versions", "vocabulary", "shards of train", "shards of valid", "prepare run"]
    assert list(needs) == [*order, "train", "export encoder", "register", "gate"]
    assert needs["shards of train"] == {"fetch corpus", "vocabulary"}
    assert needs["prepare run"] == {"shards of train", "shards of valid"}
    assert "prepare run" in needs["train"] and "train" in needs["export encoder"]
    assert "export encoder" in needs["register"] and "register" in needs["gate"]

    browser.open(f"{page}/runs/flow-run/{run['id']}", "tiny on", "Completed", "10 Task runs")
    assert browser.find("canvas")[0].size["width"] > 500, "the graph"
    browser.keep("prefect-run")
    browser.click("Artifacts", "li")
    shown = artifacts_of(finished, run)
    browser.wait_for_texts([*shown, "step 3 of 3"])
    browser.keep("prefect-artifacts")
    texts = {
        "report": ("models:/bert-tiny-river-birds/1", "its card in MLflow", "the unigram level", "export encoder"),
        "examples-train": ("<mask>]", "B is random"),
        "shards-train": ("masked, <mask>",),
        "sample-encodings": ("cosine similarity", "mean vector of all tokens"),
        "loss-curve": ("Losses by step",),
    }
    for key, wanted in texts.items():
        browser.open(f"{page}/artifacts/artifact/{shown[key]['id']}", *wanted)
        if key in ("loss-curve", "shards-train"):
            browser.wait_for(lambda: browser.pictures_are_drawn("img[src^='data:image']"), "a picture")
        browser.keep(f"prefect-{key}")


def test_the_form_has_descriptions_and_choices(finished: Stack, browser: Browser) -> None:
    deployment = finished.ask("deployments/name/pretrain-bert/tiny")
    schema = deployment["parameter_openapi_schema"]
    described = [entry["description"].split("`")[0].strip() for entry in schema["properties"].values()]
    browser.open(f"{finished.prefect.removesuffix('/api')}/deployments/deployment/{deployment['id']}/run", *described)
    browser.wait_for_texts(schema["properties"]["preset"]["enum"])
    browser.click("training settings", "button")
    of_training = schema["definitions"]["TrainingOverrides"]["properties"]
    browser.wait_for_texts(entry["description"] for entry in of_training.values())
    browser.wait_for_texts(of_training["schedule"]["enum"])
    browser.keep("prefect-form")


def test_mlflows_pages_show_the_card_the_curves_and_the_pictures(finished: Stack, browser: Browser) -> None:
    version = MlflowClient(finished.mlflow).get_model_version("bert-tiny-river-birds", "1")
    browser.open(finished.mlflow)
    # Its assistant, which opens by itself in a browser that is new here, would cover a third of each page.
    browser.driver.execute_script("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
    browser.driver.execute_script("localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')")
    browser.driver.refresh()
    browser.open(f"{finished.mlflow}/#/models/{version.name}", "pretrained on river-birds")
    browser.keep("mlflow-name")
    browser.open(f"{finished.mlflow}/#/models/{version.name}/versions/1", "Figures", "the unigram level", "cosine similarity", "licence")
    browser.keep("mlflow-version")
    browser.open(f"{finished.mlflow}/#/runs/{version.run_id}", "training.learning_rate", "corpus_key")
    browser.keep("mlflow-run")
    page = browser.driver.current_url.partition("?")[0].rstrip("/")
    browser.open(f"{page}/model-metrics", "mlm_loss", "next_sentence_accuracy", "learning_rate")
    browser.find(".js-plotly-plot", least=4)
    browser.keep("mlflow-curves")
    for name in ("attention_2", "vectors"):
        browser.open(f"{page}/artifacts/{name}.png", "sample_encodings.json", f"/artifacts/{name}.png")
        browser.wait_for(lambda: browser.pictures_are_drawn("img[src^='blob:'], img[src*='get-artifact']"), name)
        browser.keep(f"mlflow-{name}")


def test_a_deployment_fine_tunes_the_encoder(finished: Stack, browser: Browser, tmp_path: Path) -> None:
    rows = [f"{place} {number} the crane\t{place}" for number in range(20) for place in ("river", "stone")]
    (tmp_path / "places.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    wanted = {"encoder": "models:/bert-tiny-river-birds@champion", "task": "classification", "train": str(tmp_path / "places.tsv")}
    settings = {"epochs": 1, "max_length": 16, "device": "cpu"}
    done = run_deployment(finished, wanted | {"finetuning_settings": settings}, "finetune-encoder/cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    version = MlflowClient(finished.mlflow).get_model_version_by_alias("bert-tiny-river-birds-places", "champion")
    assert version.tags["encoder_version"] == "models:/bert-tiny-river-birds/1"
    page = f"{finished.mlflow}/#/models/{version.name}/versions/1"
    browser.open(page, "models:/bert-tiny-river-birds/1 with a head", "held-out accuracy", "always the most frequent class", "Limits")
    browser.keep("mlflow-finetuned")


def test_the_pages_need_nothing_from_elsewhere(browser: Browser) -> None:
    assert browser.asked_elsewhere() == set()


def test_running_it_again_finds_all_of_it(finished: Stack, corpus: Path) -> None:
    manifests = {path: path.stat().st_mtime_ns for path in finished.folder.glob("*/*/manifest.json")}
    done = run_deployment(finished, SMALL | {"corpus": str(corpus)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished.folder.glob("*/*/manifest.json")} == manifests
    assert len(MlflowClient(finished.mlflow).search_model_versions("name = 'bert-tiny-river-birds'")) == 1
    newest_first = finished.ask("flow_runs/filter", {"sort": "START_TIME_DESC"})
    shown = artifacts_of(finished, next(run for run in newest_first if run["parameters"].get("corpus") == str(corpus)))
    assert re.search(r"\| train \| [^|]* \| found \|", shown["report"]["data"])
    assert "data:image/png;base64," in shown["loss-curve"]["data"], "also of a training that was found"
    assert shown.keys() >= {"shards-train", "shards-valid"}, "also of shards that were found"


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
