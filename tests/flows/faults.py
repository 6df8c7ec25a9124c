"""What the field reports of encoders that were loaded, asked of one that was loaded in some way.

Each fault is a function over a `Way`, so that none is left out of a way: tests/flows/test_ways_to_load.py and
tests/flows/test_serving.py run all of `FAULTS`. What an encoder ought to give is computed from the weights as they were before
they were exported, never from a file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows import aliases, models, registry
from pipeline.encoding import Encoder, Input
from pipeline.model.encoder import EncoderShape
from pipeline.storage import Store
from tests.pipeline.encoders import SIZES, publish_encoder, random_model, wordpiece, words

LONGEST = SIZES["max_position_embeddings"]
TEXTS: list[tuple[str, ...]] = [("a crane is flying",), ("a crane driver came", "he just left"), ("a",)]
FITS, TOO_LONG = "a " * (LONGEST - 2), "a " * (LONGEST - 1)
_TOKENIZERS = {"bert": wordpiece, "deck": words}
Vectors = list[np.ndarray]


@dataclass(frozen=True)
class Inside:
    """What can be seen of a loaded model. :param logits: of both texts' masked-language-model head, for `TEXTS`."""

    tied: bool
    logits: Vectors
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()


@dataclass(frozen=True)
class Way:
    """An encoder that was loaded in some way.

    :param encode: (inputs, pooling=…, truncate=…) -> an array for each. :param inside: None: nothing but vectors can be seen.
    :param refuses: whether it says what is too long; else its caller has to.
    """

    original: Encoder
    encode: Callable[..., Vectors]
    inside: Callable[[], Inside] | None = None
    refuses: bool = True


def original(architecture: str) -> Encoder:
    """The encoder of random weights that `publish_encoder` exports, never written to a file."""
    tokenizer = _TOKENIZERS[architecture]()
    shape = EncoderShape(vocab_size=tokenizer.get_vocab_size(), architecture=architecture, **SIZES)
    return Encoder(random_model(shape), tokenizer)


def register(store: Path, architecture: str) -> str:
    """Register that encoder, in the database of `BERT_STORE`. Returns the address of its champion."""
    encoder, name = publish_encoder(Store(str(store)), architecture, _TOKENIZERS[architecture]()), f"bert-{architecture}"
    run = registry.start_run("a run", {}, {"run_key": encoder.key})
    tags = {"encoder_key": encoder.key}
    aliases.promote(models.register(name, run, Path(encoder.address), tags=tags, description=lambda _: "", tables={}, figures={}))
    return f"models:/{name}@{aliases.CHAMPION}"


def rows_of(inputs: Sequence[Input]) -> list[Any]:
    """Inputs as `predict` takes them: sentences as strings, pairs by their names."""
    return [text if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True)) for text in inputs]


def vectors_of(predictions: list[dict[str, Any]]) -> Vectors:
    return [np.asarray(entry.get("vectors", entry.get("vector"))) for entry in predictions]


def close(found: np.ndarray, wanted: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(wanted), atol=1e-5, rtol=0)


def other_hidden_states(way: Way) -> None:
    """26."""
    for text in TEXTS:
        inputs = [text[0] if len(text) == 1 else text]
        close(way.encode(inputs)[0], way.original.encode(*text)[0])
        close(way.encode(inputs, pooling="cls")[0], way.original.encode(*text)[0, 0])


def other_parameters_and_logits(way: Way) -> None:
    """26."""
    if way.inside:
        found = way.inside()
        assert (list(found.missing), list(found.unexpected)) == ([], [])
        for text, logits in zip(TEXTS, found.logits, strict=True):
            with torch.inference_mode():
                close(logits, way.original.model.masked_lm(way.original.encode(*text)[0]))


def ties_lost_or_made(way: Way) -> None:
    """27."""
    if way.inside:
        assert way.inside().tied is way.original.model.encoder.shape.design.tie_word_embeddings


def a_longer_sentence_beside_it(way: Way) -> None:
    """28."""
    short, long = "a crane is flying", "many small birds " * 10
    for pooling in ("tokens", "mean"):
        (alone,) = way.encode([short], pooling=pooling)
        close(way.encode([short, long], pooling=pooling)[0], alone)
    close(way.encode([short], pooling="mean")[0], way.encode([short])[0].mean(0))


def segments_mixed_up(way: Way) -> None:
    """29."""
    assert way.original.to_ids([("a he", "a")])[1] == [[0, 0, 0, 0, 1, 1]]
    (found,), (swapped,) = way.encode([("a he", "a")]), way.encode([("a", "a he")])
    close(found, way.original.encode("a he", "a")[0])
    assert found.shape == swapped.shape
    assert not np.allclose(found[0], swapped[0], atol=1e-3)


def one_token_too_many(way: Way) -> None:
    """30."""
    (fits,) = way.encode([FITS])
    assert len(fits) == LONGEST
    close(way.encode([TOO_LONG], truncate=True)[0], fits)
    pair = ("a " * LONGEST, "he left")
    close(way.encode([pair], truncate=True)[0], way.original.encode(*pair, truncate=True)[0])
    if way.refuses:
        told = f"input 1: {LONGEST + 1} tokens .*wanted at most {LONGEST}, the model's limit"
        with pytest.raises(Exception, match=told):
            way.encode([FITS, TOO_LONG])


def nothing_to_encode(way: Way) -> None:
    """An empty list, an empty sentence, empty halves of a pair."""
    if way.refuses:
        assert way.encode([]) == []
    for text in (("",), ("a", ""), ("", "")):
        close(way.encode([text[0] if len(text) == 1 else text])[0], way.original.encode(*text)[0])


FAULTS = [
    other_hidden_states,
    other_parameters_and_logits,
    ties_lost_or_made,
    a_longer_sentence_beside_it,
    segments_mixed_up,
    one_token_too_many,
    nothing_to_encode,
]
