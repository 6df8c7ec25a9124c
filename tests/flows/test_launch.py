"""Training as a child: what it says arrives, and it never outlives its task."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flows import launch
from pipeline.errors import TrainingError
from pipeline.training.agent import device_count

from .conftest import lives

# Notes its id, starts a grandchild in a session of its own as torchrun does, and waits.
FAMILY = """
import os, pathlib, subprocess, sys, time
pids = pathlib.Path(sys.argv[1])
code = "import os, pathlib, sys, time; (pathlib.Path(sys.argv[1]) / str(os.getpid())).touch(); time.sleep(300)"
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", code, str(pids)], start_new_session=True)
(pids / str(os.getpid())).touch()
print("started", flush=True)
time.sleep(300)
"""


def run_code(code: str, work: Path, *arguments: str, on_line: Any = print, on_metrics: Any = print) -> None:
    launch.launch([sys.executable, "-c", code, *arguments], work, on_line, on_metrics)


def test_lines_and_metrics_arrive_in_order_and_whole(tmp_path: Path) -> None:
    code = """
import sys, time
with open(sys.argv[1], "a") as file:
    for step in range(4):
        print("step", step, flush=True)
        file.write('{"step": '); file.flush(); time.sleep(0.7)
        file.write(str(step) + '}' + chr(10)); file.flush()
print("no end of line", end="")
"""
    lines: list[str] = []
    batches: list[list[dict[str, Any]]] = []
    run_code(code, tmp_path, str(tmp_path / "metrics.jsonl"), on_line=lines.append, on_metrics=batches.append)
    assert lines == ["step 0", "step 1", "step 2", "step 3", "no end of line"]
    assert [row["step"] for batch in batches for row in batch] == [0, 1, 2, 3]
    assert len(batches) > 1, "while it runs, not only at its end"


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = launch.Follower(path)
    assert follower.read() == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st', "utf-8")
    assert [row["step"] for row in follower.read()] == [1, 2]
    path.write_text('{"step": 1}\n', "utf-8")
    assert [row["step"] for row in follower.read()] == [1]


def test_the_childs_own_error_is_the_message(tmp_path: Path) -> None:
    code = "import sys; print('W: noise', file=sys.stderr); print('error: step 3: got NaN', file=sys.stderr); sys.exit(1)"
    with pytest.raises(TrainingError, match=r"^step 3: got NaN$"):
        run_code(code, tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise KeyError('x')", "ended with exit status 1; its last words: .*KeyError: 'x'.*output.log"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL.*memory.*output.log"),
    ],
)
def test_an_end_without_an_error_line_says_how_it_ended(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        run_code(code, tmp_path)


def test_a_pipe_that_a_grandchild_holds_open_does_not_hang(tmp_path: Path, pids: Path) -> None:
    code = (
        "import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
        "(pathlib.Path(sys.argv[1]) / str(child.pid)).touch(); print('last')"
    )
    lines: list[str] = []
    run_code(code, tmp_path, str(pids), on_line=lines.append)
    assert lines == ["last"]


class Cancelled(BaseException):
    """As Prefect cancels: no Exception."""


def test_what_ends_the_task_ends_the_child_and_its_ranks(
    tmp_path: Path, pids: Path, eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(line: str) -> None:
        eventually(lambda: len(list(pids.iterdir())) == 2)
        raise Cancelled

    monkeypatch.setattr(launch, "GRACE_SECONDS", 1.0)  # the grandchild, unlike a rank, waits for no signal of its parent's
    with pytest.raises(Cancelled):
        run_code(FAMILY, tmp_path, str(pids), "family", on_line=cancel)
    assert not any(lives(int(entry.name)) for entry in pids.iterdir())


def test_a_child_that_ignores_the_request_to_end_is_killed(tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(line: str) -> None:
        raise Cancelled

    monkeypatch.setattr(launch, "GRACE_SECONDS", 1.0)
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FAMILY}"
    with pytest.raises(Cancelled):
        run_code(code, tmp_path, str(pids), on_line=cancel)
    assert not any(lives(int(entry.name)) for entry in pids.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties a child to its parent on Linux alone")
def test_a_killed_task_takes_its_child_along(tmp_path: Path, pids: Path, eventually: Callable[..., None]) -> None:
    (tmp_path / "family.py").write_text(FAMILY, "utf-8")
    code = (
        "import sys, pathlib; from flows import launch; work = pathlib.Path(sys.argv[1]);"
        "launch.launch([sys.executable, str(work / 'family.py'), str(work / 'pids')], work, print, print)"
    )
    task = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: list(pids.iterdir()), 60)
        child = int(next(pids.iterdir()).name)
        assert lives(child)
        task.send_signal(signal.SIGKILL)
        task.wait()
        eventually(lambda: not lives(child))
    finally:
        task.kill()
        task.wait()


def test_several_processes_train_one_run(small_built: Any, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work", steps=4)
    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    launch.train(run, lines.append, rows.extend, count=2)
    found = small_built.store.find("run", run.key)
    assert found is not None
    assert found.manifest["recorded"]["ranks"] == 2
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]
    assert [json.dumps(row) for row in rows] == (Path(run.work) / "metrics.jsonl").read_text("utf-8").splitlines()


def test_training_imports_our_pipeline_beside_another(small_built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("raise SystemExit('the wrong pipeline')", "utf-8")
    run = small_built.write_run(tmp_path / "work", steps=1)
    monkeypatch.chdir(tmp_path)
    launch.train(run, print, print)
    assert small_built.store.find("run", run.key) is not None


def test_counting_devices_does_not_start_cuda() -> None:
    assert device_count("cpu") == 1
    assert device_count("auto") == max(1, torch.cuda.device_count())
    assert not torch.cuda.is_initialized()


HOLDER = """
import sys, time
from flows import launch
with launch.alone_on(sys.argv[2:], sys.argv[1], print):
    print("held", flush=True)
    time.sleep(300)
"""


def test_a_gpu_trains_one_run_at_a_time(small_built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of GPUs that no machine has stand for real ones."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where it is kept once it was asked for
    run = small_built.write_run(tmp_path / "work", steps=1)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, "7cd6", "GPU-b", "GPU-a"], stdout=subprocess.PIPE, text=True)
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if "waiting" in line:
            assert small_built.store.find("run", run.key) is None
            holder.kill()

    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with launch.alone_on(["GPU-c"], run.key, lines.append):
            assert not lines, "another GPU is free"
        monkeypatch.setattr(launch, "visible_gpus", lambda wanted: ["GPU-b"])
        launch.train(run, on_line, print)
    finally:
        holder.kill()
        holder.communicate()
    assert lines[0] == f"GPU GPU-b: process {holder.pid} trains run 7cd6 on it; waiting for it"
    assert small_built.store.find("run", run.key) is not None, "the system frees it when its holder dies"


@pytest.mark.parametrize(("named", "gpus"), [(None, ["0", "1"]), ("3, 1", ["3", "1"]), ("GPU-8f,GPU-2a,GPU-77", ["GPU-8f", "GPU-2a"])])
def test_gpus_have_the_names_that_the_environment_gives_them(named: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert launch.visible_gpus("auto") == gpus
    assert launch.visible_gpus("cpu") == [], "on a CPU nobody waits"


def test_the_callbacks_run_in_the_tasks_own_thread(tmp_path: Path) -> None:
    """Prefect's run logger and MLflow's state belong to a thread."""
    threads: set[int] = set()
    run_code("print(1)", tmp_path, on_line=lambda line: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}
