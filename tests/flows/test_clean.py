"""`pretrain-bert clean`: what the registry knows stays whole, the rest goes, and in doubt nothing does."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from flows import cli, registry
from flows.places import EXPERIMENT, tracking_uri
from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.settings import Preset
from pipeline.storage import MANIFEST, Output, Store, open_output, verify_digests

from .conftest import ROOT

DAY = 24 * 3600
ENCODER = ["encoder", "run", "shards", "shards", "bucket", "bucket", "bucket", "bucket", "vocabulary", "corpus"]
OTHER = ["shards", "bucket", "bucket", "vocabulary", "corpus"]


@dataclass(frozen=True)
class Tidied:
    """A store with an encoder's chain and a second one of other text, all made 30 days ago, and its registry.

    `tags` are those of the encoder's version, `other` those of a run on the other shards.
    """

    root: Path
    client: MlflowClient
    tags: dict[str, str]
    other: dict[str, str]

    def register(self, tags: dict[str, str], run_id: str | None = None) -> None:
        self.client.create_model_version("bert-test", "file:///nowhere", run_id, tags=tags)

    def log_run(self, tags: dict[str, str], *, started: float, ended: float | None) -> str:
        """:param started: days ago. :param ended: days ago; None: it runs."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT).experiment_id
        run = self.client.create_run(experiment, start_time=_days_ago(started), tags=tags).info.run_id
        if ended is not None:
            self.client.set_terminated(run, "FINISHED", end_time=_days_ago(ended))
        return str(run)

    def left(self) -> list[str]:
        return sorted(path.parent.relative_to(self.root).as_posix() for path in self.root.glob(f"*/*/{MANIFEST}"))

    def files(self) -> dict[str, bytes]:
        """Everything but the database."""
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file() and ".db" not in path.name}


def _days_ago(days: float) -> int:
    return int((time.time() - days * DAY) * 1000)


