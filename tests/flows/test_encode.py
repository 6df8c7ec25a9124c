"""The command `encode`, as it is typed, with a folder as its encoder."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows import cli
from flows.commands import encode as command
from pipeline.encoding import Encoder
from pipeline.storage import Output

from .conftest import ROOT

PAGE = (ROOT / "docs" / "encoding.md").read_text("utf-8")
SENTENCES = ["a crane is flying", "he just left the river", "", "many small birds near water"]


@pytest.fixture(scope="module")
def encoder(small_encoder: Output) -> Encoder:
    return Encoder.load(small_encoder.address)


def encode(small_encoder: Output, *arguments: object) -> int:
    return cli.main(["encode", small_encoder.address, *map(str, arguments)])


def test_one_sentence_is_printed_and_what_is_unknown_is_said(small_encoder: Output, capsys: pytest.CaptureFixture[str]) -> None:
    assert encode(small_encoder, "a crane is flying!") == 0
    said = capsys.readouterr()
    assert said.out.startswith("shape (1, 6, 16)\n")
    assert said.err == "not in the vocabulary: flying!\n"


@pytest.mark.parametrize("name", ["texts.txt", "texts.csv", "texts.jsonl", "texts.parquet"])
def test_files_of_sentences(small_encoder: Output, encoder: Encoder, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table, options = pa.table({"body": SENTENCES}), ["--column", "body"]
    if name.endswith(".txt"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in SENTENCES), "utf-8")
        options = []
    elif name.endswith(".parquet"):
        pq.write_table(table, tmp_path / name)
    elif name.endswith(".csv"):
        (tmp_path / name).write_text('body\n"' + '"\n"'.join(SENTENCES) + '"\n', "utf-8")
    else:
        (tmp_path / name).write_text("".join(json.dumps({"body": text}) + "\n" for text in SENTENCES), "utf-8")
    assert encode(small_encoder, "--file", tmp_path / name, *options, "--to", tmp_path / "vectors.npy") == 0
    assert re.match(r"4 encoded into .*vectors.npy; 0 of 22 tokens not in the vocabulary\n", capsys.readouterr().out)
    wanted = [encoder.encode(text)[0].mean(0).numpy() for text in SENTENCES]
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), wanted, atol=1e-5)


def test_closed_streams_and_the_input_as_output_are_one_line(
    small_encoder: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a crane"}\n', "utf-8")
    for name, arguments in (("stdin", ["--file", "-"]), ("stdout", ["--file", tmp_path / "a.jsonl"])):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, None)
            assert encode(small_encoder, *arguments) == 1
        assert capsys.readouterr().err.startswith(f"error: standard {name.removeprefix('std')}put: closed; wanted")
    assert encode(small_encoder, "--file", tmp_path / "a.jsonl", "--to", tmp_path / "." / "a.jsonl") == 1
    assert "a.jsonl: is what is read, and would be replaced; wanted another file" in capsys.readouterr().err
    assert (tmp_path / "a.jsonl").read_text("utf-8") == '{"text": "a crane"}\n'


def test_standard_input_to_standard_output(
    small_encoder: Output, encoder: Encoder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a crane driver came\the just left\n")))
    assert encode(small_encoder, "--file", "-", "--pairs", "--pooling", "cls") == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["text"], line["text_pair"]) == ("a crane driver came", "he just left")
    np.testing.assert_allclose(line["vector"], encoder.encode("a crane driver came", "he just left")[0, 0].numpy(), atol=1e-5)


def test_the_order_of_a_pair_matters(small_encoder: Output, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one\ttwo\na crane\the\nhe\ta crane\n", "utf-8")
    columns = ["--column", "one", "--pair-column", "two"]
    assert encode(small_encoder, "--file", tmp_path / "pairs.tsv", *columns, "--to", tmp_path / "v.npy") == 0
    found = np.load(tmp_path / "v.npy")
    wanted = [encoder.encode(*pair)[0].mean(0).numpy() for pair in (("a crane", "he"), ("he", "a crane"))]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_what_is_unknown_is_said_beside_json_lines(small_encoder: Output, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a crane!\n", "utf-8")
    assert encode(small_encoder, "--file", tmp_path / "a.txt") == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["vector"]) == 16
    assert said.err == "1 of 4 tokens not in the vocabulary\n"


def test_a_standard_output_without_room_is_one_line(
    small_encoder: Output, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a crane\n", "utf-8")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert encode(small_encoder, "--file", tmp_path / "a.txt") == 1
        monkeypatch.undo()
    assert capsys.readouterr().err == "error: standard output: No space left on device\n"


def test_an_interruption_promises_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(model: str) -> Encoder:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "load_encoder", interrupt)
    assert cli.main(["encode", "folder", "a"]) == 130
    assert capsys.readouterr().err == "error: interrupted; the same command begins again\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a", "--to", "v.npy"], "--to: is for many; wanted --file, or a TEXT alone"),
        (["a", "--pooling", "mean"], "--pooling: is for many; wanted --file, or a TEXT alone"),
        (["--file", "long.txt", "--pooling", "tokens", "--to", "v.npy"], "v.npy: one array cannot hold rows that differ in length"),
        (["--file", "long.txt", "--to", "s3://bucket/v.npy"], "s3:/bucket/v.npy: its folder is not there; wanted a file in a folder of"),
        ([], "encode: wanted a TEXT, or --file for many, and not both"),
        (["a", "--file", "b"], "encode: wanted a TEXT, or --file for many, and not both"),
        (["--file", "long.txt"], "long.txt: line 2: 65 tokens with the special ones, wanted at most 64, the model's limit"),
        (["--file", "long.txt", "--column", "body"], "--column: is for a table, which long.txt is not by its ending"),
        (["--file", "texts.csv", "--pairs"], "--pairs: is for a text file, which texts.csv is not by its ending"),
        (["--file", "texts.csv"], "texts.csv: its columns are body; wanted one column `text`"),
        (["--file", "nowhere.txt"], "nowhere.txt: no such file; wanted a text file, or a table"),
        (["--file", "long.txt", "--to", "v.txt"], "v.txt: not a known kind of file; wanted a name that ends in .npy, .jsonl, .parquet"),
        (["--file", "long.txt", "--batch-size", "0"], "--batch-size: got 0, wanted at least 1"),
        (["a " * 63], "65 tokens with the special ones, wanted at most 64, the model's limit"),
    ],
)
def test_what_is_wrong_is_one_line(
    small_encoder: Output,
    tmp_path: Path,
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.txt").write_text("a\n" + "a " * 63 + "\n", "utf-8")
    Path("texts.csv").write_text("body\na\n", "utf-8")
    assert encode(small_encoder, *arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {told}")
    assert said.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.txt", "texts.csv"]


def test_what_is_too_long_is_cut_where_it_is_asked_for(small_encoder: Output, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a " * 62 + "\n" + "a " * 99 + "\n", "utf-8")
    assert encode(small_encoder, "--file", tmp_path / "long.txt", "--truncate", "--to", tmp_path / "v.npy") == 0
    found = np.load(tmp_path / "v.npy")
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_an_address_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encode", "models:/bert-tiny", "a"]) == 1
    assert "models:/bert-tiny: not a version; wanted models:/NAME/NUMBER or models:/NAME@ALIAS" in capsys.readouterr().err


def test_the_pages_python_runs_as_it_is_printed(small_encoder: Output, tmp_path: Path) -> None:
    """What a shell line of the page makes is there; the blocks follow one another in one process."""
    texts = [f"{text} {more}" for text in SENTENCES for more in ("a", "over the bridge", "water", "he")]
    (tmp_path / "sentences.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    assert encode(small_encoder, "--file", tmp_path / "sentences.txt", "--to", tmp_path / "vectors.npy") == 0
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join(blocks).replace('models.download("models:/bert-tiny@champion")', repr(small_encoder.address))
    code += "\nassert nearest.shape == (1, 5) and similarity.max() <= 1.0001\n"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
