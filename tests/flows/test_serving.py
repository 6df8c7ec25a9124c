"""A registered encoder behind MLflow's server, as docs/serving.md has it: a process of its own, asked over HTTP.

The other ways to load it: tests/flows/test_ways_to_load.py.
"""

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import mlflow
import pandas as pd
import pytest

from flows.places import tracking_uri
from pipeline.encoding import Encoder, Input
from pipeline.errors import EncodingError

from .conftest import ROOT, free_port
from .elsewhere import serving
from .faults import FAULTS, LONGEST, Vectors, Way, close, original, register, rows_of, vectors_of

PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


@dataclass(frozen=True)
class Served:
    """An encoder of random weights that is registered, and a server of it."""

    uri: str
    address: str
    encoder: Encoder

    def post(self, body: object, content_type: str | None = "application/json") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if content_type else {}
        return httpx.post(f"{self.address}/invocations", content=content, headers=headers, timeout=120)

    def encode(self, inputs: list[Input], **params: Any) -> Vectors:
        answer = self.post({"inputs": rows_of(inputs), "params": params})
        if answer.status_code == 400:
            raise EncodingError(answer.json()["message"])
        answer.raise_for_status()
        return vectors_of(answer.json()["predictions"])

    def here(self, printed: str) -> str:
        """What the page prints, with the model, addresses and port of this test."""
        ours = re.sub(r"models:/bert-\w+@champion", self.uri, printed)
        return ours.replace("http://127.0.0.1:5000", tracking_uri()).replace("http://127.0.0.1:8080", self.address)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "artifacts"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        found = Served(register(folder / "store", "bert"), f"http://127.0.0.1:{port}", original("bert"))
        (line,) = re.findall(r"^mlflow models serve .*", PAGE, re.MULTILINE)
        with serving(shlex.split(found.here(line).replace("8080", str(port))), found.address, folder):
            yield found
            close(found.encode(["a crane"])[0], found.encoder.encode("a crane")[0])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_is_served_does_not_have(fault: Callable[[Way], None], served: Served) -> None:
    fault(Way(served.encoder, served.encode))


def test_the_versions_own_example_is_answered(served: Served) -> None:
    folder = Path(mlflow.artifacts.download_artifacts(served.uri))
    answer = served.post((folder / "serving_input_example.json").read_bytes())
    assert [set(entry) for entry in answer.json()["predictions"]] == [{"tokens", "vectors"}] * 2


def test_a_table_as_parquet(served: Served) -> None:
    body = io.BytesIO()
    pd.DataFrame({"text": ["a crane", "flying"], "text_pair": ["he left", None]}).to_parquet(body)
    first, second = vectors_of(served.post(body.getvalue(), "application/vnd.apache.parquet").json()["predictions"])
    close(first, served.encoder.encode("a crane", "he left")[0])
    close(second, served.encoder.encode("flying")[0])


