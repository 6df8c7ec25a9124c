"""Encoding as the deck does it, alone and in batches."""

import json
import random
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.encoder_format import HEADS, config_of, from_transformers, names_of_head, shape_of, to_transformers
from pipeline.encoding import Encoder
from pipeline.errors import EncodingError
from pipeline.model.encoder import EncoderShape
from pipeline.storage import Store
from tests.pipeline.encoders import publish_encoder, random_model, wordpiece

SINGLE = ["a", "crane", "is", "flying"]
PAIR = (["a", "crane", "driver", "came"], ["he", "just", "left"])
D = 16


@pytest.fixture(scope="module")
def encoder(small_encoder) -> Encoder:
    return Encoder.load(small_encoder.address)


def test_the_decks_sentences(encoder: Encoder) -> None:
    single, pair = encoder.encode(SINGLE), encoder.encode(*PAIR)
    assert single.shape == (1, 6, D) and pair.shape == (1, 10, D)
    assert encoder.tokens(SINGLE) == ["<cls>", "a", "crane", "is", "flying", "<sep>"]
    assert encoder.tokens(*PAIR) == ["<cls>", "a", "crane", "driver", "came", "<sep>", "he", "just", "left", "<sep>"]
    assert not torch.allclose(single[:, 2, :], pair[:, 2, :], atol=1e-3), "crane's vector depends on its sentence"


