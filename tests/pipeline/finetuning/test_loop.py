"""Fine-tuning learns each task, gives one model for one seed, and leaves what it should as it was."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.errors import DamagedOutputError, EncodingError, SettingsError, TrainingError
from pipeline.finetuning.features import Rows
from pipeline.finetuning.head_format import open_tokenizer
from pipeline.finetuning.loop import checkpoints, finetune
from pipeline.finetuning.prediction import Finetuned
from pipeline.finetuning.run import FinetuningRun
from pipeline.finetuning.settings import FinetuningSettings
from pipeline.finetuning.start import publish_start
from pipeline.storage import MANIFEST, Output, Store
from tests.pipeline import encoders
from tests.pipeline.finetuning import data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("finetuning") / "store"))


@pytest.fixture(scope="module")
def encoder(store: Store) -> Output:
    return encoders.publish_encoder(store, "bert", encoders.wordpiece())


def train(run: FinetuningRun, folder: Path) -> dict[str, Any]:
    """Fine-tune into a new folder. Returns what was measured."""
    folder.mkdir(parents=True)
    run.save()
    finetune(run, folder)
    facts: dict[str, Any] = json.loads((Path(run.work) / "facts.json").read_text("utf-8"))
    return facts


def test_sentences(store: Store, encoder: Output, tmp_path: Path) -> None:
    run = data.plan(store, encoder, tmp_path, "classification", data.write_tsv(tmp_path / "a.tsv", data.sentences(200)), epochs=8)
    facts = train(run, tmp_path / "out")
    assert facts["labels"] == ["crane", "river"]
    assert facts["held_out"]["accuracy"] > 0.9
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, facts["steps"] + 1))
    rates = [row["learning_rate"] for row in rows if row["kind"] == "train"]
    assert rates[0] > 0 and max(rates) == pytest.approx(1e-2) and rates[-1] < rates[-2] < 1e-3
    assert len([row for row in rows if row["kind"] == "held_out"]) == 8
    model = Finetuned.load(tmp_path / "out")
    (found,) = model.predict([("he saw the crane", None)])
    assert found["label"] == "crane"
    assert sum(found["probabilities"].values()) == pytest.approx(1)


def test_pairs_by_both_texts(store: Store, encoder: Output, tmp_path: Path) -> None:
    run = data.plan(store, encoder, tmp_path, "pair_classification", data.write_tsv(tmp_path / "a.tsv", data.pairs(200)), epochs=8)
    assert train(run, tmp_path / "out")["held_out"]["accuracy"] > 0.9
    model = Finetuned.load(tmp_path / "out")
    assert [found["label"] for found in model.predict([("crane the", "old crane"), ("crane the", "old river")])] == ["1", "0"]


def test_answers_over_windows(store: Store, encoder: Output, tmp_path: Path) -> None:
    run = data.plan(store, encoder, tmp_path, "question_answering", data.write_json(tmp_path / "a.json", data.squad(120)), epochs=10)
    facts = train(run, tmp_path / "out")
    assert facts["held_out"]["f1"] > 0.8
    context = "The water near blue old trees " * 10 + "is Crane"  # of more tokens than a row has
    (found,) = Finetuned.load(tmp_path / "out").predict([("what is flying ?", context)])
    assert found["answer"] == context[found["start"] : found["end"]] == "Crane"
    assert 0 < found["probability"] <= 1


def test_a_question_without_an_answer(store: Store, encoder: Output, tmp_path: Path) -> None:
    values = data.squad(150, impossible=True)
    run = data.plan(store, encoder, tmp_path, "question_answering", data.write_json(tmp_path / "a.json", values), epochs=10)
    assert train(run, tmp_path / "out")["held_out"]["f1"] > 0.8
    model = Finetuned.load(tmp_path / "out")
    nothing, something = model.predict([("what is flying ?", "the old blue sky over trees"), ("what is flying ?", "the sky is river")])
    assert (nothing["answer"], nothing["start"], nothing["end"]) == ("", 0, 0)
    assert something["answer"] == "river"


def test_one_seed_gives_one_model(store: Store, encoder: Output, tmp_path: Path) -> None:
    file = data.write_tsv(tmp_path / "a.tsv", data.sentences(60))
    weights = []
    for number, seed in enumerate((0, 0, 1)):
        run = data.plan(store, encoder, tmp_path / f"work{number}", "classification", file, epochs=1, seed=seed, dropout=0.1)
        train(run, tmp_path / f"out{number}")
        weights.append((tmp_path / f"out{number}" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_killed_one_goes_on_from_its_checkpoint_bit_for_bit(store: Store, encoder: Output, tmp_path: Path) -> None:
    file = data.write_tsv(tmp_path / "a.tsv", data.sentences(400))
    settings = {"epochs": 6, "dropout": 0.1, "learning_rate": 1e-3}
    quiet = data.plan(store, encoder, tmp_path / "quiet", "classification", file, **settings)
    wanted = train(quiet, tmp_path / "out")
    run = data.plan(store, encoder, tmp_path / "killed", "classification", file, checkpoint_every_steps=7, **settings)
    assert run.key == quiet.key, "how often it saves changes nothing"
    command = [sys.executable, "-m", "pipeline.finetuning", str(run.save()), str(tmp_path / "left")]
    (tmp_path / "left").mkdir()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    published, deadline = Path(run.store) / "checkpoints" / run.key, time.monotonic() + 60
    while len(list(published.glob(f"*/{MANIFEST}"))) < 2 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    assert child.wait() == -signal.SIGKILL, "it was amid its work"
    newest = sorted(published.glob(f"*/{MANIFEST}"))[-1].parent
    (newest / "state.safetensors").write_bytes(b"damaged")
    (tmp_path / "again").mkdir()
    done = subprocess.run([*command[:-1], str(tmp_path / "again")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"going on from the checkpoint of step \d+\n", done.stdout)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    assert json.loads((Path(run.work) / "facts.json").read_text("utf-8"))["held_out"] == wanted["held_out"]
    checkpoints(run).delete_after(-1)
    assert not list(published.glob("*"))


def test_the_head_starts_from_the_pretrained_pooler_and_a_frozen_encoder_stays(store: Store, encoder: Output, tmp_path: Path) -> None:
    file = data.write_tsv(tmp_path / "a.tsv", data.sentences(60))
    run = data.plan(store, encoder, tmp_path / "work", "classification", file, epochs=1, freeze_encoder=True, learning_rate=1e-9)
    train(run, tmp_path / "frozen")
    train(data.baseline(run, tmp_path / "work"), tmp_path / "random")
    before, frozen, random = (
        load_file(Path(place) / "model.safetensors") for place in (encoder.address, tmp_path / "frozen", tmp_path / "random")
    )
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(before[name], frozen[name])
    assert torch.allclose(before["bert.pooler.dense.weight"], frozen["bert.pooler.dense.weight"], atol=1e-6)
    assert not torch.allclose(before[name], random[name], atol=0.01)


def test_what_an_encoder_cannot_do_is_one_line(store: Store, encoder: Output, tmp_path: Path) -> None:
    file = data.write_tsv(tmp_path / "a.tsv", data.sentences(20))
    run = data.plan(store, encoder, tmp_path / "work", "classification", file, max_length=65)
    with pytest.raises(TrainingError, match=r"finetuning.max_length: got 65, wanted at most 64, what the encoder takes"):
        train(run, tmp_path / "out")
    with pytest.raises(SettingsError, match=r"finetuning.doc_stride: got 32, wanted at most 20"):
        FinetuningSettings(max_length=40, doc_stride=32).check("question_answering")
    with pytest.raises(TrainingError, match=r"no config.json here; wanted an encoder folder"):
        publish_start(store, tmp_path)


def changed(encoder: Output, folder: Path, **values: Any) -> Path:
    """An encoder folder of nobody's with other values in its configuration."""
    shutil.copytree(encoder.address, folder)
    (folder / MANIFEST).unlink()
    config = json.loads((folder / "config.json").read_text("utf-8")) | values
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 10**6}, r"word_embeddings.weight \(\d+, 16\), wanted \(1000000, 16\)"),
        ({"hidden_size": "16"}, r"hidden_size '16', wanted a number from 1 on"),
        ({"num_attention_heads": 3}, r"hidden_size 16, wanted a multiple of num_attention_heads 3"),
        ({"model_type": "roberta"}, r"model_type 'roberta', wanted 'bert'"),
    ],
)
def test_an_encoder_folder_that_does_not_fit_is_one_line(encoder: Output, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=f"^encoder: .*{message}"):
        publish_start(Store(str(tmp_path / "store")), changed(encoder, tmp_path / "changed", **values))


