"""Bits per character: a plain loop gives the same, and what is unknown is not cheap."""

import math
from pathlib import Path

import pytest
import torch

from pipeline.encoding import Encoder
from pipeline.pseudo_likelihood import bits_per_character, fitting
from pipeline.storage import Store

from .encoders import publish_encoder, wordpiece, words

SENTENCES = ["a crane is flying over the old bridge", "naïve birds saw many", "he just left the river"]


def load(folder: Path, architecture: str, tokenizer: object) -> Encoder:
    return Encoder.load(publish_encoder(Store(str(folder)), architecture, tokenizer).address)  # type: ignore[arg-type]


def in_a_plain_loop(encoder: Encoder, sentences: list[str]) -> float:
    """A token at a time, the masked-language-model head over all tokens."""
    nats, spelled = 0.0, 0
    for sentence in sentences:
        ids = [encoder.table.ids[token] for token in encoder.tokens(sentence)]
        for word, places in encoder.words(sentence):
            spelled += len(word) * (encoder.table.unknown_id in [ids[place] for place in places])
            for place in places:
                masked = [encoder.table.mask_id if other in places and other >= place else token for other, token in enumerate(ids)]
                (vectors,) = encoder.encode_input_ids([masked])
                with torch.inference_mode():
                    nats -= float(torch.log_softmax(encoder.model.masked_lm(vectors[place][None]).double(), -1)[0, ids[place]])
    alphabet = len(set("".join(sentences)) - {" "})
    return (nats / math.log(2) + spelled * math.log2(alphabet)) / sum(map(len, sentences))


@pytest.mark.parametrize(("architecture", "tokenizer"), [("bert", wordpiece()), ("deck", words())], ids=["wordpiece", "words"])
def test_a_plain_loop_gives_the_same(tmp_path: Path, architecture: str, tokenizer: object) -> None:
    encoder = load(tmp_path, architecture, tokenizer)
    assert bits_per_character(encoder, SENTENCES) == pytest.approx(in_a_plain_loop(encoder, SENTENCES), rel=1e-5)


def test_a_vocabulary_that_knows_nothing_gains_nothing(tmp_path: Path) -> None:
    encoder = load(tmp_path, "deck", words())
    known = bits_per_character(encoder, ["a crane is flying"])
    with torch.no_grad():  # it expects the unknown token everywhere, and nothing else
        encoder.model.masked_lm.decoder.weight.zero_()
        encoder.model.masked_lm.decoder.bias.zero_()
        encoder.model.masked_lm.decoder.bias[encoder.table.unknown_id] = 100.0
    unknown = ["quixotic zebras vex jumbling wolfhounds"]
    alphabet = len(set(unknown[0]) - {" "})
    letters = len(unknown[0].replace(" ", ""))
    assert bits_per_character(encoder, unknown) == pytest.approx(letters * math.log2(alphabet) / len(unknown[0]), rel=1e-6)
    assert math.isfinite(known)


def test_sentences_that_one_of_them_cannot_take_are_left_out(tmp_path: Path) -> None:
    encoder = load(tmp_path, "deck", words())
    long = "a crane " * 40
    assert list(fitting([encoder], [*SENTENCES, long])) == SENTENCES