@pytest.fixture(scope="module", params=["words", "pieces"])
def either(request: pytest.FixtureRequest, encoder: Encoder, pieces: Encoder) -> Encoder:
    """An encoder of each architecture and kind of vocabulary."""
    return encoder if request.param == "words" else pieces


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A BERT as published, whose tokens are pieces of words."""
    return Encoder.load(publish_encoder(Store(str(tmp_path_factory.mktemp("pieces"))), "bert", wordpiece()).address)


def test_a_list_of_words_gives_vectors_of_their_pieces(pieces: Encoder) -> None:
    sentence = ["a", "Crane's", "wing", "unheardof"]
    tokens = pieces.tokens(sentence)
    assert len(tokens) > 6 and torch.equal(pieces.encode(sentence), pieces.encode("a Crane's wing unheardof"))
    assert pieces.encode(sentence).shape == (1, len(tokens), D)
    found = pieces.words("a  Crane's wing", "it\u0007 \u0007")
    assert [word for word, _ in found] == ["a", "Crane's", "wing", "it\u0007", "\u0007"]
    tokens = pieces.tokens("a  Crane's wing", "it\u0007 \u0007")
    joined = ["".join(tokens[place].removeprefix("##") for place in places) for _, places in found]
    assert joined == ["a", "crane's", "wing", "it", ""], "what the tokenizer drops has no token"
    assert sorted(place for _, places in found for place in places) == [
        n for n, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")
    ]


def test_a_string_and_its_tokens_are_one_sentence(encoder: Encoder) -> None:
    assert torch.equal(encoder.encode("A crane  is flying"), encoder.encode(SINGLE))
    assert torch.equal(encoder.encode("a crane driver came", "he just left"), encoder.encode(*PAIR))


def test_a_batch_changes_no_result(either: Encoder) -> None:
    words = ["a", "crane", "is", "flying", "driver", "came", "he", "just", "left", "oldest"]
    rng = random.Random(0)
    inputs = [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(70)] + [PAIR, ("a", "")]
    for size in (1, 7, 200):
        for entry, vectors in zip(inputs, either.encode_many(inputs, batch_size=size), strict=True):
            alone = either.encode(*entry) if isinstance(entry, tuple) else either.encode(entry)
            torch.testing.assert_close(vectors, alone[0], atol=1e-5, rtol=0)
    assert either.encode_many([]) == []
    many = either.encode_many((f"{'a ' * (number % 3)}" for number in range(1500)), batch_size=64)  # more than are tokenized at once
    assert [len(vectors) for vectors in many] == [2 + number % 3 for number in range(1500)]


def test_token_ids_give_what_their_text_gives(either: Encoder) -> None:
    texts = ["he left", "a crane is flying", "", PAIR, "a"]
    rows = [either.tokenizer.encode(*(map(" ".join, text) if isinstance(text, tuple) else (text,))) for text in texts]
    found = either.encode_input_ids([row.ids for row in rows], [row.type_ids for row in rows])
    for mine, wanted in zip(found, either.encode_many(texts), strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(either.encode_input_ids([rows[0].ids])[0], either.encode("he left")[0], atol=1e-5, rtol=0)
    tensors = either.encode_input_ids([torch.tensor(row.ids) for row in rows], [torch.tensor(row.type_ids) for row in rows])
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(tensors, found, strict=True))
    assert either.encode_input_ids([]) == []


@pytest.mark.parametrize(
    ("ids", "kinds", "message"),
    [
        ([[2, 3], []], None, "row 1: got 0 tokens, wanted 1 to 64"),
        ([[2] * 65], None, "row 0: got 65 tokens"),
        ([[2, 10_000]], None, "row 0: got token ids 2 to 10000"),
        ([[2.0, 3]], None, "row 0: got float, wanted whole numbers"),
        ([[2, "3"]], None, "row 0: got str, wanted whole numbers"),
        ([2, 3], None, "row 0: got 2, wanted a row of numbers"),
        ([[2, -1]], None, "row 0: got token ids -1 to 2"),
        ([[2, 3]], [[0]], "row 0: got token_type_ids"),
        ([[2, 3]], [[0, 2]], "row 0: got token_type_ids"),
        ([[2, 3]], [], "got 0 rows, wanted 1"),
    ],
)
def test_token_ids_that_are_none_are_refused(encoder: Encoder, ids: list, kinds: list | None, message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        encoder.encode_input_ids(ids, kinds)


def test_text_that_spells_a_special_token_is_text_in_pieces_too(pieces: Encoder) -> None:
    tokens = pieces.tokens("he [MASK] [CLS]", "[SEP] a")
    assert [tokens.count(token) for token in ("[CLS]", "[SEP]", "[MASK]")] == [1, 2, 0] and tokens[0] == "[CLS]"


def test_one_cls_whatever_the_text_spells(encoder: Encoder) -> None:
    assert encoder.tokens("he <cls>left <pad> <MASK>") == ["<cls>", "he", "<unk>", "<unk>", "<unk>", "<sep>"]
    assert encoder.tokens(["<cls>", "he"], ["<sep>"]) == ["<cls>", "<unk>", "he", "<sep>", "<unk>", "<sep>"]


def test_an_empty_text_is_cls_and_sep(either: Encoder) -> None:
    assert either.encode("").shape == (1, 2, D)
    assert either.encode([]).shape == (1, 2, D)


def test_the_longest_input_fits_and_one_token_more_is_a_clear_error(either: Encoder) -> None:
    assert either.encode("a " * 62).shape == (1, 64, D)
    with pytest.raises(EncodingError, match=r"65 tokens .* wanted at most 64"):
        either.encode("a " * 63)
    with pytest.raises(EncodingError, match=r"input 1: 65 tokens"):
        either.encode_many(["a", "a " * 63])
    with pytest.raises(EncodingError, match=r"input 1030: 65 tokens"):
        either.encode_many("a" if number != 1030 else "a " * 63 for number in range(2000))


@pytest.mark.parametrize("wrong", [3, None, "a \udcff", ["a\ud800"], ["a", 3], b"a", {"text": "a"}])
def test_what_is_no_text_is_a_clear_error(encoder: Encoder, wrong: object) -> None:
    with pytest.raises(EncodingError, match=r"wanted (a string or a list of tokens|Unicode)"):
        encoder.encode(wrong)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("a b", "wanted many inputs"),
        ([("a", "b", "c")], "wanted a pair"),
        ([["new york", "a"]], "wanted tokens of one word"),
        ([["a", ""]], "one word"),
    ],
)
def test_inputs_that_would_give_vectors_out_of_line_are_refused(encoder: Encoder, inputs: object, message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        encoder.encode_many(inputs)
    with pytest.raises(EncodingError, match="at least 1"):
        encoder.encode_many(["a"], batch_size=0)


@pytest.mark.parametrize(("architecture", "decoder"), [("deck", "cls.predictions.decoder.weight"), ("bert", "cls.predictions.bias")])
def test_names_survive_the_way_there_and_back(architecture: str, decoder: str) -> None:
    shape = EncoderShape(30, 3, 8, 2, 12, 0.1, 0.1, 16, architecture)
    state = random_model(shape).state_dict()
    named = to_transformers(state, shape)
    assert "bert.encoder.layer.2.attention.self.key.weight" in named and named[decoder].shape[0] == 30
    back = from_transformers(named, shape)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    assert shape_of(config_of(shape, 0)) == shape


@pytest.mark.parametrize("head", HEADS)
def test_a_head_may_be_left_out(head: str) -> None:
    shape = EncoderShape(30, 3, 8, 2, 12, 0.1, 0.1, 16, "bert")
    state = random_model(shape).state_dict()
    rest = {name: value for name, value in state.items() if not name.startswith(f"{head}.")}
    named = to_transformers(rest, shape, [head])
    assert named.keys() == to_transformers(state, shape).keys() - names_of_head(shape, head)
    assert from_transformers(named, shape, [head]).keys() == rest.keys() < state.keys()
    with pytest.raises(KeyError):
        from_transformers(named, shape)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta', wanted 'bert' or 'bert-deck'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu', wanted 'gelu'"),
        ({"layer_norm_eps": 1e-5, "is_decoder": True}, "layer_norm_eps 1e-05, wanted 1e-12; is_decoder True, wanted False"),
        ({"position_embedding_type": "relative_key"}, "wanted 'absolute'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False, wanted True"),
    ],
)
def test_a_config_of_another_model_is_refused_by_what_differs(changed: dict, message: str) -> None:
    config = config_of(EncoderShape(30, 3, 8, 2, 12, 0.1, 0.1, 16, "bert"), 0)
    with pytest.raises(ValueError, match=re.escape(message)):
        shape_of(config | changed)


def test_the_folder_says_what_it_is_and_where_it_came_from(small_encoder) -> None:
    folder = Path(small_encoder.address)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "manifest.json",
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == D and config["num_hidden_layers"] == 2
    assert "cls.seq_relationship.weight" in load_file(folder / "model.safetensors")
    assert set(small_encoder.facts["lineage"]) == {"corpus", "vocabulary", "train", "valid", "run"}
    assert json.loads((folder / "tokenizer_config.json").read_text())["cls_token"] == "<cls>"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_is_no_encoder_is_a_clear_error(small_encoder, tmp_path: Path, missing: str) -> None:
    for path in Path(small_encoder.address).iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(EncodingError, match=missing):
        Encoder.load(tmp_path)
    (tmp_path / missing).write_text("{}")
    with pytest.raises(EncodingError):
        Encoder.load(tmp_path)
