"""Processes that know nothing of this project: no `flows`, no `pipeline` but one of the user's own, in a folder of their own."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flows import processes, services
from flows.places import tracking_uri

from .conftest import environment

_PRELUDE = """
import importlib.util, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path = [entry for entry in sys.path if "editable" not in entry]
assert importlib.util.find_spec("flows") is None, "this project is importable"
assert importlib.util.find_spec("pipeline") is None, "this project is importable"
import mlflow
"""
_BESIDE = """
sys.path.insert(0, "mine")
import pipeline
"""
_ANSWER = """
import json, torch
models = {}
torch.set_grad_enabled(False)
for line in sys.stdin:
    uri, model_input, params = json.loads(line)
    model = models[uri] = models.get(uri) or mlflow.pyfunc.load_model(uri)
    if model_input is None:
        encoder = model.unwrap_python_model().encoder
        pretrained = encoder.model
        tied = pretrained.masked_lm.decoder.weight.data_ptr() == pretrained.encoder.token_embedding.weight.data_ptr()
        logits = [pretrained.masked_lm(encoder.encode(*text)[0]).tolist() for text in params]
        answer = {"tied": tied, "logits": logits, "pipeline": sorted(vars(sys.modules.get("pipeline", sys)).keys() & {"MINE", "encoding"})}
    else:
        try:
            answer = {"predictions": model.predict(model_input, params=params)}
        except mlflow.exceptions.MlflowException as error:
            answer = {"error": error.error_code, "message": error.message}
    print(json.dumps(answer), flush=True)
"""


def _command(folder: Path, code: str, address: str, **changed: str) -> dict[str, Any]:
    path = folder / "use.py"
    path.write_text(code, "utf-8")
    # -P and no PYTHONPATH: nothing but the installed packages is on the path.
    settings = environment(MLFLOW_TRACKING_URI=address, MLFLOW_DISABLE_TELEMETRY="true", OMP_NUM_THREADS="1", **changed)
    settings.pop("PYTHONPATH", None)
    return {"args": [sys.executable, "-P", str(path)], "cwd": folder, "env": settings, "text": True}


def load_elsewhere(folder: Path, code: str, address: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """Run code in such a process."""
    return subprocess.run(**_command(folder, _PRELUDE + code, address, **changed), capture_output=True, timeout=120)


@contextmanager
def serving(command: Sequence[str], address: str, folder: Path) -> Iterator[None]:
    """MLflow's server of a model, from when it answers on."""
    settings = environment(MLFLOW_TRACKING_URI=tracking_uri(), OMP_NUM_THREADS="1", MLFLOW_DISABLE_TELEMETRY="true", PYTHONSAFEPATH="1")
    settings.pop("PYTHONPATH", None)
    settings["PATH"] = f"{Path(sys.executable).parent}:{settings['PATH']}"  # what the page's `source` does
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, cwd=folder, env=settings, stdout=log, stderr=log)
    try:
        begun = time.monotonic()
        while not services.answers(f"{address}/ping"):
            assert child.poll() is None and time.monotonic() - begun < 120, (folder / "log").read_text("utf-8")
            time.sleep(0.1)
        yield
        assert child.poll() is None, "it lives after all of this"
    finally:
        if process := processes.find(child.pid):
            processes.end(process, 5)
        child.wait()


class Elsewhere:
    """Such a process that loads models by pyfunc and answers.

    :param beside: have it import a package `pipeline` of the user's own first.
    """

    def __init__(self, folder: Path, address: str, *, beside: bool) -> None:
        folder.mkdir()
        (folder / "mine" / "pipeline").mkdir(parents=True)
        (folder / "mine" / "pipeline" / "__init__.py").write_text("MINE = True\n", "utf-8")
        code = _PRELUDE + _BESIDE * beside + _ANSWER
        with (folder / "log").open("wb") as log:
            self._child = subprocess.Popen(**_command(folder, code, address), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._log = folder / "log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.communicate(timeout=60)
        assert self._child.returncode == 0, self._log.read_text("utf-8")

    def ask(self, uri: str, model_input: Any, params: Any) -> dict[str, Any]:
        """What `predict` gives, or the error; without an input what the model is, with the logits of texts."""
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(json.dumps([uri, model_input, params]) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, self._log.read_text("utf-8")
        return dict(json.loads(line))
