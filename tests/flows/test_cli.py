"""What a user types wrongly is answered with one line, before anything starts."""

import functools
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from flows import cli, options, processes
from pipeline.errors import SettingsError
from pipeline.storage import Output

from .conftest import ROOT, environment, free_port


def pretrain_bert(*arguments: str, folder: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The console script, with a store and a working folder of the test's own."""
    settings = environment(BERT_STORE=str(folder / "store"), PREFECT_API_URL="", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=timeout)


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command is refused with."""
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1 and not said.out
    return said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "huge"], "preset: got 'huge', wanted one of "),
        (["--steps", "0"], "training.steps: got 0, wanted a value >= 1"),
        (["--steps", "many"], "steps: got 'many', wanted a whole number"),
        (["--seed", "-1"], "shards.seed: got -1, wanted a value >= 0"),
        (["--set", "training.learning_rate=0"], "training.learning_rate: got 0.0, wanted a value > 0"),
        (["--set", "training.learning_rat=1e-4"], "training.learning_rat: no such setting"),
        (["--set", "trainig.steps=5"], "--set: got 'trainig.steps=5'"),
        (["--set", "training.steps"], "--set: got 'training.steps'"),
        (["--set", "training.device=tpu"], "training.device: got 'tpu'"),
        (["--set", "model.num_attention_heads=3"], "model.num_attention_heads: got 3, wanted a divisor"),
        (["--set", "shards.max_length=2000"], "shards.max_length: got 2000, wanted at most"),
        (["--warm-start", "models:/bert-tiny"], "--warm-start: got 'models:/bert-tiny', wanted previous, models:/NAME/NUMBER"),
        (["--warm-start", "s3://key:HIDDEN@bucket/bert"], "--warm-start: got s3://bucket/bert with a user, a password or a query, wanted"),
        (
            ["--set", "vocabulary.kind=file", "--set", "vocabulary.file=https://host/tokenizer.json?signature=HIDDEN"],
            "vocabulary.file: got https://host/tokenizer.json with a user, a password or a query, wanted",
        ),
        (["--vocabulary-from", "models:/bert-tiny"], "--vocabulary-from: got 'models:/bert-tiny', wanted previous"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_one_line_and_starts_nothing(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    assert refusal(["run", *arguments], capsys).startswith(f"error: {message}")
    assert not list(tmp_path.iterdir()), "neither Prefect nor a stage has begun"


def test_the_command_exits_as_main_says(tmp_path: Path) -> None:
    done = pretrain_bert("run", "--preset", "huge", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: preset: got 'huge', wanted one of ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--stepz", "3"], ["encode"]], ids=" ".join)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: " in capsys.readouterr().err


def test_a_missing_corpus_is_one_error_and_its_traceback_lies_in_a_file(tmp_path: Path) -> None:
    done = pretrain_bert("run", "--corpus", str(tmp_path / "nowhere.zip"), folder=tmp_path)
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(last) == 1
    assert "nowhere.zip" in last[0]
    assert "Traceback" not in done.stdout + done.stderr
    log = tmp_path / "store" / "logs" / "errors.log"
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text("utf-8")
    assert not list((tmp_path / "store").glob("*/*/manifest.json"))


def test_values_of_set_are_read_by_their_type() -> None:
    read = options.read_entries(["training.steps=5", "training.learning_rate=3e-4", "training.device=cpu", "shards.buckets=2"])
    assert read["training"] == {"steps": 5, "learning_rate": 3e-4, "device": "cpu"}
    assert read["shards"] == {"buckets": 2}
    with pytest.raises(SettingsError, match=r"--set: got 'steps=5'"):
        options.read_entries(["steps=5"])


def test_encode_prints_a_vector_for_each_token(small_encoder: Output, tmp_path: Path) -> None:
    done = pretrain_bert("encode", small_encoder.address, "a crane driver came", "he just left", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    shape, *rows = done.stdout.splitlines()
    assert shape == "shape (1, 10, 16)"
    assert [row.split()[0] for row in rows] == ["<cls>", "a", "crane", "driver", "came", "<sep>", "he", "just", "left", "<sep>"]


def test_encode_without_a_model_is_one_line(tmp_path: Path) -> None:
    done = pretrain_bert("encode", "nowhere", "a crane is flying", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: nowhere: ")
    assert len(done.stderr.splitlines()) == 1


def test_inspect_prints_examples_and_statistics(small_built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BERT_STORE", small_built.store.root)
    rows = small_built.train.facts["counts"]["rows"]
    assert cli.main(["inspect", "--examples", "2"]) == 0
    title, _, label, first, second, *rest = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{small_built.train.address}: train, 2 buckets, made ")
    assert re.match(r"example 1: B (follows A|is random); row \d+ of bucket/[0-9a-f]{20}, document \d+$", label)
    assert re.match(r"  A  <cls> .* <sep>$", first)
    assert re.match(r"  B  .* <sep>$", second)
    assert re.search(r"\[\S+ (-> \S+|= kept)\]", first + second)
    assert len([line for line in rest if line.startswith("example ")]) == 1
    assert any(re.fullmatch(rf"rows +{rows}", line) for line in rest)

    assert cli.main(["inspect", small_built.train.key[:10], "--examples", "0"]) == 0
    said = capsys.readouterr().out
    assert "example 1" not in said
    assert re.search(rf"^rows +{rows}$", said, re.MULTILINE)


def test_inspect_writes_pictures(small_built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = small_built.train.facts["buckets"][0]["key"]
    arguments = ["inspect", small_built.store.address("bucket", bucket), "--examples", "0", "--pictures"]
    assert cli.main([*arguments, str(tmp_path / "new" / "pictures")]) == 0
    title, *_, first, second, third = capsys.readouterr().out.splitlines()
    assert f"bucket/{bucket}: one bucket, made " in title
    for line in (first, second, third):
        assert Path(line.removeprefix("picture  ")).read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").touch()
    assert cli.main([*arguments, str(tmp_path / "file")]) == 1
    said = f"error: {tmp_path / 'file'}: File exists; wanted a folder that can be written\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--examples", "-1"], "examples: got -1, wanted a value >= 0"),
        (["--examples", "many"], "examples: got 'many', wanted a whole number"),
        (["--seed", "-1"], "seed: got -1, wanted a value >= 0"),
        (["abc"], "abc: no shard set and no bucket in "),
        (["nowhere"], "nowhere: no finished shard set or bucket here; wanted the folder "),
        ([], "{store}: no shard set of the training split here; make one with pretrain-bert run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_inspect_answers_what_is_wrong_with_one_line(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    assert refusal(["inspect", *arguments], capsys).startswith(f"error: {message.format(store=tmp_path / 'store')}")


def test_inspect_starts_without_torch_and_ends_quietly_where_nobody_reads(small_built) -> None:
    code = """
import sys
from flows import cli
try:
    cli.main(sys.argv[1:])
finally:
    print(sorted({"torch", "prefect", "mlflow", "matplotlib"} & sys.modules.keys()), file=sys.stderr)
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", small_built.train.address],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_terminated_in_mid_training_it_ends_whole_and_has_recorded_no_credentials(tmp_path: Path, text) -> None:
    served = tmp_path / "served"
    served.mkdir()
    with zipfile.ZipFile(served / "own.zip", "w") as archive:
        archive.writestr("wiki.train.tokens", text(300, 1))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        corpus = f"http://somebody:SECRET1@127.0.0.1:{server.server_port}/own.zip?signature=SECRET2"
        small = ["--set", "training.batch_size=8", "--set", "model.hidden_size=16", "--steps", "100000"]
        settings = environment(BERT_STORE=str(tmp_path / "store"), PREFECT_API_URL="", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "flows.cli", "run", "--corpus", corpus, *small]
        with (tmp_path / "said").open("w") as said:
            child = subprocess.Popen(command, cwd=tmp_path, env=settings, stdout=said, stderr=said)
        deadline = time.monotonic() + 120
        while "pairs/s" not in (tmp_path / "said").read_text() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        family = processes.descendants([processes.find(child.pid)])
        assert len(family) >= 3, "the command, its temporary server and the training process"
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 128 + signal.SIGTERM
        server.shutdown()
    assert "error: terminated; the same command goes on" in (tmp_path / "said").read_text()
    deadline = time.monotonic() + 10
    while (left := family & processes.running().keys()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    for path in [tmp_path / "said", *(tmp_path / "store").rglob("*")]:
        assert not path.is_file() or b"SECRET" not in path.read_bytes(), path


def test_a_prefect_server_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    address = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_API_URL", address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["run"]) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    todo = "start it with make up, or unset PREFECT_API_URL to run without one"
    assert capsys.readouterr() == ("", f"error: PREFECT_API_URL: no Prefect server answers at {address}; {todo}\n")
    assert not (tmp_path / "store").exists(), "no stage has begun"
