"""What pretraining is worth: the same head on an encoder of WikiText-2 and on random weights of its shape.

    python own_finetuning.py ENCODER WIKITEXT2 [SEEDS]

The task is made from WikiText-2's test split, which no pretraining saw: whether the words of a sentence stand in their order,
or each two neighbours have changed places. The words alone say nothing. 400 sentences to train on, 1,000 held out. Prints one
JSON object: held-out accuracy of each seed, and the medians.
"""

import dataclasses
import json
import random
import statistics
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.finetuning.labelled import Columns, publish_labelled
from pipeline.finetuning.loop import finetune
from pipeline.finetuning.run import FACTS, FinetuningRun
from pipeline.finetuning.settings import CLASSIFICATION, FinetuningSettings
from pipeline.finetuning.start import publish_start
from pipeline.storage import Store

TRAIN, HELD_OUT = 400, 1000
SHORTEST, LONGEST = 8, 30  # words
SETTINGS = FinetuningSettings(epochs=4, batch_size=16, learning_rate=3e-4, dropout=0.0, max_length=64, device="cpu")


def sentences(address: str) -> list[list[str]]:
    """The words of the test split's sentences, of a middle length, in an order of their own."""
    path = Path(address)
    if path.is_dir():
        text = next(path.rglob("wiki.test.tokens")).read_text("utf-8")
    else:
        with zipfile.ZipFile(path) as packed:
            text = packed.read(next(name for name in packed.namelist() if name.endswith("wiki.test.tokens"))).decode()
    lines = [line.strip() for line in text.splitlines() if not line.strip().startswith("=")]
    found = [words for line in lines for part in line.split(" . ") if SHORTEST <= len(words := part.split()) <= LONGEST]
    random.Random(0).shuffle(found)
    return found


def swapped(words: Sequence[str]) -> list[str]:
    """Each two neighbours in each other's place."""
    changed = list(words)
    for place in range(0, len(words) - 1, 2):
        changed[place], changed[place + 1] = words[place + 1], words[place]
    return changed


def write_task(path: Path, rows: Sequence[Sequence[str]]) -> str:
    """Every second sentence is swapped."""
    lines = [f"{' '.join(swapped(row) if number % 2 else row)}\t{('whole', 'swapped')[number % 2]}" for number, row in enumerate(rows)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    return str(path)


def accuracies(encoder: Path, address: str, seeds: int, folder: Path) -> dict[str, list[float]]:
    """Held-out accuracy by seed, from the encoder's weights and from random ones.

    :param folder: an empty one to work in.
    """
    store, found = Store(str(folder / "store")), sentences(address)
    train, held_out = write_task(folder / "train.tsv", found[:TRAIN]), write_task(folder / "held_out.tsv", found[TRAIN : TRAIN + HELD_OUT])
    start = publish_start(store, encoder)
    labelled = publish_labelled(store, CLASSIFICATION, train, held_out, Columns(), SETTINGS.held_out_share)
    inputs = {"encoder": start.key, "labelled": labelled.key}
    result: dict[str, list[float]] = {}
    for kind in ("pretrained", "random"):
        for seed in range(seeds):
            settings = dataclasses.replace(SETTINGS, seed=seed)
            run = FinetuningRun(store.root, "", start.address, labelled.address, inputs, CLASSIFICATION, kind == "random", settings)
            run = run.at(folder / "work")
            out = folder / f"{kind}-{seed}"
            out.mkdir()
            run.save()
            finetune(run, out)
            facts = json.loads((Path(run.work) / FACTS).read_text("utf-8"))
            result.setdefault(kind, []).append(facts["held_out"]["accuracy"])
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        measured = accuracies(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3, Path(name))
    print(json.dumps({**measured, **{f"{kind}_median": statistics.median(values) for kind, values in measured.items()}}))
