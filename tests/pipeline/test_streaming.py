"""Many inputs in windows: the same vectors as alone, in flat memory, in every kind of file."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipeline import streaming
from pipeline.encoding import Encoder, Input
from pipeline.encoding_inputs import Source
from pipeline.encoding_outputs import write_vectors
from pipeline.errors import EncodingError, PipelineError, SettingsError, TableError
from pipeline.storage import Store
from pipeline.streaming import Encoded, Stream

from .encoders import publish_encoder, wordpiece

TEXTS: list[Input] = ["a crane is flying", "", ("a crane driver came", "he just left"), "the river " * 9, ("a", ""), "birds"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return publish_encoder(Store(str(tmp_path_factory.mktemp("encoder"))), "bert", wordpiece()).address


@pytest.fixture(scope="module")
def encoder(folder: str) -> Encoder:
    return Encoder.load(folder)


def alone(encoder: Encoder, text: Input) -> torch.Tensor:
    return (encoder.encode(*text) if isinstance(text, tuple) else encoder.encode(text))[0]


POOLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tokens": lambda found: found,
    "cls": lambda found: found[0],
    "mean": lambda found: found.mean(0),
}


@pytest.mark.parametrize("pooling", POOLED)
def test_each_is_what_it_is_alone(encoder: Encoder, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WINDOW", 4)
    stream = Stream(encoder, pooling=pooling, batch_size=3)
    found = list(stream.encode(iter(TEXTS)))
    assert [entry.input for entry in found] == TEXTS
    for entry in found:
        torch.testing.assert_close(entry.vectors, POOLED[pooling](alone(encoder, entry.input)), atol=1e-5, rtol=0)
    assert (stream.inputs, stream.tokens) == (len(TEXTS), sum(len(entry.input_ids) for entry in found))
    many = encoder.encode_many(TEXTS, 3, pooling=pooling)
    assert all(torch.allclose(one.vectors, other, atol=1e-5) for one, other in zip(found, many, strict=True))


def test_one_token_more_than_the_longest(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "WINDOW", 2)
    fits, long = "a " * 62, "a " * 63
    assert [len(entry.input_ids) for entry in Stream(encoder).encode([fits])] == [64]
    with pytest.raises(EncodingError, match=r"^input 3: 65 tokens .*, wanted at most 64, the model's limit"):
        list(Stream(encoder).encode([fits, fits, fits, long]))
    (cut,) = Stream(encoder, truncate=True).encode([long])
    (whole,) = Stream(encoder).encode([fits])
    assert cut.input_ids == whole.input_ids
    (pair,) = Stream(encoder, truncate=True).encode([("a a a", long)])
    assert len(pair.input_ids) == 64
    assert pair.input_ids[:5] == [*whole.input_ids[:4], encoder.table.sep_id], "the longer one is cut"
    with pytest.raises(EncodingError, match="pooling: got 'max', wanted tokens, cls, mean"):
        Stream(encoder, pooling="max")


def stream_of(encoder: Encoder, pooling: str = "mean") -> list[Encoded]:
    return list(Stream(encoder, pooling=pooling).encode(TEXTS))


def test_every_kind_of_file_has_the_same_vectors(encoder: Encoder, tmp_path: Path) -> None:
    found = stream_of(encoder)
    for name in ("a.npy", "a.jsonl", "a.parquet"):
        write_vectors(tmp_path / name, found, encoder, pooled=True)
    wanted = np.stack([entry.vectors.numpy() for entry in found])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), wanted)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    np.testing.assert_allclose([line["vector"] for line in lines], wanted, rtol=1e-6)
    assert [(line["text"], line.get("text_pair")) for line in lines[:3]] == [
        ("a crane is flying", None),
        ("", None),
        ("a crane driver came", "he just left"),
    ]
    table = pq.read_table(tmp_path / "a.parquet")
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), wanted)
    assert table["text_pair"].to_pylist()[:3] == [None, None, "he just left"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "a.npy", "a.parquet"], "nothing is left beside them"


def test_every_token_has_its_vector(encoder: Encoder, tmp_path: Path) -> None:
    found = stream_of(encoder, "tokens")
    for name in ("a.jsonl", "a.parquet"):
        write_vectors(tmp_path / name, found, encoder, pooled=False)
    first = json.loads((tmp_path / "a.jsonl").read_text("utf-8").splitlines()[0])
    row = pq.read_table(tmp_path / "a.parquet").slice(0, 1).to_pylist()[0]
    assert first["tokens"] == row["tokens"] == encoder.tokens("a crane is flying")
    np.testing.assert_allclose(first["vectors"], found[0].vectors.numpy(), rtol=1e-6)
    np.testing.assert_allclose(row["vectors"], found[0].vectors.numpy(), rtol=1e-6)
    with pytest.raises(EncodingError, match=r"a.npy: one array cannot hold rows that differ in length; wanted .parquet"):
        write_vectors(tmp_path / "a.npy", found, encoder, pooled=False)


@pytest.mark.parametrize("name", ["a.npy", "a.jsonl", "a.parquet"])
def test_nothing_gives_a_file_of_nothing(encoder: Encoder, tmp_path: Path, name: str) -> None:
    write_vectors(tmp_path / name, [], encoder, pooled=True)
    if name == "a.npy":
        assert np.load(tmp_path / name).shape == (0, 16)
    elif name == "a.parquet":
        assert pq.read_table(tmp_path / name).num_rows == 0
    else:
        assert (tmp_path / name).read_bytes() == b""


def test_what_ends_amid_it_leaves_nothing_that_looks_whole(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"before")
    texts: list[Input] = ["a", "a " * 99]
    with pytest.raises(EncodingError, match="input 1: "):
        write_vectors(tmp_path / "a.npy", Stream(encoder).encode(texts), encoder, pooled=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.npy", b"before")]
    with pytest.raises(PipelineError, match=r"nowhere/a.npy: its folder is not there; wanted a file"):
        write_vectors(tmp_path / "nowhere" / "a.npy", [], encoder, pooled=True)
    (tmp_path / "b.npy").mkdir()
    with pytest.raises(PipelineError, match=r"b.npy: a folder; wanted a file"):
        write_vectors(tmp_path / "b.npy", [], encoder, pooled=True)
    with pytest.raises(EncodingError, match=r"a.txt: not a known kind of file; wanted a name that ends in .npy, .jsonl, .parquet"):
        write_vectors(tmp_path / "a.txt", [], encoder, pooled=True)


@pytest.mark.parametrize("name", ["a.npy", "a.jsonl", "a.parquet"])
def test_a_disk_without_room_is_one_line(encoder: Encoder, tmp_path: Path, name: str) -> None:
    texts: list[Input] = ["a crane is flying", "he left", *map(str, range(3000))]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(PipelineError, match=rf"{name}: .*[Ff]ile too large.*; wanted a place that can be written") as caught:
            write_vectors(tmp_path / name, Stream(encoder).encode(texts), encoder, pooled=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_lines_and_rows_are_inputs(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a crane\n\nhe\n"))
    assert list(Source(str(tmp_path / "a.txt.gz")).read()) == ["a crane", "", "he"]
    (tmp_path / "a.txt").write_bytes("\ufeffa crane\r\n\nhe just left".encode())
    assert list(Source(str(tmp_path / "a.txt")).read()) == ["a crane", "", "he just left"]
    (tmp_path / "pairs.txt").write_text("a\tb\nc\td\n", "utf-8")
    assert list(Source(str(tmp_path / "pairs.txt"), pairs=True).read()) == [("a", "b"), ("c", "d")]
    (tmp_path / "a.csv").write_text("one,two\na,b\n,d\n", "utf-8")
    assert list(Source(str(tmp_path / "a.csv"), "one", "two").read()) == [("a", "b"), ("", "d")]


@pytest.mark.parametrize(
    ("name", "content", "options", "told"),
    [
        ("a.txt", b"a\n\xff\n", {}, r"a.txt: line 2: byte 1 is not UTF-8"),
        ("a.txt", b"a\tb\nc\n", {"pairs": True}, r"a.txt: line 2: got 0 TABs, wanted one"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', {}, r"a.jsonl: row 2: `text` is null, wanted text"),
        ("a.csv", b"one\na\n", {}, r"a.csv: its columns are one; wanted one column `text`"),
    ],
)
def test_what_is_no_input_is_named(tmp_path: Path, name: str, content: bytes, options: dict[str, bool], told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=told):
        list(Source(str(tmp_path / name), pairs=options.get("pairs", False)).read())
    with pytest.raises(TableError, match="nothing: no such file; wanted a text file"):
        list(Source(str(tmp_path / "nothing")).read())
    with pytest.raises(SettingsError, match=r"got s3://bucket/a.txt with a user") as caught:
        list(Source("s3://key:HIDDEN@bucket/a.txt").read())
    assert "HIDDEN" not in str(caught.value)


CHILD = """
import os, signal, sys
from pathlib import Path
from pipeline.encoding import Encoder
from pipeline.encoding_outputs import write_vectors
from pipeline.streaming import Stream
folder, to, kill, *counts = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
encoder = Encoder.load(folder)
def texts(count):
    for number in range(count):
        if number == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        yield "a crane is flying over the old bridge"[: 5 + number % 30]
