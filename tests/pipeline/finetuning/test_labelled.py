"""Labelled data: the same rows in any form are the same data, and what is wrong is one line that says where."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import PipelineError, SettingsError
from pipeline.finetuning.examples import Labelled, Question
from pipeline.finetuning.labelled import HELD_OUT, TRAIN, Columns, publish_labelled, read_labelled
from pipeline.finetuning.squad import read_squad
from pipeline.storage import Store
from tests.pipeline.finetuning.data import pairs, squad, write_json, write_tsv


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".tsv":
        return write_tsv(path, rows)
    if path.suffix == ".csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in [rows[0].keys(), *(row.values() for row in rows)]), "utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_the_same_rows_in_any_form_are_the_same_data(store: Store, tmp_path: Path) -> None:
    rows = pairs(20)  # whose labels are numbers
    found = [
        publish_labelled(store, "pair_classification", str(write(tmp_path / f"rows.{form}", rows)), None, Columns(), 0.2)
        for form in ("tsv", "csv", "jsonl", "parquet")
    ]
    assert len({output.key for output in found}) == 1
    assert [output.found for output in found] == [False, True, True, True]
    assert found[0].facts["labels"] == ["0", "1"]
    every = read_labelled(store, found[0], TRAIN) + read_labelled(store, found[0], HELD_OUT)
    assert sorted(map(str, every)) == sorted(str(Labelled(row["text"], row["text_pair"], str(row["label"]))) for row in rows)


def test_columns_have_the_names_that_are_given(store: Store, tmp_path: Path) -> None:
    rows = [{"gold": row["label"], "sentence1": row["text"], "other": "x", "sentence2": row["text_pair"]} for row in pairs(20)]
    train = str(write_tsv(tmp_path / "a.tsv", rows))
    plain = str(write_tsv(tmp_path / "b.tsv", pairs(20)))
    renamed = publish_labelled(store, "pair_classification", train, None, Columns("sentence1", "sentence2", "gold"), 0.2)
    assert renamed.key == publish_labelled(store, "pair_classification", plain, None, Columns(), 0.2).key


def test_rows_of_one_group_are_on_one_side(store: Store, tmp_path: Path) -> None:
    rows = [row | {"text": f"premise {number // 3}"} for number, row in enumerate(pairs(300))]
    output = publish_labelled(store, "pair_classification", str(write_tsv(tmp_path / "a.tsv", rows)), None, Columns(), 0.2)
    train, held_out = ({row.group for row in read_labelled(store, output, split)} for split in (TRAIN, HELD_OUT))
    assert not train & held_out
    assert len(held_out) == pytest.approx(20, abs=12)
    questions = publish_labelled(store, "question_answering", str(write_json(tmp_path / "a.json", squad(50))), None, Columns(), 0.2)
    assert questions.facts[TRAIN]["rows"] + questions.facts[HELD_OUT]["rows"] == 50
    assert all(isinstance(row, Question) for row in read_labelled(store, questions, TRAIN))


GOOD = [("a crane", "x"), ("a river", "y"), ("an old crane", "x"), ("a blue sky", "y")]


def table(*rows: tuple[str, str], header: str = "text\tlabel") -> str:
    return "\n".join([header, *("\t".join(row) for row in rows)]) + "\n"


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        (table(*GOOD, header="text\tclass"), None, r"train.tsv: its columns are text, class; wanted one column `label`"),
        (table(*GOOD, ("a bird", " ")), None, r"train.tsv: row 5: label is empty; wanted a class"),
        (table(GOOD[0], (" ", "y")), None, r"train.tsv: row 2: text is empty; wanted text"),
        (table(("a", "x"), ("b", "x")), table(("c", "x")), r"train.tsv: all 2 training rows have the class 'x'; wanted two or more"),
        (table(*GOOD), table(("a", "x"), ("b", "z")), r"held_out.tsv: held-out row 2 \('b'\): got the class 'z', which training lacks"),
        (table(*GOOD), table(), r"held_out.tsv: leaves no row for held_out; give more rows"),
        (table(GOOD[0]), None, r"train.tsv: leaves no row for held_out with finetuning.held_out_share 0.1"),
        (table(*((str(n), str(n)) for n in range(1500))), table(("1", "1")), r"train.tsv: got 1,500 classes, .*label column is the right"),
    ],
    ids=["column", "label", "text", "one class", "unknown class", "nothing held out", "too few", "no classes"],
)
def test_what_is_wrong_with_a_table_is_one_line(store: Store, tmp_path: Path, train: str, held_out: str | None, message: str) -> None:
    (tmp_path / "train.tsv").write_text(train, "utf-8")
    if held_out:
        (tmp_path / "held_out.tsv").write_text(held_out, "utf-8")
    given = str(tmp_path / "held_out.tsv") if held_out else None
    with pytest.raises(PipelineError, match=message) as caught:
        publish_labelled(store, "classification", str(tmp_path / "train.tsv"), given, Columns(), 0.1)
    assert "\n" not in str(caught.value)


def asked(**changed: Any) -> dict[str, Any]:
    entry = {"id": "q1", "question": "what flies ?", "answers": [{"text": "crane", "answer_start": 2}]} | changed
    return {"data": [{"title": "", "paragraphs": [{"context": "a crane flies", "qas": [entry]}]}]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (asked(answers=[{"text": "crane", "answer_start": 3}]), r"question 'q1': the answer 'crane' does not stand at 3, where 'rane ' "),
        (asked(answers=[{"text": "crane", "answer_start": -11}]), r"question 'q1': the answer 'crane' does not stand at -11"),
        (asked(answers=[{"text": "", "answer_start": 2}]), r"question 'q1': the answer '' does not stand at 2"),
        (asked(answers=[]), r"question 'q1': has no answer; wanted one, or is_impossible: true"),
        (asked(question=" "), r"question 'q1': its question is empty"),
        (asked(answers=[{"text": "crane"}]), r"after question 'q1': KeyError: 'answer_start'; wanted SQuAD's form"),
        (asked(is_impossible="false"), r"after question 'q1': TypeError: is_impossible is 'false', wanted true or false"),
        (asked(question="what \ud83d flies"), r"after question 'q1': TypeError: question has half a surrogate pair"),
        ([1], r"after the head: TypeError"),
        ({"rows": []}, r"after the head: KeyError: 'data'"),
    ],
    ids=[
        "offset",
        "negative",
        "empty answer",
        "no answer",
        "empty question",
        "no offset",
        "text for a boolean",
        "surrogate",
        "list",
        "no data",
    ],
)
def test_what_is_wrong_with_questions_is_one_line(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=rf"train.json: {message}"):
        read_squad(str(write_json(tmp_path / "train.json", values)))


def test_questions_may_be_packed_and_their_address_holds_no_secret(tmp_path: Path) -> None:
    plain = write_json(tmp_path / "train.json", asked())
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert read_squad(str(tmp_path / "train.json.gz")) == read_squad(str(plain))
    with pytest.raises(SettingsError, match="with a user, a password or a query") as caught:
        read_squad("https://user:HIDDEN@127.0.0.1/train.json?token=HIDDEN")
    assert "HIDDEN" not in str(caught.value)


def test_files_that_are_none_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("{", "utf-8")
    for name, message in (("train.json", "not JSON"), ("nowhere.json", "no such file")):
        with pytest.raises(PipelineError, match=f"{name}: {message}"):
            read_squad(str(tmp_path / name))


def test_a_question_may_have_no_answer(tmp_path: Path) -> None:
    values = asked(answers=[], is_impossible=True, plausible_answers=[{"text": "crane", "answer_start": 2}])
    assert read_squad(str(write_json(tmp_path / "train.json", values)))[0].answers == ()
