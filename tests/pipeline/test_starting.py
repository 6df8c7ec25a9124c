"""Checkpoints that transformers saved, as the start of a run."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.data.build import build_shards
from pipeline.data.vocabulary import build_vocabulary
from pipeline.encoder_format import HEADS, from_transformers
from pipeline.encoding import Encoder
from pipeline.errors import TrainingError
from pipeline.export import export_encoder
from pipeline.settings import Preset
from pipeline.starting import open_pretrained, publish_pretrained
from pipeline.storage import Output, Store
from pipeline.training.run import plan_run
from tests.pipeline.encoders import SIZES, Seen, in_transformers, wordpiece

ROWS = [["a crane is flying"], ["a crane driver came", "he just left"]]
KINDS = {"whole": "BertForPreTraining", "masked": "BertForMaskedLM", "bare": "BertModel"}


@dataclass(frozen=True)
class Brought:
    """Checkpoints of one model with and without heads, and a store with the vocabulary that is theirs."""

    folder: Path
    store: Store
    preset: Preset
    vocabulary: Output
    seen: Seen

    def publish(self, name: str | Path = "whole", **model: object) -> Output:
        return publish_pretrained(self.store, str(self.folder / name), self.vocabulary, self.preset.override(model=model))

    def copy(self, folder: Path, name: str = "whole") -> Path:
        return Path(shutil.copytree(self.folder / name, folder / "copy"))

    def weights(self, output: Output) -> dict[str, torch.Tensor]:
        shape = open_pretrained(str(self.folder / "whole")).shape
        return from_transformers(load_file(f"{output.address}/model.safetensors"), shape, output.facts["missing_heads"])


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory, small_preset: Preset) -> Brought:
    work = tmp_path_factory.mktemp("checkpoints")
    (work / "tokenizer.json").write_text(wordpiece().to_str(), "utf-8")
    config = {"vocab_size": wordpiece().get_vocab_size(), **SIZES}
    whole, out = str(work / "whole"), str(work / "seen")
    in_transformers(
        work,
        make=[{"folder": str(work), "tokenizer": str(work / "tokenizer.json"), "config": config, "kinds": KINDS}],
        look=[{"folder": whole, "out": out, "rows": ROWS, "texts": [], "masked": ["a [MASK] is flying"]}],
    )
    preset = small_preset.override(vocabulary={"kind": "file", "file": f"{whole}/tokenizer.json"}, model={"architecture": "bert", **SIZES})
    store = Store(str(work / "store"))
    return Brought(work, store, preset, build_vocabulary(store, None, preset), Seen(work / "seen"))


@pytest.fixture
def shards(brought: Brought, publish: Callable[..., Output], text: Callable[[int, int], str]) -> tuple[Output, Output, Output]:
    """A small corpus, and its shards by the checkpoint's vocabulary."""
    corpus = publish(brought.store, text(40, 1), text(10, 2))
    return corpus, *(build_shards(brought.store, corpus, brought.vocabulary, split, brought.preset) for split in ("train", "valid"))


def trained(brought: Brought, train: Callable, shards: tuple, start: Output | None, work: Path) -> Output:
    """One step that moves next to nothing, from a start."""
    preset = brought.preset.override(training={"steps": 1, "learning_rate": 1e-12})
    run = plan_run(brought.store, preset, shards[1], shards[2], work, start).save()
    assert run.encoder == (start.address if start else "")
    done = train(run)
    assert done.returncode == 0, done.stderr
    found = brought.store.find("run", run.key)
    assert found is not None
    return found