WRONG: dict[str, tuple[object, str, int, str]] = {
    "no list": ({"inputs": 3}, "application/json", 400, "Expected list, but got int"),
    "nothing in it": ({"inputs": None}, "application/json", 400, "Expected list, but got NoneType"),
    "no inputs": ({"instances": ["a"]}, "application/json", 400, "with 'inputs' key"),
    "a number beside text": ({"inputs": ["a", 1]}, "application/json", 400, "got <class 'int'>"),
    "tokens too many": ({"inputs": ["a", "a " * LONGEST]}, "application/json", 400, f"input 1: {LONGEST + 2} tokens"),
    "a number": ({"inputs": [{"text": 1}]}, "application/json", 400, "Input should be a valid string"),
    "null": ({"inputs": [{"text": None}]}, "application/json", 400, "Input should be a valid string"),
    "nested": ({"inputs": [{"text": ["a"]}]}, "application/json", 400, "Input should be a valid string"),
    "an unknown field": ({"inputs": [{"text": "a", "txt": "b"}]}, "application/json", 400, "Extra inputs are not permitted"),
    "no text": ({"inputs": [{"text_pair": "a"}]}, "application/json", 400, "Field required"),
    "no such pooling": ({"inputs": [{"text": "a"}], "params": {"pooling": "max"}}, "application/json", 400, "got 'max', wanted tokens"),
    "a parameter's type": ({"inputs": [{"text": "a"}], "params": {"truncate": "yes"}}, "application/json", 400, "truncate"),
    "half a character": ({"inputs": [{"text": "\ud800"}]}, "application/json", 400, "not valid text"),
    "broken JSON": (b"{", "application/json", 400, "valid JSON"),
    "a list alone": ([{"text": "a"}], "application/json", 400, "must be a JSON dictionary"),
    "nothing": (b"", "application/json", 400, "valid JSON"),
    "bytes of another encoding": (b'{"inputs": ["\xff"]}', "application/json", 400, "UnicodeDecodeError"),
    "a broken table": (b"PAR1", "application/vnd.apache.parquet", 400, "Failed to parse input"),
    "a table as CSV": (b"text\na\n", "text/csv", 400, "Failed to parse input"),
    "another type": (b"<a/>", "text/xml", 415, "content types"),
    "another encoding": (b"{}", "application/json; charset=latin-1", 415, "only supports UTF-8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_the_clients_fault_and_named(served: Served, what: str) -> None:
    body, content_type, status, told = WRONG[what]
    answer = served.post(body, content_type)
    assert answer.status_code == status, answer.text
    assert told in answer.text


NESTED = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b'{"inputs": ["a"]}', None), (NESTED, "application/json"), (b"9" * 5000, "application/json")],
    ids=["no content type", "nested too deep", "a number too long"],
)
def test_what_mlflows_server_takes_for_its_own_fault(served: Served, body: bytes, content_type: str | None) -> None:
    """It fails before the model is asked; docs/serving.md says so. Where this fails, MLflow has mended it."""
    assert served.post(body, content_type).status_code == 500


def test_what_mlflow_leaves_out(served: Served) -> None:
    """Parameters that are none, and fields beside `inputs` and `params`, never reach the model; docs/serving.md says so."""
    wanted = served.encode(["a crane"])
    for body in ({"inputs": ["a crane"], "params": {"poling": "cls"}}, {"inputs": ["a crane"], "pooling": "cls"}):
        close(vectors_of(served.post(body).json()["predictions"])[0], wanted[0])


def test_ten_thousand_sentences(served: Served) -> None:
    texts = [f"a crane is flying {'over ' * (number % 7)}" for number in range(10_000)]
    found = served.encode(list(texts), pooling="mean")
    assert len(found) == 10_000
    for number in (0, 6, 9_999):
        close(found[number], served.encoder.encode(texts[number])[0].mean(0))


def test_many_at_once(served: Served) -> None:
    """With and without truncation, mixed, since threads of the server share one encoder."""

    def ask(number: int) -> None:
        text, truncate = "a crane " * (number % 50 + 1), number % 2 == 0
        if not truncate and number % 50 >= 31:
            with pytest.raises(EncodingError, match="the model's limit"):
                served.encode([text])
        else:
            close(served.encode([text], truncate=truncate)[0], served.encoder.encode(text, truncate=True)[0])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(100)))


def test_the_page_runs_as_it_is_printed(served: Served, tmp_path: Path) -> None:
    """Its Python blocks in one process, its requests by curl, and what it prints of an error."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    code = served.here("\n".join(blocks))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    requests = re.findall(r"^curl .*?(?=\n(?:curl|```))", PAGE, re.DOTALL | re.MULTILINE)
    assert len(requests) == 3
    answers = []
    for request in requests:
        done = subprocess.run(["bash", "-c", served.here(request)], capture_output=True, text=True, cwd=tmp_path)
        answers.append(json.loads(done.stdout))
    assert [len(answer.get("predictions", [])) for answer in answers] == [2, 1, 0]
    (printed,) = re.findall(r"^\{.*error_code.*$", PAGE, re.MULTILINE)
    assert answers[2] == json.loads(printed)
