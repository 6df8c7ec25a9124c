"""A registered encoder by every way to load it: plain files, pyfunc, a server over HTTP, transformers.

Each way is a function from inputs to one array of vectors for each; what the field reports as faults is asked of all of them.
tests/flows/test_registry.py loads it in a process that cannot import this project, and beside a package `pipeline` of the
user's; tests/pipeline/test_transformers.py compares parameters, hidden states and logits.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException
from transformers import AutoModel, AutoTokenizer

from flows import aliases, models, processes, registry, services
from flows.places import tracking_uri
from pipeline.encoding import Encoder, Input
from pipeline.errors import EncodingError
from pipeline.storage import Store
from tests.pipeline.encoders import publish_encoder, wordpiece

from .conftest import ROOT, environment, free_port

NAME = "bert-served"
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")
LONGEST = 64
Encode = Callable[..., list[np.ndarray]]


@dataclass(frozen=True)
class Served:
    """An encoder of random weights that is registered, and a server of it."""

    folder: Path
    address: str

    def post(self, body: object, content_type: str = "application/json") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(f"{self.address}/invocations", content=content, headers={"Content-Type": content_type}, timeout=120)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    encoder = publish_encoder(Store(str(folder / "store")), "bert", wordpiece())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_STORE", str(folder / "artifacts"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        run = registry.start_run("a run", {}, {"run_key": "abc"})
        tags = {"encoder_key": encoder.key}
        aliases.promote(models.register(NAME, run, Path(encoder.address), tags=tags, description="", tables={}, figures={}))
        uri = tracking_uri()
        command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", f"models:/{NAME}@champion", "--env-manager", "local"]
        settings = environment(MLFLOW_TRACKING_URI=uri, OMP_NUM_THREADS="1", MLFLOW_DISABLE_TELEMETRY="true", PYTHONSAFEPATH="1")
        settings.pop("PYTHONPATH", None)
        settings["PATH"] = f"{Path(sys.executable).parent}:{settings['PATH']}"  # MLflow starts uvicorn by its name
        with (folder / "log").open("wb") as log:
            child = subprocess.Popen([*command, "--port", str(port)], cwd=folder, env=settings, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            begun = time.monotonic()
            while not services.answers(f"{address}/ping"):
                assert child.poll() is None and time.monotonic() - begun < 120, (folder / "log").read_text("utf-8")
                time.sleep(0.1)
            yield Served(folder, address)
            assert child.poll() is None, "it lives after all of this"
        finally:
            if found := processes.find(child.pid):
                processes.end(found, 5)
            child.wait()


@pytest.fixture(scope="module")
def encoder(served: Served) -> Encoder:
    return Encoder.load(models.download(f"models:/{NAME}@champion"))


def rows_of(inputs: list[Input]) -> list[dict[str, str]]:
    return [{"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True)) for text in inputs]


def vectors_of(predictions: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.asarray(entry.get("vectors", entry.get("vector"))) for entry in predictions]


def by_plain_files(encoder: Encoder, served: Served) -> Encode:
    return lambda inputs, **params: [vectors.numpy() for vectors in encoder.encode_many(inputs, **params)]


def by_pyfunc(encoder: Encoder, served: Served) -> Encode:
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
    return lambda inputs, **params: vectors_of(model.predict(rows_of(inputs), params=params or None))


def by_http(encoder: Encoder, served: Served) -> Encode:
    def encode(inputs: list[Input], **params: Any) -> list[np.ndarray]:
        answer = served.post({"inputs": rows_of(inputs), "params": params})
        if answer.status_code == 400:
            raise EncodingError(answer.json()["message"])
        answer.raise_for_status()
        return vectors_of(answer.json()["predictions"])

    return encode


def by_transformers(encoder: Encoder, served: Served) -> Encode:
    folder = str(models.download(f"models:/{NAME}@champion"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def encode(inputs: list[Input], *, truncate: bool = False, pooling: str = "tokens") -> list[np.ndarray]:
        firsts, seconds = zip(*((text, None) if isinstance(text, str) else text for text in inputs), strict=True)
        pairs = None if seconds[0] is None else list(seconds)
        batch = tokenizer(list(firsts), pairs, padding=True, truncation=truncate, return_tensors="pt")
        with torch.inference_mode():
            found = model(**batch).last_hidden_state
        rows = [row[mask.bool()].numpy() for row, mask in zip(found, batch["attention_mask"], strict=True)]
        return rows if pooling == "tokens" else [row.mean(0) for row in rows]

    return encode


WAYS: dict[str, Callable[[Encoder, Served], Encode]] = {
    "plain files": by_plain_files,
    "pyfunc": by_pyfunc,
    "http": by_http,
    "transformers": by_transformers,
}


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, encoder: Encoder, served: Served) -> tuple[str, Encode]:
    return request.param, WAYS[request.param](encoder, served)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_every_way_gives_the_same_vectors(way: tuple[str, Encode], encoder: Encoder) -> None:
    _, encode = way
    for text in ("a crane is flying", ("a crane driver came", "he just left")):
        close(encode([text])[0], encoder.encode(*([text] if isinstance(text, str) else text))[0].numpy())


def test_a_sentence_alone_and_beside_a_longer_one(way: tuple[str, Encode]) -> None:
    _, encode = way
    short, long = "a crane is flying", "many small birds " * 10
    for pooling in ("tokens", "mean"):
        (alone,) = encode([short], pooling=pooling)
        close(encode([short, long], pooling=pooling)[0], alone)
    close(encode([short], pooling="mean")[0], encode([short])[0].mean(0))


def test_the_second_sentence_is_another_segment(way: tuple[str, Encode], encoder: Encoder) -> None:
    _, encode = way
    (first,), (other,) = encode([("a crane", "flying")]), encode([("flying", "a crane")])
    assert first.shape == other.shape
    assert not np.allclose(first[0], other[0], atol=1e-3)
    ids, segments = encoder.to_ids([("a b", "c")])
    assert encoder.tokens("a b", "c")[-1] == encoder.table.special_tokens["sep_token"]
    assert segments == [[0] * (len(ids[0]) - 2) + [1, 1]]


def test_one_token_more_than_the_longest(way: tuple[str, Encode], encoder: Encoder) -> None:
    name, encode = way
    fits, long = "a " * (LONGEST - 2), "a " * (LONGEST - 1)
    assert len(encode([fits])[0]) == LONGEST
    close(encode([long], truncate=True)[0], encode([fits])[0])
    if name != "transformers":  # which leaves the limit to its caller
        with pytest.raises((EncodingError, MlflowException), match=f"{LONGEST + 1} tokens .*wanted at most {LONGEST}, the model's limit"):
            encode([fits, long])


def test_nothing_and_empty_sentences(way: tuple[str, Encode], encoder: Encoder) -> None:
    name, encode = way
    if name != "transformers":
        assert encode([]) == []
    assert [len(found) for found in encode([""])] == [2]
    close(encode([("a", "")])[0], encoder.encode("a", "")[0].numpy())


def test_pyfunc_takes_a_data_frame(served: Served, encoder: Encoder) -> None:
    frame = pd.DataFrame({"text": ["a crane", "flying"], "text_pair": ["he left", None]})
    found = mlflow.pyfunc.load_model(f"models:/{NAME}@champion").predict(frame)
    close(found[0]["vectors"], encoder.encode("a crane", "he left")[0].numpy())
    close(found[1]["vectors"], encoder.encode("flying")[0].numpy())


WRONG: dict[str, tuple[object, str, int, str]] = {
    "a number": ({"inputs": [{"text": 1}]}, "application/json", 400, "Input should be a valid string"),
    "null": ({"inputs": [{"text": None}]}, "application/json", 400, "Input should be a valid string"),
    "nested": ({"inputs": [{"text": ["a"]}]}, "application/json", 400, "Input should be a valid string"),
    "a bare string": ({"inputs": ["a crane"]}, "application/json", 400, "Expecting example to be a dictionary"),
    "an unknown field": ({"inputs": [{"text": "a", "txt": "b"}]}, "application/json", 400, "Extra inputs are not permitted"),
    "no text": ({"inputs": [{"text_pair": "a"}]}, "application/json", 400, "Field required"),
    "no such pooling": ({"inputs": [{"text": "a"}], "params": {"pooling": "max"}}, "application/json", 400, "got 'max', wanted tokens"),
    "a parameter's type": ({"inputs": [{"text": "a"}], "params": {"truncate": "yes"}}, "application/json", 400, "truncate"),
    "half a character": ({"inputs": [{"text": "\ud800"}]}, "application/json", 400, "not valid text"),
    "broken JSON": (b"{", "application/json", 400, "valid JSON"),
    "a list alone": ([{"text": "a"}], "application/json", 400, "must be a JSON dictionary"),
    "nothing": (b"", "application/json", 400, "valid JSON"),
    "another type": (b"<a/>", "text/xml", 415, "content types"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_the_clients_fault_and_named(served: Served, what: str) -> None:
    body, content_type, status, told = WRONG[what]
    answer = served.post(body, content_type)
    assert answer.status_code == status, answer.text
    assert told in answer.text


def test_ten_thousand_sentences(served: Served, encoder: Encoder) -> None:
    texts = [f"a crane is flying {'over ' * (number % 7)}" for number in range(10_000)]
    answer = served.post({"inputs": rows_of(list(texts)), "params": {"pooling": "mean"}})
    assert answer.status_code == 200
    found = vectors_of(answer.json()["predictions"])
    assert len(found) == 10_000
    for number in (0, 6, 9_999):
        close(found[number], encoder.encode(texts[number])[0].mean(0).numpy())


def test_many_at_once(served: Served, encoder: Encoder) -> None:
    """With and without truncation, mixed, since threads of the server share one encoder."""

    def ask(number: int) -> None:
        text = "a crane " * (number % 50 + 1)
        answer = served.post({"inputs": [{"text": text}], "params": {"truncate": number % 2 == 0}})
        if number % 2 and number % 50 >= 31:
            assert answer.status_code == 400
            assert "the model's limit" in answer.text
        else:
            close(vectors_of(answer.json()["predictions"])[0], encoder.encode(text, truncate=True)[0].numpy())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(100)))


def test_the_page_runs_as_it_is_printed(served: Served, tmp_path: Path) -> None:
    """Its Python blocks in one process, its requests by curl; names, addresses and ports are those of this test."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    uri = re.sub(r"http://127\.0\.0\.1:5000", tracking_uri(), "\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-c", re.sub(r"models:/bert-\w+@", f"models:/{NAME}@", uri)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    requests = re.findall(r"^curl .*?(?=\n(?:curl|```))", PAGE, re.DOTALL | re.MULTILINE)
    assert len(requests) == 2
    for request in requests:
        line = request.replace("http://127.0.0.1:8080", served.address)
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        assert "predictions" in json.loads(done.stdout), done.stdout + done.stderr
