"""The deck's sentences through encoders whose tokens are words, and pieces of words."""

from string import ascii_lowercase

import pytest
import torch
from tokenizers import Tokenizer

from pipeline.data.wordpiece import train_wordpiece
from pipeline.encoding import Encoder
from pipeline.samples import sample_encodings
from pipeline.storage import Store
from tests.pipeline.encoders import publish_encoder, words


def load(tmp_path, architecture: str, tokenizer: Tokenizer) -> Encoder:
    return Encoder.load(publish_encoder(Store(str(tmp_path)), architecture, tokenizer).address)


def test_words(tmp_path) -> None:
    encoder = load(tmp_path, "deck", words())
    samples = sample_encodings(encoder)
    single, pair = samples.encodings
    assert (single.shape, pair.shape) == ([1, 6, 16], [1, 10, 16]) and single.unknown == pair.unknown == []
    first, second = encoder.encode("a crane is flying")[0, 2], encoder.encode("a crane driver came", "he just left")[0, 2]
    assert single.word == first[:3].tolist() and pair.word == second[:3].tolist()
    assert samples.word_similarity == pytest.approx(float(torch.cosine_similarity(first, second, 0)))
    means = encoder.encode("a crane is flying")[0].mean(0), encoder.encode("a crane driver came", "he just left")[0].mean(0)
    assert samples.sentence_similarity == pytest.approx(float(torch.cosine_similarity(*means, 0)))
    assert samples.word_similarity < 0.9999, "a word's vector depends on what stands around it"


def test_cranes_vector_is_the_mean_over_its_pieces(tmp_path) -> None:
    letters = train_wordpiece(lambda: [" ".join(ascii_lowercase)] * 3, 100, lowercase=True)
    encoder = load(tmp_path, "bert", letters)
    single, pair = sample_encodings(encoder).encodings
    places = [2, 3, 4, 5, 6]
    assert single.tokens[1:8] == ["a", "c", "##r", "##a", "##n", "##e", "i"]
    assert encoder.words("a crane is flying")[1] == ("crane", places)
    assert single.word == pytest.approx(encoder.encode("a crane is flying")[0, places].mean(0)[:3].tolist())
    assert single.shape == [1, len(single.tokens), 16] and pair.shape == [1, len(pair.tokens), 16]
    assert single.unknown == pair.unknown == []


def test_words_that_became_the_unknown_token_are_named(tmp_path) -> None:
    tokenizer = Tokenizer.from_str(words().to_str().replace('"crane":', '"crone":').replace('"left":', '"lift":'))
    single, pair = sample_encodings(load(tmp_path, "deck", tokenizer)).encodings
    assert single.unknown == ["crane"] and pair.unknown == ["crane", "left"]
    assert single.tokens[2] == "<unk>"