def test_a_run_starts_from_it_and_exports_the_same_model(brought: Brought, shards, train, tmp_path: Path) -> None:
    start = brought.publish()
    assert start.stage == "pretrained" and start.manifest["inputs"] == {"vocabulary": brought.vocabulary.key}
    assert start.facts["missing_heads"] == [] and brought.publish().found
    run = trained(brought, train, shards, start, tmp_path)
    assert run.manifest["inputs"]["encoder"] == start.key
    encoder = Encoder.load(export_encoder(brought.store, run, brought.vocabulary, shards[0]).address)
    for number, row in enumerate(ROWS):
        hidden = encoder.encode(*row)
        torch.testing.assert_close(hidden, brought.seen.tensors[f"hidden.{number}"], atol=1e-5, rtol=0)
        with torch.inference_mode():
            mlm, nsp = encoder.model.masked_lm(hidden[0]), encoder.model.next_sentence(hidden[:, 0])
        torch.testing.assert_close(mlm, brought.seen.tensors[f"mlm.{number}"][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(nsp, brought.seen.tensors[f"nsp.{number}"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "missing"), [("bare", {"masked_lm", "next_sentence.classifier"}), ("masked", set(HEADS) - {"masked_lm"})])
def test_missing_heads_are_named_and_start_at_random(
    brought: Brought, shards, train, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, missing: set[str]
) -> None:
    with caplog.at_level(logging.INFO):
        start = brought.publish(name)
    assert set(start.facts["missing_heads"]) == missing
    assert all(head in caplog.text for head in missing) and "start at random" in caplog.text
    whole = brought.weights(brought.publish())
    from_it, from_nothing = (
        load_file(f"{trained(brought, train, shards, begin, tmp_path).address}/model.safetensors") for begin in (start, None)
    )
    for parameter, value in from_it.items():
        wanted = from_nothing if parameter.startswith(tuple(missing)) else whole
        torch.testing.assert_close(value, wanted[parameter], atol=1e-6, rtol=0)


def test_another_address_is_the_same_start_and_other_weights_are_another(brought: Brought, tmp_path: Path) -> None:
    folder = brought.copy(tmp_path)
    remote = fsspec.filesystem("memory")
    remote.put(f"{folder}/", "memory://checkpoint/", recursive=True)
    assert publish_pretrained(brought.store, "memory://checkpoint/", brought.vocabulary, brought.preset).key == brought.publish().key
    weights = load_file(folder / "model.safetensors")
    weights["cls.seq_relationship.bias"] += 1
    save_file(weights, folder / "model.safetensors")
    other = brought.publish(folder)
    assert other.key != brought.publish().key
    mine, theirs = (brought.weights(output)["next_sentence.classifier.bias"] for output in (other, brought.publish()))
    torch.testing.assert_close(mine, theirs + 1)


def test_old_names_half_precision_and_other_heads_are_read(brought: Brought, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = brought.copy(tmp_path)
    named = {name: value.half() for name, value in load_file(folder / "model.safetensors").items()}
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in named.items()
    }
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    extra = {"bert.embeddings.position_ids": torch.arange(64)[None], "classifier.weight": torch.zeros(3, 16)}
    save_file(old | extra, folder / "model.safetensors")
    with caplog.at_level(logging.INFO):
        output = brought.publish(folder)
    assert "ignored bert.embeddings.position_ids, classifier.weight" in caplog.text
    found, wanted = brought.weights(output), brought.weights(brought.publish())
    assert found.keys() == wanted.keys() and all(value.dtype == torch.float32 for value in found.values())
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name].half().float(), atol=0, rtol=0)


def test_sizes_that_differ_are_named_with_both_values(brought: Brought) -> None:
    with pytest.raises(TrainingError, match=r"has num_hidden_layers 2 \(wanted 3\), hidden_size 16 \(wanted 32\);"):
        brought.publish(num_hidden_layers=3, hidden_size=32)
    with pytest.raises(TrainingError, match=r"has architecture bert \(wanted deck\)"):
        brought.publish(architecture="deck")
    assert brought.publish(hidden_dropout_prob=0.3).key == brought.publish().key


def test_a_start_of_another_architecture_is_refused_by_the_run(brought: Brought, shards, tmp_path: Path) -> None:
    deck = brought.preset.override(model={"architecture": "deck"})
    with pytest.raises(TrainingError, match=r"pretrained \w+ has architecture bert \(wanted deck\)"):
        plan_run(brought.store, deck, shards[1], shards[2], tmp_path, brought.publish())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta', wanted 'bert'"),
        ({"model_type": "bert-deck"}, "model_type 'bert-deck', wanted 'bert'"),
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu_new', wanted 'gelu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05, wanted 1e-12"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key', wanted 'absolute'"),
        ({"is_decoder": True}, "is_decoder True, wanted False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False, wanted True"),
        ({"vocab_size": 30522}, r"vocab_size 30522 \(wanted \d+\)"),
        ({"hidden_size": None}, "hidden_size None, wanted a number from 1 on"),
    ],
)
def test_another_model_is_refused_by_what_differs(brought: Brought, tmp_path: Path, changed: dict, message: str) -> None:
    folder = brought.copy(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(TrainingError, match=message):
        brought.publish(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no config.json here"),
        ("model.safetensors", "no model.safetensors here"),
        ("tokenizer.json", "no tokenizer.json here"),
    ],
)
def test_a_missing_file_is_named(brought: Brought, tmp_path: Path, name: str, message: str) -> None:
    folder = brought.copy(tmp_path)
    (folder / name).unlink()
    with pytest.raises(TrainingError, match=message):
        brought.publish(folder)
    (folder / name).write_bytes(b"\0 no such thing")
    with pytest.raises(TrainingError, match=name):
        brought.publish(folder)


