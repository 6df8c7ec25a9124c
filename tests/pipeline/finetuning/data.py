"""Small labelled data whose answers are plain: a sentence's last word, a word that two sentences share, what stands after `is`."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.finetuning.labelled import Columns, publish_labelled
from pipeline.finetuning.run import FinetuningRun
from pipeline.finetuning.settings import FinetuningSettings
from pipeline.finetuning.start import publish_start
from pipeline.storage import Output, Store
from tests.conftest import WORDS

SUBJECTS = ["crane", "river", "bridge"]
_FILLERS = [word for word in WORDS if word not in SUBJECTS]
QUICK = {"max_length": 32, "doc_stride": 8, "batch_size": 16, "learning_rate": 1e-2, "dropout": 0.0, "device": "cpu"}


def words(rng: random.Random, count: int) -> list[str]:
    return rng.choices(_FILLERS, k=count)


def sentences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The class is the subject, which stands last."""
    rng = random.Random(seed)
    subjects = [SUBJECTS[number % 2] for number in range(count)]
    return [{"text": " ".join([*words(rng, rng.randint(3, 6)), subject]), "label": subject} for subject in subjects]


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The class is whether the second has `crane` in it, as the first has."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        second = "crane" if number % 2 else "river"
        rows.append({"text": " ".join(["crane", *words(rng, 3)]), "text_pair": " ".join([*words(rng, 2), second]), "label": number % 2})
    return rows


def squad(count: int, seed: int = 0, *, impossible: bool = False) -> dict[str, Any]:
    """The answer stands last, after `is`; of every third question, where asked for, there is none."""
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        answer = rng.choice(SUBJECTS)
        context = " ".join([*words(rng, rng.randint(5, 40)), "is", answer])
        missing = impossible and number % 3 == 0
        asked: dict[str, Any] = {"id": f"q{number}", "question": "what is flying ?", "answers": []}
        if missing:
            context = " ".join(words(rng, 10))
        else:
            asked["answers"] = [{"text": answer, "answer_start": len(context) - len(answer)}]
        if impossible:
            asked["is_impossible"] = missing
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "2.0" if impossible else "1.1", "data": [{"title": "Cranes", "paragraphs": paragraphs}]}


def write_tsv(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_json(path: Path, values: Any) -> Path:
    path.write_text(json.dumps(values), "utf-8")
    return path


def plan(store: Store, encoder: Output, work: Path, task: str, train: Path, **settings: Any) -> FinetuningRun:
    """A run on a file of which a share is held out."""
    start = publish_start(store, Path(encoder.address))
    labelled = publish_labelled(store, task, str(train), None, Columns(), 0.2)
    inputs = {"encoder": start.key, "labelled": labelled.key}
    run = FinetuningRun(store.root, "", start.address, labelled.address, inputs, task, False, FinetuningSettings(**QUICK | settings))
    return run.at(work)


def baseline(run: FinetuningRun, work: Path) -> FinetuningRun:
    """The same from random weights."""
    return replace(run, random_encoder=True).at(work)
