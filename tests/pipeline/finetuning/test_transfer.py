"""What pretraining is worth: an encoder that has read two articles of WikiText-2 tells their words apart, random weights do not.

Fine-tuning sees half of the words that one of the two articles alone has; the held-out rows are made of the other half. So
nothing but what pretraining has learnt of a word can say where it belongs.
"""

import json
import random
import re
import zipfile
from collections import Counter
from pathlib import Path

from pipeline.export import export_encoder
from pipeline.finetuning.labelled import Columns, publish_labelled
from pipeline.finetuning.loop import finetune
from pipeline.finetuning.run import FACTS, FinetuningRun
from pipeline.finetuning.settings import FinetuningSettings
from pipeline.settings import load_preset
from pipeline.storage import Output, Store
from tests.conftest import build, publish_text, train_in_a_child
from tests.pipeline.finetuning.data import baseline, write_tsv

MARGIN = 0.2  # of accuracy, by which pretrained weights are better
ROWS, WORDS_A_ROW = 150, 12  # of each article
MIN_COUNT = 4  # of a word in its article
LENGTH = 64


def longest_articles(wikitext2: str, count: int) -> list[str]:
    """The longest articles of the training split."""
    if Path(wikitext2).is_dir():
        text = (Path(wikitext2) / "wiki.train.tokens").read_text("utf-8")
    else:
        with zipfile.ZipFile(wikitext2) as archive:
            text = archive.read("wikitext-2/wiki.train.tokens").decode()
    return sorted(re.split(r"(?m)^(?= = [^=\n]+ = $)", text)[1:], key=len, reverse=True)[:count]


def write_rows(folder: Path, articles: list[str]) -> tuple[Path, Path]:
    """Rows of words that one article alone has; those for training and those held out share no word."""
    counts = [Counter(article.lower().split()) for article in articles]
    everywhere = sum(counts, Counter())
    rng = random.Random(0)
    rows: dict[str, list[dict[str, str]]] = {"train": [], "held_out": []}
    for number, own in enumerate(counts):
        words = sorted(word for word, count in own.items() if count >= MIN_COUNT and count == everywhere[word] and word.isalpha())
        rng.shuffle(words)
        half = len(words) // 2
        for part, known in (("train", words[:half]), ("held_out", words[half:])):
            rows[part] += [{"text": " ".join(rng.sample(known, WORDS_A_ROW)), "label": f"article {number}"} for _ in range(ROWS)]
    return write_tsv(folder / "train.tsv", rows["train"]), write_tsv(folder / "held_out.tsv", rows["held_out"])


def pretrain(store: Store, articles: list[str], work: Path) -> Output:
    """One layer of the published architecture, for some hundred steps at a high learning rate."""
    model = {"architecture": "bert", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": LENGTH}
    pairs = {"pairs": "none", "max_length": LENGTH, "max_predictions_per_seq": 20, "masking": "dynamic"}
    preset = load_preset("tiny").override(
        vocabulary={"min_count": 3},
        text={"documents": "article"},
        shards={"buckets": 1, "held_out_buckets": 1, **pairs},
        model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **model},
        training={"steps": 600, "batch_size": 64, "optimizer": "adamw", "learning_rate": 5e-3, "warmup_ratio": 0.1, "schedule": "linear"},
    )
    quick = {"evaluate_every": 0, "checkpoint_every_seconds": 0.0, "device": "cpu", "precision": "fp32"}
    built = build(store, publish_text(store, "".join(articles), articles[0]), preset)
    run = built.write_run(work, **quick)
    done = train_in_a_child(run)
    assert done.returncode == 0, done.stderr
    finished = store.find("run", run.key)
    assert finished is not None
    return export_encoder(store, finished, built.vocabulary, built.corpus)


def test_a_pretrained_encoder_beats_random_weights(wikitext2: str, tmp_path: Path) -> None:
    store, articles = Store(str(tmp_path / "store")), longest_articles(wikitext2, 2)
    encoder = pretrain(store, articles, tmp_path / "pretraining")
    train, held_out = write_rows(tmp_path, articles)
    labelled = publish_labelled(store, "classification", str(train), str(held_out), Columns(), 0.1)
    settings = FinetuningSettings(epochs=4, batch_size=16, learning_rate=1e-3, max_length=32, device="cpu", precision="fp32")
    inputs = {"encoder": encoder.key, "labelled": labelled.key}
    run = FinetuningRun(store.root, "", encoder.address, labelled.address, inputs, "classification", False, settings).at(tmp_path / "work")
    accuracy = []
    for which in (run, baseline(run, tmp_path / "work")):
        which.save()
        (Path(which.work) / "out").mkdir()
        finetune(which, Path(which.work) / "out")
        accuracy.append(json.loads((Path(which.work) / FACTS).read_text("utf-8"))["held_out"]["accuracy"])
    pretrained, random_weights = accuracy
    assert pretrained > 0.8
    assert pretrained >= random_weights + MARGIN