@pytest.mark.parametrize(
    ("beside", "message"), [("pytorch_model.bin", "safe_serialization=True"), ("model.safetensors.index.json", "max_shard_size")]
)
def test_weights_in_another_form_are_to_be_saved_again(brought: Brought, tmp_path: Path, beside: str, message: str) -> None:
    folder = brought.copy(tmp_path)
    (folder / "model.safetensors").rename(folder / beside)
    with pytest.raises(TrainingError, match=message):
        brought.publish(folder)


def test_weights_that_cannot_be_read_are_named(brought: Brought, tmp_path: Path) -> None:
    folder = brought.copy(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(TrainingError, match=rf"warm_start: {folder}/model\.safetensors: cannot be read"):
        brought.publish(folder)


@pytest.mark.parametrize("address", ["nowhere/at/all", "bert-base-uncased", "nosuchscheme://a/b", "memory://nothing"])
def test_an_address_without_a_checkpoint_is_a_clear_error(brought: Brought, address: str) -> None:
    with pytest.raises(TrainingError, match=f"warm_start: {address}"):
        publish_pretrained(brought.store, address, brought.vocabulary, brought.preset)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: named.pop("bert.encoder.layer.1.output.dense.bias"), r"lacks bert\.encoder\.layer\.1\.output\.dense\.bias;"),
        (lambda named: named.pop("cls.predictions.transform.dense.bias"), "lacks cls.predictions.transform.dense.bias"),
        (lambda named: named.pop("bert.embeddings.word_embeddings.weight"), "lacks bert.embeddings.word_embeddings.weight"),
        (lambda named: named.update({"bert.pooler.dense.bias": torch.zeros(8)}), r"pooler.dense.bias \(8,\), wanted \(16,\)"),
        (
            lambda named: named.update({"bert.pooler.dense.bias": torch.full((16,), torch.nan)}),
            "pooler.dense.bias has numbers that are not finite",
        ),
        (lambda named: named.update({"cls.predictions.decoder.weight": torch.zeros(3, 16)}), "wanted tied ones"),
        (lambda named: named.update({"bert.pooler.dense.bias": torch.ones(16, dtype=torch.int8)}), "pooler.dense.bias holds int8, wanted"),
    ],
)
def test_weights_that_are_not_the_configs_are_refused(brought: Brought, tmp_path: Path, change: Callable, message: str) -> None:
    folder = brought.copy(tmp_path)
    named = load_file(folder / "model.safetensors")
    change(named)
    save_file(named, folder / "model.safetensors")
    with pytest.raises(TrainingError, match=message):
        brought.publish(folder)
    published = Path(brought.store.root).glob("pretrained/*")
    assert all((path / "manifest.json").exists() for path in published), "what was refused left nothing behind"


def test_ids_have_to_mean_the_same(brought: Brought, tmp_path: Path) -> None:
    folder = brought.copy(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads((folder / "tokenizer.json").read_text())), "utf-8")
    assert brought.publish(folder).key == brought.publish().key, "other bytes, the same tokens"
    (folder / "tokenizer.json").write_text(wordpiece(lowercase=False).to_str(), "utf-8")
    with pytest.raises(
        TrainingError, match=r"is not vocabulary \w+: .* \(wanted .*; set vocabulary.kind=file and vocabulary.file=.*copy/tokenizer.json"
    ):
        brought.publish(folder)
    cased = json.loads(wordpiece().to_str())
    cased["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(cased), "utf-8")
    with pytest.raises(TrainingError, match=r"normalizer .*'lowercase': False.* \(wanted .*'lowercase': True"):
        brought.publish(folder)
