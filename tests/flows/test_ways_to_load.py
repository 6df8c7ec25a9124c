"""A registered encoder by every way to load it, asked for what the field reports as faults (31 is in the ways themselves).

Over HTTP: tests/flows/test_serving.py. More of transformers, both casings and all heads: tests/pipeline/test_transformers.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException
from safetensors.torch import load_file

from flows import models
from flows.places import tracking_uri
from pipeline.encoder_format import WEIGHTS, from_transformers, to_transformers
from pipeline.encoding import Encoder, Input
from pipeline.errors import EncodingError

from .elsewhere import Elsewhere
from .faults import FAULTS, TEXTS, Inside, Vectors, Way, close, original, register, rows_of, vectors_of


@dataclass(frozen=True)
class Place:
    """Where two encoders are registered, one of each architecture, and processes that load them."""

    uris: dict[str, str]
    originals: dict[str, Encoder]
    elsewhere: Elsewhere
    beside: Elsewhere


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("loaded")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as children:
        patch.setenv("BERT_STORE", str(folder / "artifacts"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        uris = {name: register(folder / "store", name) for name in ("bert", "deck")}
        elsewhere, beside = (
            children.enter_context(Elsewhere(folder / name, tracking_uri(), beside=name == "beside")) for name in ("elsewhere", "beside")
        )
        yield Place(uris, {name: original(name) for name in uris}, elsewhere, beside)


def look_inside(encoder: Encoder) -> Inside:
    model = encoder.model
    with torch.inference_mode():
        logits = [model.masked_lm(encoder.encode(*text)[0]).numpy() for text in TEXTS]
    return Inside(model.masked_lm.decoder.weight.data_ptr() == model.encoder.token_embedding.weight.data_ptr(), logits)


def by_plain_files(place: Place, architecture: str) -> Way:
    folder = models.download(place.uris[architecture])
    encoder = Encoder.load(folder)

    def inside() -> Inside:
        stored, shape = load_file(folder / WEIGHTS), encoder.model.encoder.shape
        wanted, found = to_transformers(encoder.model.state_dict(), shape).keys(), look_inside(encoder)
        assert from_transformers(stored, shape).keys() == encoder.model.state_dict().keys()
        return Inside(found.tied, found.logits, sorted(wanted - stored.keys()), sorted(stored.keys() - wanted))

    def encode(inputs: list[Input], **params: Any) -> Vectors:
        return [vectors.numpy() for vectors in encoder.encode_many(inputs, **params)]

    return Way(place.originals[architecture], encode, inside)


def by_pyfunc(place: Place, architecture: str) -> Way:
    model = mlflow.pyfunc.load_model(place.uris[architecture])

    def encode(inputs: list[Input], **params: Any) -> Vectors:
        return vectors_of(model.predict(rows_of(inputs), params=params))

    return Way(place.originals[architecture], encode, lambda: look_inside(model.unwrap_python_model().encoder))


def in_another_process(place: Place, architecture: str, child: Elsewhere) -> Way:
    def encode(inputs: list[Input], **params: Any) -> Vectors:
        answer = child.ask(place.uris[architecture], rows_of(inputs), params)
        if "error" in answer:
            raise EncodingError(f"{answer['error']} {answer['message']}")
        return vectors_of(answer["predictions"])

    def inside() -> Inside:
        answer = child.ask(place.uris[architecture], None, TEXTS)
        return Inside(answer["tied"], [np.asarray(logits) for logits in answer["logits"]])

    return Way(place.originals[architecture], encode, inside)


def by_pyfunc_elsewhere(place: Place, architecture: str) -> Way:
    return in_another_process(place, architecture, place.elsewhere)


def by_pyfunc_beside_a_package_pipeline(place: Place, architecture: str) -> Way:
    return in_another_process(place, architecture, place.beside)


def by_transformers(place: Place, architecture: str) -> Way:
    transformers = pytest.importorskip("transformers", reason="to run this test: pip install -e '.[dev]'")
    folder = str(models.download(place.uris[architecture]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, loading = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert tokenizer.model_max_length == model.config.max_position_embeddings, "the limit, which transformers leaves to its caller"

    @torch.inference_mode()
    def encode(inputs: list[Input], *, truncate: bool = False, pooling: str = "tokens") -> Vectors:
        firsts, seconds = zip(*((text, None) if isinstance(text, str) else text for text in inputs), strict=True)
        pairs = None if seconds[0] is None else list(seconds)
        batch = tokenizer(list(firsts), pairs, padding=True, truncation=truncate, return_tensors="pt")
        found = model.eval().bert(**batch).last_hidden_state
        rows = [row[mask.bool()].numpy() for row, mask in zip(found, batch["attention_mask"], strict=True)]
        return rows if pooling == "tokens" else [row[0] if pooling == "cls" else row.mean(0) for row in rows]

    @torch.inference_mode()
    def inside() -> Inside:
        logits = [model(**tokenizer(*text, return_tensors="pt")).prediction_logits[0].numpy() for text in TEXTS]
        tied = model.cls.predictions.decoder.weight.data_ptr() == model.bert.embeddings.word_embeddings.weight.data_ptr()
        return Inside(tied, logits, sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"]))

    return Way(place.originals[architecture], encode, inside, refuses=False)


WAYS: list[Callable[[Place, str], Way]] = [by_plain_files, by_pyfunc, by_pyfunc_elsewhere, by_pyfunc_beside_a_package_pipeline]
ALL = [(way, architecture) for way in WAYS for architecture in ("bert", "deck")]
ALL.append((by_transformers, "bert"))  # transformers has no model of the deck's; of its tokenizer: test_transformers.py


@pytest.fixture(scope="module", params=ALL, ids=lambda pair: f"{pair[0].__name__}-{pair[1]}")
def way(request: pytest.FixtureRequest, place: Place) -> Way:
    load, architecture = request.param
    return load(place, architecture)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_way_to_load_it_has(fault: Callable[[Way], None], way: Way) -> None:
    fault(way)


def test_a_package_pipeline_of_the_users_stays_as_it_is(place: Place) -> None:
    assert place.beside.ask(place.uris["bert"], None, [])["pipeline"] == ["MINE"]
    assert place.elsewhere.ask(place.uris["bert"], None, [])["pipeline"] == []


def test_what_pyfunc_takes_and_gives(place: Place) -> None:
    model, encoder = mlflow.pyfunc.load_model(place.uris["bert"]), place.originals["bert"]
    pair, single = model.predict(pd.DataFrame({"text": ["a crane", "flying"], "text_pair": ["he left", None]}))
    assert [pair["tokens"], single["tokens"]] == [encoder.tokens("a crane", "he left"), encoder.tokens("flying")]
    close(pair["vectors"], encoder.encode("a crane", "he left")[0])
    close(model.predict(pd.DataFrame({"text": ["flying"]}))[0]["vectors"], single["vectors"])
    for form in ("flying", {"text": "flying"}, {"text": "flying", "text_pair": None}):
        (found,) = model.predict([form])
        assert found.keys() == {"tokens", "vectors"} and found["tokens"] == single["tokens"]
        close(found["vectors"], single["vectors"])
    (pooled,) = model.predict(["flying"], params={"pooling": "cls"})
    assert pooled.keys() == {"vector"}
    close(pooled["vector"], single["vectors"][0])


@pytest.mark.parametrize(
    ("model_input", "params", "told"),
    [
        (["a"], {"pooling": "max"}, "pooling: got 'max', wanted tokens, cls, mean"),
        ([], {"pooling": "max"}, "pooling: got 'max'"),
        (["a"], {"truncate": "yes"}, "truncate"),
        ("a", {}, "Expected list, but got str"),
        ([3], {}, "invalid elements: .*3"),
        ([("a", "b")], {}, "invalid elements: .*tuple"),
        ([{"text": ["a"]}], {}, "valid string"),
        ([{"text": "a", "pair": "b"}], {}, "pair.*Extra inputs are not permitted"),
        (["a", "a\ud800"], {}, "input 1: .*not valid text"),
        (pd.DataFrame({"text": ["a", None]}), {}, "valid string"),
        (pd.DataFrame({"sentence": ["a"]}), {}, "Field required"),
    ],
)
def test_what_is_wrong_is_an_invalid_parameter(place: Place, model_input: Any, params: dict[str, Any], told: str) -> None:
    with pytest.raises(MlflowException, match=f"(?s){told}") as caught:
        mlflow.pyfunc.load_model(place.uris["bert"]).predict(model_input, params=params)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_its_page_has_an_example_that_runs_typed_parameters_and_pinned_releases(place: Place) -> None:
    model = mlflow.pyfunc.load_model(place.uris["bert"])
    assert [set(entry) for entry in model.predict(model.input_example)] == [{"tokens", "vectors"}] * 2
    signature = model.metadata.signature
    assert [(param.name, param.dtype.name, param.default) for param in signature.params] == [
        ("pooling", "string", "tokens"), ("truncate", "boolean", False),
    ]  # fmt: skip
    fields = signature.inputs.to_dict()[0]["properties"]
    assert {name: entry["required"] for name, entry in fields.items()} == {"text": True, "text_pair": False}
    folder = Path(mlflow.artifacts.download_artifacts(place.uris["bert"]))
    pins = (folder / "requirements.txt").read_text("utf-8").split()
    assert pins == [f"{pin.partition('==')[0]}=={installed(pin.partition('==')[0]).partition('+')[0]}" for pin in pins]
    assert {pin.partition("==")[0] for pin in pins} == {"mlflow", "numpy", "pydantic", "safetensors", "tokenizers", "torch"}
