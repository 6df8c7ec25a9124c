"""The commands of docs/fine-tuning.md as they stand there, one of them killed first; what they register, loaded elsewhere."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from mlflow.tracking import MlflowClient

from flows import aliases, cli, models, processes, registry, versions
from flows.names import finetuned_name
from flows.places import tracking_uri
from pipeline.clean import keys_in, removable, survey
from pipeline.errors import SettingsError
from pipeline.finetuning.prediction import Finetuned
from pipeline.storage import Store
from tests.pipeline import encoders
from tests.pipeline.finetuning import data

from .conftest import ROOT, environment, free_port, run_all, until
from .elsewhere import load_elsewhere, serving

PAGE = ROOT / "docs" / "fine-tuning.md"
WEAK = "--set finetuning.learning_rate=1e-9 --set finetuning.epochs=1"
STRONG = "--set finetuning.learning_rate=1e-2 --set finetuning.dropout=0.0 --set finetuning.epochs=5"


def commands() -> list[str]:
    """What the page has after `.venv/bin/pretrain-bert`."""
    return re.findall(r"^\.venv/bin/pretrain-bert (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)


@dataclass(frozen=True)
class Walked:
    """The page's commands after one another, and what each printed."""

    folder: Path
    said: dict[str, str]

    def of(self, beginning: str) -> str:
        return next(text for line, text in self.said.items() if line.startswith(beginning))

    def result(self, name: str) -> str:
        """What the fine-tuning of a name printed."""
        return next(text for text in self.said.values() if f"models:/{name}/1 in" in text)


def write_data(folder: Path) -> None:
    """The files that the page names."""
    data.write_tsv(folder / "reviews.tsv", data.sentences(2400))
    for name, count in (("nli", 60), ("nli-dev", 20)):
        rows = [{"premise": row["text"], "hypothesis": row["text_pair"], "label": row["label"]} for row in data.pairs(count, len(name))]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "squad").mkdir()
    for name, count in (("train", 40), ("dev", 10)):
        data.write_json(folder / "squad" / f"{name}-v1.1.json", data.squad(count, count))


def register_encoder(folder: Path) -> None:
    """An encoder as the champion of bert-mini, whose store is another."""
    encoder = encoders.publish_encoder(Store(str(folder / "elsewhere")), "bert", encoders.wordpiece())
    run_id = registry.start_run("a run", {}, {"run_key": "0" * 20})
    tags = {"encoder_key": encoder.key}
    version = models.register("bert-mini", run_id, Path(encoder.address), tags=tags, description=lambda _: "", tables={}, figures={})
    aliases.promote(version)
    registry.end_run(run_id)


def kill_amid_training(line: str, folder: Path, settings: dict[str, str]) -> None:
    """Run a command until its first epoch has ended, then kill it; its training ends with it."""
    said = folder / "killed"
    with said.open("w") as output:
        command = [sys.executable, "-m", "flows.cli", *shlex.split(line)]
        child = subprocess.Popen(command, cwd=folder, env=settings, stdout=output, stderr=output)

    def trains() -> bool:
        assert child.poll() is None, said.read_text("utf-8")
        return "epoch 1 of 3" in said.read_text("utf-8")

    until(trains, "an epoch", seconds=300)
    itself = processes.find(child.pid)
    assert itself is not None
    family = processes.descendants([itself])
    (training,) = (process for process in family if "pipeline.finetuning" in Path(f"/proc/{process.pid}/cmdline").read_text("utf-8"))
    child.kill()
    assert child.wait() == -signal.SIGKILL
    until(lambda: training not in processes.running(), "the training ends with its command", seconds=30)
    for process in family & processes.running().keys():  # its temporary server
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    folder = tmp_path_factory.mktemp("walk")
    write_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "store"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register_encoder(folder)
    settings = environment(BERT_STORE=str(folder / "store"), PREFECT_API_URL="", PYTHONPATH=str(ROOT))
    first, *others = commands()
    kill_amid_training(first, folder, settings)
    assert not list((folder / "store" / "finetuned").glob("*/manifest.json")), "a kill leaves nothing that can be taken for whole"
    lines = [first, *others, f"{first} ", f"{first} {WEAK}", f"{first} {STRONG}"]
    said, errors = run_all(lines, folder, settings)
    (folder / "log").write_text(errors, "utf-8")
    return Walked(folder, said)


