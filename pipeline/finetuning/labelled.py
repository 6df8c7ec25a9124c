"""Labelled data -> a published output, the stage `labelled`.

In: TSV, CSV, JSON Lines or Parquet with a label column, or SQuAD's JSON. Out: `train.parquet` and `held_out.parquet`, their
classes and counts. The decision that matters: the key is the digest of the rows, so that the same rows in another form or at
another address are the same data; what is wrong is found here, before anything is trained.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ..addresses import without_credentials
from ..errors import LabelledDataError, some
from ..files import open_file
from ..storage import Output, Recipe, Store
from ..tables import read_table
from .examples import Example, Labelled, from_table, to_table
from .settings import PAIR_CLASSIFICATION, QUESTION_ANSWERING
from .squad import read_squad

FORMAT = 1
STAGE = "labelled"
TRAIN, HELD_OUT = "train", "held_out"
_SHOWN = 10  # classes that a message names
_MOST_CLASSES = 1000  # of more, the column is hardly one of classes


@dataclass(frozen=True)
class Columns:
    """Names of the columns that hold the text, of a pair the second text, and the class."""

    text: str = "text"
    pair: str = "text_pair"
    label: str = "label"


def publish_labelled(store: Store, task: str, train: str, held_out: str | None, columns: Columns, share: float) -> Output:
    """Read, check and publish the data of a task.

    :param train: address of the training data. :param held_out: of what is evaluated on; None: a share of the training data.
    :raises LabelledDataError: names file, row or column, and what is wrong. :raises PipelineError: a file cannot be read.
    """
    shown = {TRAIN: without_credentials(train), HELD_OUT: without_credentials(held_out or train)}
    rows = {TRAIN: _read(task, train, columns)}
    if held_out:
        rows[HELD_OUT] = _read(task, held_out, columns)
    else:
        rows[TRAIN], rows[HELD_OUT] = _split(rows[TRAIN], share)
    for split, found in rows.items():
        if not found:
            how = "" if held_out else f" with finetuning.held_out_share {share:g}"
            raise LabelledDataError(f"{shown[split]}: leaves no row for {split}{how}; give more rows, or held-out data of its own")
    labels = _labels(rows, shown) if task != QUESTION_ANSWERING else []
    digests = {split: _digest(found) for split, found in rows.items()}

    def build(folder: Path) -> dict[str, Any]:
        for split, found in rows.items():
            pq.write_table(to_table(found), folder / f"{split}.parquet", compression="zstd")
        return {"task": task, "labels": labels, **{split: _counts(found) for split, found in rows.items()}}

    recorded = {**{f"{split}_source": address for split, address in shown.items()}, "held_out_given": bool(held_out)}
    return store.make(Recipe(STAGE, FORMAT, {"task": task, **digests}, {}), build, recorded=recorded, verify=True)


def read_labelled(store: Store, output: Output, split: str) -> list[Example]:
    """The rows of a split."""
    with store.local(output) as folder, open_file(str(folder / f"{split}.parquet")) as file:
        return from_table(pq.read_table(file))


def _read(task: str, address: str, columns: Columns) -> list[Example]:
    """The rows of a file, each checked by itself."""
    if task == QUESTION_ANSWERING:
        return list(read_squad(address))
    shown = without_credentials(address)
    pair = columns.pair if task == PAIR_CLASSIFICATION else None
    names = [columns.text, *([pair] if pair else []), columns.label]
    rows: list[Example] = []
    for batch in read_table(address, names):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            for name, value in zip(names, values, strict=True):
                if value is None or not value.strip():
                    raise LabelledDataError(f"{shown}: row {len(rows) + 1}: {name} is empty; wanted {_wanted(name == columns.label)}")
            text, *second, label = values
            rows.append(Labelled(text, second[0] if second else None, label.strip()))
    return rows


def _wanted(of_label: bool) -> str:
    return "a class" if of_label else "text"


def _split(rows: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Rows in two, by the digest of each one's group."""
    bound = int(share * 2**64)
    parts: tuple[list[Example], list[Example]] = ([], [])
    for row in rows:
        parts[int.from_bytes(hashlib.sha256(row.group.encode()).digest()[:8], "little") < bound].append(row)
    return parts


def _labels(rows: dict[str, list[Example]], shown: dict[str, str]) -> list[str]:
    """The classes of the training data, sorted; those of the held-out data are among them."""
    found = sorted({row.label for row in rows[TRAIN] if isinstance(row, Labelled)})
    if len(found) < 2:
        raise LabelledDataError(f"{shown[TRAIN]}: all {len(rows[TRAIN])} training rows have the class {found[0]!r}; wanted two or more")
    if len(found) > _MOST_CLASSES:
        got = f"{len(found):,} classes, such as {some(map(repr, found), _SHOWN)}"
        raise LabelledDataError(f"{shown[TRAIN]}: got {got}; wanted at most {_MOST_CLASSES:,}; see that the label column is the right one")
    known = set(found)
    for number, row in enumerate(rows[HELD_OUT], 1):
        if isinstance(row, Labelled) and row.label not in known:
            where = f"{shown[HELD_OUT]}: held-out row {number} ({row.text!r:.40})"
            raise LabelledDataError(f"{where}: got the class {row.label!r}, which training lacks; it has {some(map(repr, found), _SHOWN)}")
    return found


def _digest(rows: Iterable[Example]) -> str:
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(json.dumps(astuple(row)).encode() + b"\n")
    return hasher.hexdigest()


def _counts(rows: Sequence[Example]) -> dict[str, Any]:
    classes = Counter(row.label for row in rows if isinstance(row, Labelled))
    if classes:
        return {"rows": len(rows), "classes": dict(sorted(classes.items()))}
    return {"rows": len(rows), "impossible": sum(not row.answers for row in rows if not isinstance(row, Labelled))}
