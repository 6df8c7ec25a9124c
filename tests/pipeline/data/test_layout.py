"""Names of files: their forms, what they are packed in, and the splits that they make up."""

import pytest

from pipeline.data.layout import FileName, choose
from pipeline.errors import CorpusError

NAMES = {
    "train.txt": ("text", "", "train"),
    "a/b/wiki.train.tokens": ("text", "", "train"),
    "a\\b\\wiki.valid.raw": ("text", "", "valid"),
    "Train.JSONL.GZ": ("json_lines", ".gz", "train"),
    "train-00000-of-00005.parquet": ("parquet", "", "train"),
    "validation-00000-of-00001.parquet": ("parquet", "", "valid"),
    "valid_2.ndjson.zst": ("json_lines", ".zst", "valid"),
    "dev.json.xz": ("json_lines", ".xz", "valid"),
    "test1.text": ("text", "", "test"),
    "testimony.txt": ("text", "", None),
    "my-train.txt": ("text", "", None),
    "devices.jsonl": ("json_lines", "", None),
    "training.txt": ("text", "", None),
    "book": (None, "", None),
    "book.md.gz": (None, ".gz", None),
    "train": (None, "", "train"),
}


@pytest.mark.parametrize(("path", "says"), NAMES.items(), ids=NAMES)
def test_what_a_name_says(path: str, says: tuple[str | None, str, str | None]) -> None:
    name = FileName.of(path)
    assert (name.form, name.packing, name.split) == says


def test_the_stem_is_the_name_without_its_ending() -> None:
    assert [FileName.of(path).stem for path in ("x/a.b.jsonl.gz", "a.txt", "a.gz", "a.md")] == ["a.b", "a", "a", "a.md"]


CHOICES = {
    "by split": (["train.txt", "dev.txt", "test.txt", "notes.txt"], {"train": ["train.txt"], "valid": ["dev.txt"], "test": ["test.txt"]}),
    "each split its own form": (["train.jsonl", "valid.txt"], {"train": ["train.jsonl"], "valid": ["valid.txt"]}),
    "numbered": (["train-1.parquet", "train-0.parquet"], {"train": ["train-0.parquet", "train-1.parquet"]}),
    "all are train": (["b.txt", "a.txt.gz", ".hidden.txt", "_SUCCESS.txt", "x.md"], {"train": ["a.txt.gz", "b.txt"]}),
    "in folders": (["z/a.jsonl", "a/b.jsonl"], {"train": ["a/b.jsonl", "z/a.jsonl"]}),
}


@pytest.mark.parametrize(("paths", "chosen"), CHOICES.values(), ids=CHOICES)
def test_the_files_of_each_split(paths: list[str], chosen: dict[str, list[str]]) -> None:
    assert choose(paths, "here", "auto") == chosen


@pytest.mark.parametrize(
    ("form", "named", "chosen"),
    [
        ("text", False, ["a.txt"]),
        ("json_lines", False, ["a.jsonl"]),
        ("parquet", False, ["a.parquet"]),
        ("text", True, ["a.csv", "a.jsonl", "a.parquet", "a.txt"]),
    ],
)
def test_a_form_that_is_set_leaves_the_others_aside(form: str, named: bool, chosen: list[str]) -> None:
    assert choose(["a.jsonl", "a.txt", "a.parquet", "a.csv"], "here", form, named=named) == {"train": chosen}


REFUSED = {
    "two endings": (["train.txt", "train.txt.gz"], r"train is there in more than one form \(train.txt, train.txt.gz\)"),
    "two beginnings": (["train.txt", "valid.txt", "dev.txt"], r"valid is there in more than one form \(dev.txt, valid.txt\)"),
    "two forms": (["a.txt", "b.jsonl"], r"train is there in more than one form \(a.txt, b.jsonl\).*corpus.form"),
    "twins": (["a/train.txt", "b/train.txt"], r"train.txt stands there 2 times \(a/train.txt, b/train.txt\)"),
    "no train": (["valid.txt", "book.txt"], r"no train split there, only book.txt, valid.txt; wanted a file"),
    "nothing": (["README.md"], r"no train split there, only README.md"),
    "many": ([f"{number}.md" for number in range(20)], r"and 12 more"),
}


@pytest.mark.parametrize(("paths", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(paths: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=f"^here: .*{message}"):
        choose(paths, "here", "auto")