for count in counts:
    for name in ("a.npy", "a.parquet"):
        write_vectors(to / name, Stream(encoder).encode(texts(count)), encoder, pooled=True)
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def in_a_child(folder: str, to: Path, *numbers: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, folder, str(to), *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240)


def test_memory_does_not_grow_with_the_number_of_inputs(folder: str, tmp_path: Path) -> None:
    done = in_a_child(folder, tmp_path, -1, 10_000, 40_000)
    assert done.returncode == 0, done.stderr
    small, large = (int(peak) / 1024 for peak in done.stdout.split())
    assert large < small + 20, f"MB: {small:.0f}, {large:.0f}; a window of ids and vectors takes some 5, and there were seven more"
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (40_000, 16)


def test_what_a_kill_leaves_is_not_taken_for_whole_and_goes(folder: str, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"before")
    (tmp_path / "notes-1-2-3.part").touch()
    assert in_a_child(folder, tmp_path, 9000, 20_000).returncode == -signal.SIGKILL
    assert (tmp_path / "a.npy").read_bytes() == b"before"
    (left,) = {path.name for path in tmp_path.iterdir()} - {"a.npy", "notes-1-2-3.part"}
    assert left.endswith("-a.npy.part")
    write_vectors(tmp_path / "b.npy", [], encoder, pooled=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "notes-1-2-3.part"]
