"""Two runs of the same settings at once, as from two machines that share a store, and a run where another registry is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from .conftest import ROOT, environment

SMALL = ["training.batch_size=16", "training.device=cpu", "vocabulary.min_count=1", "shards.buckets=2", "model.max_position_embeddings=64"]


def run(store: Path, corpus: Path, who: str, **changed: str) -> "subprocess.Popen[str]":
    settings = [word for setting in [*SMALL, "training.deployment=pretrain-encoder/gpu"] for word in ("--set", setting)]
    command = [sys.executable, "-m", "flows.cli", "run", "--corpus", str(corpus), "--steps", "30", *settings]
    home = {"BERT_STORE": str(store), "PREFECT_HOME": str(store.parent / who), "PREFECT_API_URL": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=store.parent, env=environment(**home, **changed), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_at_once_do_the_work_once_and_register_once(tmp_path: Path, text: Callable[[int, int], str]) -> None:
    corpus, store = tmp_path / "twice", tmp_path / "store"
    corpus.mkdir()
    (corpus / "wiki.train.tokens").write_text(text(300, 1), "utf-8")
    both = [run(store, corpus, who) for who in ("one", "other")]
    said = [child.communicate(timeout=200)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert sum("step 30/30" in text for text in said) == 1, "one trains"
    assert all("pretrain-encoder/gpu is for runs of a deployment; this one trains in place" in text for text in said)
    client = MlflowClient(f"sqlite:///{store}/mlflow.db")
    assert len(client.search_model_versions("name = 'bert-tiny-twice'")) == 1
    (of_both,) = client.search_runs(["1"])
    assert of_both.info.status == "FINISHED"
    assert not list((store / "leases").iterdir())

    other = f"sqlite:///{tmp_path}/other.db"
    elsewhere = run(store, corpus, "one", MLFLOW_TRACKING_URI=other)
    printed = elsewhere.communicate(timeout=200)[0]
    assert elsewhere.returncode == 0, printed
    assert "Task run 'train' - Finished in state Cached" in printed
    (version,) = MlflowClient(other).search_model_versions("name = 'bert-tiny-twice'")
    steps = [entry.step for entry in MlflowClient(other).get_metric_history(version.run_id, "train/mlm_loss")]
    assert steps == list(range(1, 31)), "registered without training, with its curve"