def test_the_weights_of_a_bare_model_are_taken(encoder: Output, tmp_path: Path) -> None:
    folder = changed(encoder, tmp_path / "bare")
    named = {
        name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items() if name.startswith("bert.")
    }
    save_file(named, folder / "model.safetensors")
    start = publish_start(Store(str(tmp_path / "store")), folder)
    found = load_file(Path(start.address) / "model.safetensors")
    assert all(torch.equal(found[f"bert.{name}"], value) for name, value in named.items())


def test_a_manifest_that_leads_out_of_its_folder_is_refused(encoder: Output, tmp_path: Path) -> None:
    shutil.copytree(encoder.address, tmp_path / "out")
    head = json.loads((tmp_path / "out" / MANIFEST).read_text("utf-8"))
    head["files"][0]["name"] = "../../x"
    for values, message in ((head, r"lists '../../x'; wanted names of files in it"), ({"stage": "encoder"}, "manifest.json")):
        (tmp_path / "out" / MANIFEST).write_text(json.dumps(values), "utf-8")
        with pytest.raises(DamagedOutputError, match=message):
            publish_start(Store(str(tmp_path / "store")), tmp_path / "out")


def test_threads_do_not_change_each_others_rows(encoder: Output) -> None:
    """MLflow's server answers each request in a thread, by one model."""
    rows = Rows(*open_tokenizer(Path(encoder.address)), max_length=16, doc_stride=4)
    questions = [("what is flying ?", "the old crane " * 40)] * 20
    wanted = [[window.row for window in found] for found in rows.windows(questions)]

    def work(_: int) -> bool:
        list(rows.of([("a crane " * 40, None)]))
        return [[window.row for window in found] for found in rows.windows(questions)] == wanted

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


