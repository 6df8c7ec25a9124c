"""Registered encoders: found again, loadable anywhere, made without pickle."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows import aliases, card, models, names, pictures, registry
from flows.places import EXPERIMENT, tracking_uri
from pipeline.encoding import Encoder
from pipeline.errors import RegistryError
from pipeline.samples import sample_encodings
from pipeline.storage import Output

NAME = "bert-test"
ROWS = [
    {"kind": "train", "step": 1, "mlm_loss": 9.5, "next_sentence_loss": 0.7, "mlm_loss_mean": 9.5, "next_sentence_loss_mean": 0.7},
    {"kind": "train", "step": 2, "mlm_loss": 9.3, "next_sentence_loss": 0.7, "mlm_loss_mean": 9.4, "next_sentence_loss_mean": 0.7},
    {"kind": "held_out", "step": 2, "mlm_loss": 9.4, "unigram_loss": 6.7, "next_sentence_loss": 0.7},
]


@dataclass(frozen=True)
class Registered:
    """An encoder that was registered in a database of its own."""

    artifacts: Path
    encoder: Output
    run_id: str
    version: registry.Version

    @property
    def files(self) -> Path:
        """The version's files, as they lie in the artifacts folder."""
        return next(self.artifacts.glob("mlflow/**/MLmodel")).parent


def register(encoder: Output, run_id: str, key: str) -> registry.Version:
    samples = sample_encodings(Encoder.load(encoder.address))
    return models.register(
        NAME,
        run_id,
        Path(encoder.address),
        tags={"encoder_key": key},
        description=lambda _: card.samples_markdown(samples),
        tables={"sample_encodings.json": card.samples_table(samples)},
        figures={"loss_curve.png": pictures.loss_curve(ROWS)},
    )


@pytest.fixture(scope="module")
def registered(small_encoder: Output, tmp_path_factory: pytest.TempPathFactory) -> Registered:
    artifacts = tmp_path_factory.mktemp("artifacts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(artifacts))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        run_id = registry.start_run("a run", {"training.steps": 3}, {"run_key": "abc"}, [("train", "shards/123", "123")])
        registry.log_rows(run_id, ROWS)
        version = register(small_encoder, run_id, small_encoder.key)
        aliases.promote(version)
        registry.end_run(run_id)
    return Registered(artifacts, small_encoder, run_id, version)


@pytest.fixture
def database(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """A client of the database that `registered` is in."""
    monkeypatch.setenv("BERT_STORE", str(registered.artifacts))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return MlflowClient(tracking_uri())


def test_plain_files_come_down_without_running_code(registered: Registered, database: MlflowClient) -> None:
    folder = models.download(f"models:/{NAME}@{aliases.CHAMPION}")
    names = {entry["name"] for entry in registered.encoder.manifest["files"]} | {"manifest.json"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert (folder / name).read_bytes() == Path(registered.encoder.file(name)).read_bytes()


def test_nothing_is_pickled(registered: Registered) -> None:
    names = [path.name for path in registered.files.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".bin", ".pth"))]
    assert "model.safetensors" in names
    package = next((registered.files / "code").iterdir())
    assert package.name.startswith("bert_encoder_")


def test_its_page_shows_the_sample_encodings(registered: Registered, database: MlflowClient) -> None:
    version = database.get_model_version_by_alias(NAME, aliases.CHAMPION)
    assert str(version.version) == registered.version.number
    width = registered.encoder.manifest["facts"].get("hidden_size", 16)
    assert f"(1, 6, {width})" in version.description
    assert f"(1, 10, {width})" in version.description
    assert "cosine similarity" in version.description


def test_a_name_is_described_once(registered: Registered, database: MlflowClient) -> None:
    models.describe_name(NAME, "what these are")
    models.describe_name(NAME, "something else")
    assert database.get_registered_model(NAME).description == "what these are"


def test_the_run_has_settings_curves_data_and_pictures(registered: Registered, database: MlflowClient) -> None:
    run = database.get_run(registered.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["training.steps"] == "3"
    assert [(m.step, m.value) for m in database.get_metric_history(registered.run_id, "train/mlm_loss")] == [(1, 9.5), (2, 9.3)]
    assert [(m.step, m.value) for m in database.get_metric_history(registered.run_id, "held_out/mlm_loss")] == [(2, 9.4)]
    assert [(entry.dataset.name, entry.dataset.digest) for entry in run.inputs.dataset_inputs] == [("train", "123")]
    assert {file.path for file in database.list_artifacts(registered.run_id)} >= {"loss_curve.png", "sample_encodings.json"}


def test_the_same_encoder_is_found_and_another_is_a_new_version(registered: Registered, database: MlflowClient) -> None:
    found = models.find_version(NAME, registered.encoder.key)
    assert found is not None
    assert found.number == registered.version.number
    assert models.find_version(NAME, "another") is None
    assert models.find_version("bert-nobody", registered.encoder.key) is None
    second = register(registered.encoder, registered.run_id, "another")
    assert int(second.number) == int(registered.version.number) + 1
    assert len(database.search_experiments(filter_string=f"name = '{EXPERIMENT}'")) == 1


def test_a_registry_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match=r"^MLflow at http://127.0.0.1:9: .*check that it runs") as caught:
        registry.start_run("x", {}, {"run_key": "abc"})
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there_is_one_line(database: MlflowClient) -> None:
    with pytest.raises(RegistryError, match="bert-nobody"):
        models.download("models:/bert-nobody/1")


@pytest.mark.parametrize(("corpus", "name"), [("wikitext-2", "bert-tiny"), ("sample", "bert-tiny-sample"), ("own", "bert-tiny-own")])
def test_only_wikitext_2_gives_the_bare_name(corpus: str, name: str) -> None:
    assert names.model_name("tiny", corpus) == name


def test_a_database_that_is_none_is_one_line_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERT_STORE", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(RegistryError, match=r"mlflow.db: .*file is not a database") as caught:
        registry.start_run("x", {}, {"run_key": "abc"})
    assert "\n" not in str(caught.value)


def test_an_experiment_on_files_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(location: str) -> Any:
        return SimpleNamespace(get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1", artifact_location=location))

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    for local in ("/srv/mlflow/1", "file:///srv/mlflow/1"):
        with pytest.raises(RegistryError, match=f"keeps files of {EXPERIMENT} in {local}, .*--artifacts-destination"):
            registry.experiment(of(local))
    for reached in ("mlflow-artifacts:/1", "s3://bucket/1"):
        assert registry.experiment(of(reached)) == "1"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert registry.experiment(of("/srv/mlflow/1")) == "1", "the server of this machine"
