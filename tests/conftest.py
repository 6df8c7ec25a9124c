"""Corpora and stage outputs that tests share."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.documents import WIKITEXT
from pipeline.data.vocabulary import build_vocabulary
from pipeline.export import export_encoder
from pipeline.settings import Preset, load_preset
from pipeline.storage import Output, Recipe, Store, digest
from pipeline.training.run import RunSettings, plan_run

_TEXT = "a crane is flying driver came he just left the river over old bridge under blue sky and saw many small birds near water"
WORDS = _TEXT.split()


@pytest.fixture(scope="session")
def wikitext2() -> str:
    """The address of the real corpus."""
    if not (address := os.environ.get("WIKITEXT2")):
        pytest.skip("set WIKITEXT2 to wikitext-2-v1.zip, or to a folder of its three texts, to run this test")
    return address


def sentences(count: int, rng: random.Random) -> str:
    """A paragraph of some sentences in WikiText's form."""
    return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) + " ." for _ in range(count))


def random_text(paragraphs: int, seed: int) -> str:
    """A corpus of random paragraphs of 2 to 5 sentences, a blank line between."""
    rng = random.Random(seed)
    return "".join(f" {sentences(rng.randint(2, 5), rng)} \n \n" for _ in range(paragraphs))


@pytest.fixture(scope="session")
def text() -> Callable[[int, int], str]:
    """Makes random corpora from (paragraphs, seed)."""
    return random_text


def publish_text(store: Store, train: str, valid: str = "", form: str = WIKITEXT) -> Output:
    """Publish canonical texts as a corpus, as the corpus stage does."""
    texts = {"train": train, "valid": valid}

    def build(folder: Path) -> dict[str, Any]:
        for split, value in texts.items():
            (folder / f"{split}.tokens").write_text(value, "utf-8")
        return {"form": form}

    return store.make(Recipe("corpus", 1, {}, {split: digest(value.encode()) for split, value in texts.items()}), build)


@pytest.fixture
def publish() -> Callable[..., Output]:
    """Publishes texts as a corpus: (store, train, valid, form)."""
    return publish_text


@dataclass(frozen=True)
class Built:
    """The outputs of all stages up to the shards."""

    store: Store
    preset: Preset
    corpus: Output
    vocabulary: Output
    train: Output
    valid: Output

    def write_run(self, work: Path, **training: Any) -> RunSettings:
        """A run on these shards with some training settings replaced."""
        return plan_run(self.store, self.preset.override(training=training), self.train, self.valid, work).save()


def build(store: Store, corpus: Output, preset: Preset) -> Built:
    """Make the stages between a corpus and its shards."""
    vocabulary = build_vocabulary(store, corpus, preset)
    train, valid = (build_shards(store, corpus, vocabulary, split, preset) for split in ("train", "valid"))
    return Built(store, preset, corpus, vocabulary, train, valid)


@pytest.fixture(scope="session")
def wikitext2_built(wikitext2: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The real corpus, vocabulary and shards, by the tiny preset."""
    store = Store(str(tmp_path_factory.mktemp("wikitext2")))
    return build(store, fetch_corpus(store, wikitext2).output, load_preset("tiny"))


@pytest.fixture(scope="session")
def small_preset() -> Preset:
    """The tiny recipe with sizes for a test."""
    return load_preset("tiny").override(
        vocabulary={"min_count": 2},
        shards={"buckets": 2, "held_out_buckets": 2},
        model={"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64},
        training={"steps": 10, "batch_size": 24, "learning_rate": 1e-3, "device": "cpu", "checkpoint_every_seconds": 0.0},
    )


@pytest.fixture
def small_built(tmp_path: Path, small_preset: Preset) -> Built:
    """A small random corpus of 40 paragraphs, its vocabulary and shards, in a store of the test's own."""
    store = Store(str(tmp_path / "store"))
    return build(store, publish_text(store, random_text(40, 1), random_text(10, 2)), small_preset)


def train_in_a_child(run: RunSettings, *options: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Train as the launcher does: in a child process."""
    command = [sys.executable, "-m", "pipeline.training", str(Path(run.work) / "run.json"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="session")
def train() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Trains a run in a child process."""
    return train_in_a_child


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory: pytest.TempPathFactory, small_preset: Preset) -> Output:
    """An encoder pretrained for a few steps on a small corpus."""
    folder = tmp_path_factory.mktemp("encoder")
    store = Store(str(folder / "store"))
    built = build(store, publish_text(store, random_text(40, 1), random_text(10, 2)), small_preset)
    run = built.write_run(folder / "work", steps=3)
    done = train_in_a_child(run)
    assert done.returncode == 0, done.stderr
    finished = store.find("run", run.key)
    assert finished is not None
    return export_encoder(store, finished, built.vocabulary, built.corpus)
