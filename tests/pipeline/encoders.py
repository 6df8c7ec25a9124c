"""Encoders of random weights, exported as a finished run's is, and what transformers makes of a folder."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from pipeline.data.tokenizer import Vocabulary
from pipeline.data.wordpiece import train_wordpiece
from pipeline.export import export_encoder
from pipeline.model.encoder import EncoderShape
from pipeline.model.pretraining import BertForPretraining
from pipeline.storage import Output, Recipe, Store, digest
from pipeline.tensors import save_tensors
from tests.conftest import WORDS

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 64,
}
_LATIN = ["naïve", "Crème", "brûlée", "Ångström", "şimdi", "ﬁne", "e\u0301te", "I\u0307"]
_OTHERS = ["日本語", "中文字", "العربية", "مُحَمَّد", "привет", "Ёлка", "🙂", "👩\u200d👧"]
UNICODE = [*_LATIN, *_OTHERS]
_TEXTS = [" ".join([*WORDS, *WORDS, *UNICODE, "A Crane's wing, 3.14! re-read (it)"])] * 3


def wordpiece(*, lowercase: bool = True, size: int = 300) -> Tokenizer:
    """A tokenizer trained on a few words in several scripts."""
    return train_wordpiece(lambda: _TEXTS, size, lowercase=lowercase)


def words() -> Tokenizer:
    """The deck's tokenizer of a few words."""
    return Vocabulary.of_words(dict.fromkeys(WORDS, 5), 1).tokenizer


def random_model(shape: EncoderShape, seed: int = 0) -> BertForPretraining:
    """Every parameter drawn wide, norms and biases too, so that none can be left out unseen."""
    torch.manual_seed(seed)
    model = BertForPretraining(shape).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def publish_vocabulary(store: Store, tokenizer: Tokenizer) -> Output:
    """As the vocabulary stage does."""
    text = tokenizer.to_str()

    def build(folder: Path) -> dict[str, Any]:
        (folder / "tokenizer.json").write_text(text, "utf-8")
        return {"size": tokenizer.get_vocab_size()}

    return store.make(Recipe("vocabulary", 1, {}, {"tokenizer": digest(text.encode())}), build)


def publish_encoder(store: Store, architecture: str, tokenizer: Tokenizer) -> Output:
    """An encoder of random weights."""
    vocabulary = publish_vocabulary(store, tokenizer)
    model = {"architecture": architecture, **SIZES}

    def build(folder: Path) -> dict[str, Any]:
        shape = EncoderShape(vocab_size=vocabulary.facts["size"], **model)
        save_tensors(folder / "model.safetensors", random_model(shape).state_dict())
        return {"parameters": 0}

    run = store.make(Recipe("run", 1, {"model": model}, {"vocabulary": vocabulary.key}), build)
    return export_encoder(store, run, vocabulary, vocabulary)


@dataclass(frozen=True)
class Seen:
    """What transformers found in a folder, in a process of its own."""

    folder: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text("utf-8"))

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "tensors.safetensors")


def in_transformers(work: Path, **job: Any) -> None:
    """Have `transformers_peer.py` do a job, where this project is not on the path."""
    if find_spec("transformers") is None:
        pytest.skip("needs transformers: .venv/bin/pip install transformers")
    work.mkdir(parents=True, exist_ok=True)
    (work / "job.json").write_text(json.dumps(job), "utf-8")
    command = [sys.executable, str(Path(__file__).with_name("transformers_peer.py")), str(work / "job.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=work, env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