@pytest.fixture
def database(walked: Walked, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.setenv("BERT_STORE", str(walked.folder / "store"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return MlflowClient(tracking_uri())


def test_each_task_ends_with_its_figures(walked: Walked) -> None:
    reviews = walked.result("bert-mini-reviews")
    assert re.search(r"held out +accuracy 0\.\d+|held out +accuracy 1\.0", reviews)
    assert "2 classes" in reviews and "always the most frequent class" in reviews
    assert "models:/bert-mini-reviews/1 is champion: the first of bert-mini-reviews" in reviews
    assert re.search(r"held out +accuracy .*macro f1", walked.result("bert-mini-nli"))
    assert re.search(r"held out +exact match .*f1", walked.result("bert-mini-squad"))


def test_a_killed_command_ends_well_and_a_third_run_finds_its_work_done(walked: Walked) -> None:
    first = commands()[0]
    assert "models:/bert-mini-reviews/1 in" in walked.said[first]
    assert "models:/bert-mini-reviews/1 in" in walked.said[f"{first} "]
    log = (walked.folder / "log").read_text("utf-8")
    for name in ("labelled", "finetuned"):
        assert re.search(rf"{name}/[0-9a-f]{{20}}: found, nothing to do", log)
    assert "models:/bert-mini-reviews/1: found, nothing to do" in log
    assert "Traceback" not in log


def test_predictions_are_printed_and_written(walked: Walked) -> None:
    label, *probabilities = walked.of('predict models:/bert-mini-reviews@champion "').splitlines()[:-1]
    assert label in {"crane", "river"}
    assert sum(float(line.split()[1]) for line in probabilities) == pytest.approx(1, abs=1e-3)
    rows = [json.loads(line) for line in (walked.folder / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 2400
    assert set(rows[0]["probabilities"]) == {"crane", "river"}
    answer, where, _ = walked.of("predict models:/bert-mini-squad").splitlines()
    start, end = map(int, re.findall(r"characters (\d+) to (\d+)", where)[0])
    assert "a crane flies over the river"[start:end] == answer


def test_the_better_one_is_champion_and_links_lead_to_the_encoder(walked: Walked, database: MlflowClient) -> None:
    assert aliases.of("bert-mini-reviews") == {"champion": "3", "previous": "1", "challenger": "2"}
    second, third = (database.get_model_version("bert-mini-reviews", number) for number in ("2", "3"))
    assert re.search(
        r"error rate 0\.\d+, that of models:/bert-mini-reviews/1 .* on the same \d+ examples: .* worse", second.tags["gate.reason"]
    )
    assert third.tags["gate.decision"] == "champion"
    assert float(third.tags["held_out_accuracy"]) > float(second.tags["held_out_accuracy"])
    assert third.tags["encoder_version"] == "models:/bert-mini/1"
    encoder = database.get_model_version("bert-mini", "1")
    assert third.tags["encoder_key"] == encoder.tags["encoder_key"]
    for part in (
        "classes: 2: crane, river",
        "reviews.tsv",
        "held-out accuracy",
        "load_model",
        "models:/bert-mini/1",
        "cut at 64",
    ):
        assert part in third.description, part
    run = database.get_run(third.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["finetuning.learning_rate"] == "0.01"
    assert len(database.get_metric_history(third.run_id, "held_out/accuracy")) == 5
    assert len(database.get_metric_history(third.run_id, "train/loss")) > 100


def test_questions_are_answered_over_http_several_at_once(walked: Walked, database: MlflowClient, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    line = f"mlflow models serve --model-uri models:/bert-mini-squad@champion --env-manager local --port {address.rpartition(':')[2]}"
    model = Finetuned.load(models.download("models:/bert-mini-squad@champion", models.FINETUNED))
    long = [("what flies ?", f"{'the old sky over trees ' * number} a crane flies over the river") for number in range(1, 33)]

    def ask(inputs: list[dict[str, str]]) -> httpx.Response:
        return httpx.post(f"{address}/invocations", json={"inputs": inputs}, timeout=120)

    with serving(shlex.split(line), address, tmp_path), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda entry: ask([{"question": entry[0], "context": entry[1]}]), long))
        assert [answer.status_code for answer in answers] == [200] * len(long)
        found = [answer.json()["predictions"][0] for answer in answers]
        for wrong, message in (
            ({"text": "a crane"}, "wanted question and context"),
            ({"question": "what ?", "context": " "}, "input 0: got an empty text"),
            ({"question": "what ?", "kontext": "a crane"}, "kontext"),
        ):
            answer = ask([wrong])
            assert answer.status_code == 400 and message in answer.json()["message"], answer.text
    for one, wanted in zip(found, model.predict(long), strict=True):
        assert (one["answer"], one["start"]) == (wanted["answer"], wanted["start"])


def test_two_versions_are_compared(walked: Walked, database: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *(f"models:/bert-mini-reviews/{number}" for number in "13"), "--pictures", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  finetuning.learning_rate +0.0003 +0.01$", said, re.MULTILINE)
    assert re.search(r"^  held_out/accuracy +[01]\.\d+ +[01]\.\d+$", said, re.MULTILINE)
    assert "\nmetrics\n" in said and "\naccuracy, held out\n  step" in said and "F1, held out" not in said
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(["compare", "models:/bert-mini/1", "models:/bert-mini-reviews/1"]) == 1
    wanted = "error: compare: got models:/bert-mini/1, an encoder and models:/bert-mini-reviews/1, fine-tuned; wanted two encoders"
    assert capsys.readouterr().err.startswith(wanted)


def test_a_killed_run_has_each_step_once(walked: Walked, database: MlflowClient) -> None:
    version = database.get_model_version("bert-mini-reviews", "1")
    steps = [entry.step for entry in database.get_metric_history(version.run_id, "train/loss")]
    assert steps == list(range(1, len(steps) + 1))


def test_nothing_that_a_version_leads_to_is_tidied_away(walked: Walked, database: MlflowClient) -> None:
    now = datetime.now(UTC)
    store = Store(str(walked.folder / "store"))
    gone = {(entry.stage, entry.key) for entry in removable(survey(store, store), keys_in(list(registry.tags_in_use(now))), now)}
    for name in ("bert-mini-reviews", "bert-mini-nli", "bert-mini-squad"):
        tags = database.get_model_version(name, "1").tags
        kept = {("finetuned", tags["finetuned_key"]), ("labelled", tags["labelled_key"]), ("encoder", tags["encoder_key"])}
        assert not kept & gone
        assert all(store.whole(*entry) for entry in kept)


@pytest.mark.parametrize("number", [0, 1], ids=["pyfunc", "transformers"])
def test_the_page_loads_them_as_it_is_printed(walked: Walked, database: MlflowClient, number: int, tmp_path: Path) -> None:
    if number and find_spec("transformers") is None:
        pytest.skip("needs transformers: .venv/bin/pip install transformers")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    *before, last = blocks[number].splitlines()
    done = load_elsewhere(tmp_path, "\n".join([*before, f"print({last.partition('  #')[0]})"]), tracking_uri(), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "label" in done.stdout


def test_they_load_where_this_project_is_not(walked: Walked, database: MlflowClient, tmp_path: Path) -> None:
    cards = [database.get_model_version(f"bert-mini-{name}", "1").description for name in ("reviews", "nli", "squad")]
    of_cards = "\n".join(code for card in cards for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL))
    code = """
import json
reviews = mlflow.pyfunc.load_model("models:/bert-mini-reviews@champion").predict([{"text": "he saw the crane"}, {"text": "a river"}])
pair = mlflow.pyfunc.load_model("models:/bert-mini-nli@champion").predict([{"text": "a crane", "text_pair": "a river"}])
squad = mlflow.pyfunc.load_model("models:/bert-mini-squad@champion")
answer = squad.predict([{"question": "what flies ?", "context": "a crane flies over the river"}])
try:
    squad.predict([{"text": "a crane"}])
except mlflow.MlflowException as error:
    print(error.error_code, error)
try:
    squad.predict([{"question": " ", "context": "a crane"}])
except mlflow.MlflowException as error:
    print(error.error_code, error)
print(json.dumps([reviews, pair, answer]))
"""
    done = load_elsewhere(tmp_path, of_cards + code, tracking_uri())
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\[{'(?:label|answer)'", done.stdout, re.MULTILINE)) == 3, "what the cards' code prints"
    *refused, printed = done.stdout.splitlines()[-3:]
    assert refused[0].startswith("INVALID_PARAMETER_VALUE input 0: got {'text': 'a crane'}, wanted question and context")
    assert refused[1].startswith("INVALID_PARAMETER_VALUE input 0: got an empty text")
    reviews, pair, answer = json.loads(printed)
    here: list[dict[str, Any]] = []
    for name, entry in (
        ("reviews", ("he saw the crane", None)),
        ("nli", ("a crane", "a river")),
        ("squad", ("what flies ?", "a crane flies over the river")),
    ):
        here += Finetuned.load(models.download(f"models:/bert-mini-{name}@champion", models.FINETUNED)).predict([entry])
    for found, wanted in zip((reviews[0], pair[0], answer[0]), here, strict=True):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name] == (pytest.approx(value, abs=1e-5) if not isinstance(value, str) else value)
    assert [found["label"] for found in reviews] == ["crane", "river"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "x", "--task", "classification", "--train", "y", "--set", "finetuning.epochs=0"], "finetuning.epochs: got 0, wanted"),
        (
            ["finetune", "x", "--task", "classification", "--train", "y", "--set", "training.epochs=1"],
            "--set: got 'training.epochs=1', wanted",
        ),
        (
            ["finetune", "x", "--task", "question_answering", "--train", "y", "--set", "finetuning.max_length=40"],
            "finetuning.doc_stride: got 32",
        ),
        (["finetune", "x", "--task", "classification", "--train", "y", "--model-name", "a b"], "model name: got 'a b'"),
        (["predict", "x"], "predict: wanted a text or --file, one of the two"),
        (["predict", "x", "--file", "y", "--to", "z.parquet"], "--to: got z.parquet, wanted a name that ends in .jsonl"),
        (["predict", "x", "y", "--to", "z"], "--to: got one without --file"),
        (["predict", "nowhere", "y"], "nowhere: no config.json here; wanted the folder of a fine-tuned encoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_typed_wrongly_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    assert cli.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}") and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("train", "name"),
    [
        ("reviews.tsv", "reviews"),
        ("s3://b/sst2/train.jsonl.gz", "sst2"),
        ("/a/SQuAD 2/train-v2.0.json", "squad-2"),
        ("train.csv", "pair-classification"),
    ],
)
def test_the_name_is_that_of_the_encoder_and_the_data(train: str, name: str) -> None:
    assert finetuned_name("bert-mini", train, "pair_classification") == f"bert-mini-{name}"


def test_a_name_of_encoders_is_refused(walked: Walked, database: MlflowClient) -> None:
    with pytest.raises(
        SettingsError, match=r"model_name: got bert-mini, which is of encoders \(models:/bert-mini/1\); wanted a name of its own"
    ):
        versions.refuse_other_kinds("bert-mini", "classification")
    versions.refuse_other_kinds("bert-mini-reviews", "classification")
    versions.refuse_other_kinds("bert-nobody", "classification")
