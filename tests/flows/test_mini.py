"""`mini` on real text: the deployment by its name, then its version in transformers, in a process that has nothing of ours."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT, Stack, environment

transformers = pytest.importorskip("transformers", reason="to run this test: pip install -e '.[dev]'")

NAME = "bert-mini-some-articles"
LOAD = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import json, mlflow
from transformers import AutoModel, AutoModelForMaskedLM, BertForPreTraining, pipeline
folder = mlflow.artifacts.download_artifacts(f"models:/{sys.argv[1]}@champion") + "/artifacts/encoder"
missing, unexpected = {}, {}
for kind in (AutoModel, AutoModelForMaskedLM, BertForPreTraining):
    model, said = kind.from_pretrained(folder, output_loading_info=True)
    missing[kind.__name__], unexpected[kind.__name__] = sorted(said["missing_keys"]), sorted(said["unexpected_keys"])
filled = pipeline("fill-mask", model=folder)("a crane is [MASK] .")
tied = model.cls.predictions.decoder.weight.data_ptr() == model.bert.embeddings.word_embeddings.weight.data_ptr()
assert "flows" not in sys.modules and "pipeline" not in sys.modules
print(json.dumps([missing, unexpected, tied, *zip(*((entry["token_str"], entry["score"]) for entry in filled))]))
"""


@pytest.fixture(scope="module")
def articles(wikitext2: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some of WikiText-2's articles."""
    folder = tmp_path_factory.mktemp("corpora") / "some-articles"
    folder.mkdir()
    if Path(wikitext2).is_dir():
        text = (Path(wikitext2) / "wiki.train.tokens").read_text("utf-8")
    else:
        with zipfile.ZipFile(wikitext2) as archive:
            text = archive.read("wikitext-2/wiki.train.tokens").decode()
    (folder / "wiki.train.tokens").write_text(text[:600_000], "utf-8")
    return folder


def test_minis_version_is_a_bert_of_transformers(stack: Stack, articles: Path, tmp_path: Path) -> None:
    parameters = {
        "corpus": str(articles),
        "steps": 3,
        "vocabulary_settings": {"size": 1000},
        "shard_settings": {"buckets": 2, "held_out_buckets": 1},
        "training_settings": {"batch_size": 8, "device": "cpu"},
    }
    command = [sys.executable, "-m", "prefect", "deployment", "run", "pretrain-bert/mini", "--watch", "--params", json.dumps(parameters)]
    done = subprocess.run(command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    settings = environment(MLFLOW_TRACKING_URI=stack.mlflow, MLFLOW_DISABLE_TELEMETRY="true", HF_HUB_OFFLINE="1")
    settings.pop("PYTHONPATH", None)
    load = [sys.executable, "-P", "-c", LOAD, NAME]
    loaded = subprocess.run(load, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=200)
    assert loaded.returncode == 0, loaded.stderr
    missing, unexpected, tied, expected, probabilities = json.loads(loaded.stdout.splitlines()[-1])
    assert missing == {"AutoModel": [], "AutoModelForMaskedLM": [], "BertForPreTraining": []}
    assert unexpected["BertForPreTraining"] == []
    assert all(name.startswith("cls.") for name in unexpected["AutoModel"])
    assert all(name.startswith(("cls.seq_relationship.", "bert.pooler.")) for name in unexpected["AutoModelForMaskedLM"])
    assert tied is True

    command = [sys.executable, "-m", "flows.cli", "fill-mask", f"models:/{NAME}@champion", "a crane is [MASK] .", "--top", "3"]
    ours = subprocess.run(command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=120)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.splitlines()[0] == "mask 1"
    shown = [line.split() for line in ours.stdout.splitlines()[1:]]
    assert [token for token, _ in shown] == expected[:3]
    assert [float(probability) for _, probability in shown] == pytest.approx(probabilities[:3], abs=1e-4)