def _make_old(root: Path) -> None:
    for path in root.glob(f"*/*/{MANIFEST}"):
        manifest = json.loads(path.read_text())
        manifest["recorded"]["created"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 30 * DAY))
        manifest["recorded"].setdefault("source", str(root))
        path.write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that knows the experiment and an empty registered model."""
    folder = tmp_path_factory.mktemp("database")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with registry.connect() as client:
            registry.experiment(client)
            client.create_registered_model("bert-test")
    return folder / "mlflow.db"


@pytest.fixture
def tidied(
    small_encoder: Output,
    small_preset: Preset,
    publish: Callable[..., Output],
    text: Callable[[int, int], str],
    database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Tidied:
    root = tmp_path / "artifacts"
    shutil.copytree(Path(small_encoder.address).parents[1], root)
    shutil.copyfile(database, root / "mlflow.db")
    store = Store(str(root))
    corpus = publish(store, text(40, 7), text(10, 8))
    words = build_vocabulary(store, corpus, small_preset)
    shards = build_shards(store, corpus, words, "train", small_preset)
    _make_old(root)
    lineage = small_encoder.facts["lineage"]
    tags = {"corpus": "own", "encoder_key": small_encoder.key, "run_key": lineage["run"], "train_shards_key": lineage["train"]}
    monkeypatch.setenv("BERT_STORE", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Tidied(root, MlflowClient(tracking_uri()), tags, {"run_key": "0" * 20, "train_shards_key": shards.key})


def stages(lines: list[str]) -> list[str]:
    """The stages that a listing names, in its order."""
    return [line.partition("/")[0] for line in lines if " days old" in line]


def clean(*arguments: str) -> int:
    return cli.main(["clean", *arguments])


def test_the_chain_of_a_version_stays_whole_and_all_else_goes(tidied: Tidied, capsys: pytest.CaptureFixture[str]) -> None:
    tidied.register(tidied.tags)
    apart = ["logs/errors.log", "mlflow/1/models/m/MLmodel", "prefect/x", "leases/x", "wiki/wiki.train.tokens", "corpus/mine/train.txt"]
    for name in apart:
        (tidied.root / name).parent.mkdir(parents=True, exist_ok=True)
        (tidied.root / name).write_text("mine")
    before = tidied.files()
    assert clean("--days", "0", "--yes") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"kept: what leads to 1 versions and 0 runs in sqlite:///{tidied.root}/mlflow.db"
    assert stages(said) == OTHER
    assert all(" 30 days old" in line for line in said[1:-1])
    assert said[-1].startswith("5 of 15 folders, ") and said[-1].endswith(" kB; removed")
    assert sorted(ENCODER) == [name.partition("/")[0] for name in tidied.left()]
    assert tidied.files().items() <= before.items()
    assert all((tidied.root / name).read_text() == "mine" for name in apart)
    for name in tidied.left():
        verify_digests(open_output(str(tidied.root / name)))
    assert clean("--days", "0", "--yes") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["nothing to remove"]


def test_without_yes_nothing_is_removed(tidied: Tidied, capsys: pytest.CaptureFixture[str]) -> None:
    before = tidied.files()
    assert clean("--days", "0") == 0
    said = capsys.readouterr().out.splitlines()
    assert sorted(stages(said)) == sorted(ENCODER + OTHER)
    assert "15 of 15 folders, " in said[-1] and "nothing was removed" in said[-1]
    assert tidied.files() == before


@pytest.mark.parametrize(
    ("started", "ended", "days", "stays"),
    [(20, None, 7, False), (3, None, 7, True), (20, 3, 7, True), (3, 3, 7, True), (20, 3, 2, False), (0, 0, 0, False)],
)
def test_a_run_counts_for_some_days_from_its_start_and_its_end(
    tidied: Tidied, started: float, ended: float | None, days: int, stays: bool
) -> None:
    tidied.log_run(tidied.other, started=started, ended=ended)
    assert clean("--days", str(days), "--yes") == 0
    assert [name.partition("/")[0] for name in tidied.left()] == sorted(OTHER) * stays


def test_nothing_is_removed_while_an_output_is_being_made(tidied: Tidied, capsys: pytest.CaptureFixture[str]) -> None:
    before = tidied.files()
    with Store(str(tidied.root)).lease("shards", "0" * 20):
        assert clean("--days", "0", "--yes") == 1
        assert f"in use by process {os.getpid()} on " in capsys.readouterr().err
        assert clean("--days", "0") == 0, "to show does no harm"
    assert tidied.files() == before


def test_a_shared_store_wants_the_registry_of_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BERT_STORE", "s3://shared/bert")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert clean("--yes") == 1
    assert capsys.readouterr().err.startswith("error: MLFLOW_TRACKING_URI: got none, wanted the registry of all that use s3://shared/bert")


def test_all_pages_of_the_registry_are_read(tidied: Tidied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PAGE", 1)
    for tags in ({}, tidied.tags, {"encoder_key": "none"}):
        tidied.register(tags)
    for tags in ({}, tidied.other, {"run_key": "none"}):
        tidied.log_run(tags, started=1, ended=1)
    assert clean("--days", "7", "--yes") == 0
    assert [name.partition("/")[0] for name in tidied.left()] == sorted(ENCODER + OTHER)


def test_a_version_that_was_registered_by_hand_keeps_what_its_run_names(tidied: Tidied) -> None:
    tidied.register({}, tidied.log_run(tidied.other, started=20, ended=20))
    assert clean("--days", "0", "--yes") == 0
    assert [name.partition("/")[0] for name in tidied.left()] == sorted(OTHER)


def test_a_bucket_that_two_sets_share_stays(tidied: Tidied, small_preset: Preset) -> None:
    store = Store(str(tidied.root))
    known = store.find("shards", tidied.tags["train_shards_key"])
    assert known is not None
    inputs = [store.find(stage, known.manifest["inputs"][stage]) for stage in ("corpus", "vocabulary")]
    corpus, words = (found for found in inputs if found is not None)
    again = build_shards(store, corpus, words, "train", small_preset.override(shards={"buckets": 1}))
    manifest = Path(again.file(MANIFEST))
    manifest.write_text(manifest.read_text().replace(again.facts["buckets"][0]["key"], known.facts["buckets"][0]["key"]))
    tidied.register(tidied.tags)
    assert clean("--days", "0", "--yes") == 0
    assert store.find("shards", again.key) is None
    for bucket in known.facts["buckets"]:
        assert store.find("bucket", bucket["key"]) is not None


def test_a_registry_that_cannot_be_reached_removes_nothing(
    tidied: Tidied, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    before = tidied.files()
    assert clean("--days", "0", "--yes") == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: MLflow at http://127.0.0.1:9: ") and len(said.err.splitlines()) == 1
    assert not said.out
    assert tidied.files() == before


def test_a_registry_that_never_heard_of_this_project_removes_nothing(
    tidied: Tidied, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    before = tidied.files()
    assert clean("--days", "0", "--yes") == 1
    assert f"other.db: has no experiment {EXPERIMENT}; set MLFLOW_TRACKING_URI" in capsys.readouterr().err
    assert tidied.files() == before


def test_in_an_empty_store_there_is_nothing_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    assert clean("--yes") == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert not list(tmp_path.iterdir()), "not even a database"


@pytest.mark.parametrize(
    ("days", "message"), [("-1", "days: got -1, wanted a number from 0"), ("soon", "days: got 'soon', wanted a whole")]
)
def test_a_wrong_number_of_days_is_one_line(days: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean("--days", days) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {message}") and len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [([], "clean"), (["YES=0"], "clean"), (["YES=1"], "clean --yes"), (["DAYS=0", "YES=1"], 'clean --days "0" --yes')],
    ids=["nothing", "no", "yes", "yes and days"],
)
def test_make_removes_only_with_yes_1(given: list[str], wanted: str) -> None:
    command = ["make", "--no-print-directory", "--dry-run", "clean-artifacts", *given]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # these tests may run under make
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.splitlines()[-1].split()[1:]) == wanted