def test_an_input_is_named_by_its_own_number(encoder: Output, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = data.plan(store, encoder, tmp_path, "question_answering", data.write_json(tmp_path / "a.json", data.squad(20)), epochs=1)
    train(run, tmp_path / "out")
    monkeypatch.setattr("pipeline.finetuning.prediction._AT_ONCE", 2)
    asked = [("what ?", "a crane")] * 5 + [("what ?", "\u200b")]
    with pytest.raises(EncodingError, match=r"^line 6: its context has no token"):
        list(Finetuned.load(tmp_path / "out").predict(asked, where=lambda number: f"line {number + 1}: "))


def test_an_encoder_from_elsewhere_keeps_its_key(encoder: Output, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    output = publish_start(store, Path(encoder.address))
    assert (output.stage, output.key) == ("encoder", encoder.key)
    assert output.manifest["files"] == encoder.manifest["files"]
    other = tmp_path / "changed"
    other.mkdir()
    for path in Path(encoder.address).iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text((other / "config.json").read_text("utf-8") + " ", "utf-8")
    with pytest.raises(DamagedOutputError, match=r"config.json: sha256 .*, wanted .*; fetch it again"):
        publish_start(Store(str(tmp_path / "another")), other)
    (other / "manifest.json").unlink()  # an encoder of nobody's
    assert publish_start(store, other).stage == "pretrained"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("a crane", "a river"), "input 0: got 2 texts; wanted one text, the model being one of classification"),
        ((" ", None), "input 0: got an empty text"),
        (("a \ud800", None), "input 0: got 'a .ud800', which is not valid text"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(entry: Any, message: str, sentence_model: Finetuned) -> None:
    with pytest.raises(EncodingError, match=message):
        list(sentence_model.predict([entry]))


def test_a_folder_of_something_else_is_one_line(encoder: Output, tmp_path: Path) -> None:
    for folder, message in ((tmp_path, "no config.json here"), (Path(encoder.address), "has no section finetuning; wanted a fine-tuned")):
        with pytest.raises(EncodingError, match=message):
            Finetuned.load(folder)


def test_text_alone_and_among_others_gives_the_same(sentence_model: Finetuned) -> None:
    texts = [("a crane", None), ("the old man saw many small birds near blue water", None), ("river", None)]
    together = sentence_model.class_logits(texts)
    alone = torch.cat([sentence_model.class_logits([text]) for text in texts])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.fixture(scope="module")
def sentence_model(store: Store, encoder: Output, tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    folder = tmp_path_factory.mktemp("sentences")
    train(
        data.plan(store, encoder, folder, "classification", data.write_tsv(folder / "a.tsv", data.sentences(40)), epochs=1), folder / "out"
    )
    return Finetuned.load(folder / "out")
