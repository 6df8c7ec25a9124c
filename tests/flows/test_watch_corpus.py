"""A corpus that changes has its encoder trained anew, through real servers, and one that does not has nothing done."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from .conftest import ROOT, Stack, write_corpus

NAME = "bert-tiny-changing-text"
BUCKETS = 8
SMALL = {
    "preset": "tiny",
    "steps": 3,
    "vocabulary_settings": {"min_count": 1},
    "shard_settings": {"buckets": BUCKETS, "held_out_buckets": BUCKETS},
    "model_settings": {"intermediate_size": 32, "max_position_embeddings": 64},
    "training_settings": {"batch_size": 16, "learning_rate": 1e-3, "device": "cpu"},
}
KEPT = {"vocabulary_from": "previous", "warm_start": "previous"}


@dataclass(frozen=True)
class Watched:
    """A stack whose deployment `tiny` is small, and a corpus."""

    stack: Stack
    corpus: Path

    def run(self, deployment: str, **parameters: str) -> dict[str, Any]:
        """Run a deployment to its end. Returns the flow run."""
        command = [sys.executable, "-m", "prefect", "deployment", "run", deployment, "--watch", "--params", json.dumps(parameters)]
        done = subprocess.run(command, cwd=ROOT, env=self.stack.environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.newest(deployment.partition("/")[0])

    def newest(self, flow: str) -> dict[str, Any]:
        return self.runs(flow)[0]

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """Flow runs on the corpus of this test, or a copy of it, the newest first."""
        found: list[dict[str, Any]] = self.stack.ask(
            "flow_runs/filter", {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 50}
        )
        return [run for run in found if str(run["parameters"].get("corpus")).endswith(self.corpus.name)]

    def states(self, flow_run: dict[str, Any]) -> dict[str, str]:
        """The state of each task of a flow run."""
        found = self.stack.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run["id"]]}}})
        return {run["name"]: run["state"]["name"] for run in found}

    def version(self, number: int) -> Any:
        return MlflowClient(self.stack.mlflow).get_model_version(NAME, str(number))

    def shards(self, number: int) -> dict[str, Any]:
        """The manifest of the training shards of a version."""
        key = self.version(number).tags["train_shards_key"]
        read: dict[str, Any] = json.loads((self.stack.folder / "shards" / key / "manifest.json").read_text("utf-8"))
        return read


@pytest.fixture(scope="module")
def watched(stack: Stack, text: Callable[[int, int], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    corpus = write_corpus(tmp_path_factory.mktemp("corpora") / "changing-text", text, train=300, valid=40)
    found = Watched(stack, corpus)
    (deployment,) = stack.ask("deployments/filter", {"deployments": {"name": {"any_": ["tiny"]}}})
    stack.ask(f"deployments/{deployment['id']}", {"parameters": SMALL}, "PATCH")
    yield found
    stack.ask(f"deployments/{deployment['id']}", {"parameters": deployment["parameters"]}, "PATCH")


def finished(run: dict[str, Any]) -> bool:
    assert run["state"]["type"] not in ("FAILED", "CRASHED"), run["state"]
    return bool(run["state"]["type"] == "COMPLETED")


@pytest.fixture(scope="module")
def first(watched: Watched) -> Watched:
    """After the first look at the corpus, which no version was trained on, and the run that it set off."""
    looked = watched.run("watch-corpus/nightly", corpus=str(watched.corpus), **KEPT)
    assert looked["state"]["message"].endswith(f"no version of {NAME} yet; sent corpus.changed")
    wait(lambda: [run for run in watched.runs("pretrain-bert") if finished(run)])
    return watched


@pytest.fixture(scope="module")
def changed(first: Watched) -> Watched:
    """After one article was edited and the corpus was looked at again, and the run that that set off."""
    train = first.corpus / "wiki.train.tokens"
    first_paragraph, rest = train.read_text("utf-8").split("\n", 1)
    train.write_text(f"{first_paragraph}he left the river . \n{rest}", "utf-8")
    looked = first.run("watch-corpus/nightly", corpus=str(first.corpus), **KEPT)
    assert f"before: the text of models:/{NAME}/1" in looked["state"]["message"]
    wait(lambda: len([run for run in first.runs("pretrain-bert") if finished(run)]) == 2)
    return first


def wait(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.5)


def test_the_first_look_has_a_version_trained(first: Watched) -> None:
    assert "previous_version" not in first.version(1).tags
    assert "warm_start_encoder_key" not in first.version(1).tags, "there was none to start from"
    (run,) = first.runs("pretrain-bert")
    assert run["parameters"]["steps"] == 3, "what the event does not name is as the deployment says"


def test_an_edited_article_remakes_its_buckets_alone(changed: Watched) -> None:
    old, new = (changed.shards(number) for number in (1, 2))
    kept = {entry["key"] for entry in old["facts"]["buckets"]} & {entry["key"] for entry in new["facts"]["buckets"]}
    made = new["recorded"]["buckets_made"]
    assert made in (1, 2), "the article as it was and as it is fall into one bucket or two"
    assert new["recorded"]["buckets_found"] == BUCKETS - made == len(kept)
    assert changed.states(changed.newest("pretrain-bert"))["shards of valid"] == "Completed", "another corpus, so another set"
    key = changed.version(2).tags["valid_shards_key"]
    valid = json.loads((changed.stack.folder / "shards" / key / "manifest.json").read_text("utf-8"))
    assert (valid["recorded"]["buckets_made"], valid["recorded"]["buckets_found"]) == (0, BUCKETS)


def test_the_new_version_is_linked_to_the_old(changed: Watched) -> None:
    old, new = changed.version(1).tags, changed.version(2).tags
    assert new["previous_version"] == "1"
    assert new["change_documents"] == "300 to 300: 1 came, 1 went"
    words = int(new["tokens"]) - int(old["tokens"])
    assert words == 4
    assert new["change_tokens"].endswith("(+4)")
    assert new["vocabulary_key"] == old["vocabulary_key"], "kept"
    assert new["warm_start_encoder_key"] == old["encoder_key"]
    assert new["corpus_key"] != old["corpus_key"]
    states = changed.states(changed.newest("pretrain-bert"))
    assert states["vocabulary"] == "Cached"
    assert states["fetch corpus"] == "Cached", "the look has published it"
    assert states["train"] == "Completed"


def test_nothing_changed_runs_nothing_and_says_so(changed: Watched) -> None:
    looked = changed.run("watch-corpus/nightly", corpus=str(changed.corpus), **KEPT)
    assert looked["state"]["message"].startswith(f"nothing changed: models:/{NAME}/2 was trained on this text")
    events = changed.stack.ask("events/filter", {"filter": {"event": {"name": ["corpus.changed"]}, "resource": {"id": [f"corpus.{NAME}"]}}})
    assert events["total"] == 2
    assert len(changed.runs("pretrain-bert")) == 2


def test_the_same_bytes_at_another_path_are_found_in_every_stage(changed: Watched, tmp_path: Path) -> None:
    copy = shutil.copytree(changed.corpus, tmp_path / changed.corpus.name)
    run = changed.run("pretrain-bert/tiny", corpus=str(copy), **KEPT)
    states = changed.states(run)
    looked = ("find earlier versions", "find encoder to start from", "prepare run")
    assert {states.pop(name) for name in looked} == {"Completed"}
    assert states == dict.fromkeys(
        ("fetch corpus", "vocabulary", "shards of train", "shards of valid", "train", "export encoder", "register", "gate"), "Cached"
    )
    assert len(MlflowClient(changed.stack.mlflow).search_model_versions(f"name = '{NAME}'")) == 2
