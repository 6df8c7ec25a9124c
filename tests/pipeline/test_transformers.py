"""An exported encoder in transformers, in a process without this project: the same model, the same ids."""

import random

import pytest
import torch
from safetensors.torch import load_file

from pipeline.encoding import Encoder
from pipeline.filling import fill_mask
from pipeline.storage import Store
from tests.conftest import WORDS
from tests.pipeline.encoders import UNICODE, Seen, in_transformers, publish_encoder, wordpiece, words

ROWS = [["a crane is flying"], ["a crane driver came", "he just left"], ["Crème brûlée 日本語"], ["a"]]
MASKED = ["a [MASK] is flying", "[MASK] crane, driver [MASK]", "Crème[MASK]brûlée", "[MASK]"]


def random_texts(count: int) -> list[list[str]]:
    """Texts and pairs in many scripts, with odd spaces and punctuation."""
    rng = random.Random(0)
    parts = [
        *WORDS,
        *UNICODE,
        "Flying",
        "RIVER",
        "unheardof",
        "x" * 101,
        "don't",
        "U.S.",
        "3,14",
        "--",
        "\u00a0",
        "\u200b",
        "\t",
        "\u0000",
        "\uffff",
        "ß",
    ]

    def part(least: int = 0) -> str:
        return rng.choice([" ", " ", "", "  "]).join(rng.choices(parts, k=rng.randint(least, 6)))

    return [[part()] if number % 2 else [part(), part(1)] for number in range(count)]  # transformers takes an empty second text for none


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Encoder, Seen]]:
    """Encoders of both casings, and the deck's, as loaded here and as transformers sees them."""
    work = tmp_path_factory.mktemp("transformers")
    store = Store(str(work / "store"))
    made = {
        "uncased": publish_encoder(store, "bert", wordpiece(lowercase=True)),
        "cased": publish_encoder(store, "bert", wordpiece(lowercase=False)),
        "words": publish_encoder(store, "deck", words()),
    }
    texts = random_texts(200)
    look = [
        {"folder": made[name].address, "out": str(work / name), "rows": ROWS, "texts": texts, "masked": MASKED}
        for name in ("uncased", "cased")
    ]
    in_transformers(work, look=look, tokenize=[{"folder": made["words"].address, "out": str(work / "words"), "texts": texts}])
    return {name: (Encoder.load(output.address), Seen(work / name)) for name, output in made.items()}


CASINGS = pytest.mark.parametrize("casing", ["uncased", "cased"])


@CASINGS
def test_nothing_is_missing_and_nothing_unexpected_but_other_heads(seen, casing: str) -> None:
    loading = seen[casing][1].report["loading"]
    heads = {
        "AutoModel": ("cls.",),
        "AutoModelForMaskedLM": ("cls.seq_relationship.", "bert.pooler."),
        "BertForPreTraining": (),
    }
    for kind, others in heads.items():
        assert loading[kind]["missing_keys"] == [] and loading[kind]["mismatched_keys"] == [], kind
        assert all(name.startswith(others) for name in loading[kind]["unexpected_keys"]), kind
    assert loading["BertForPreTraining"]["unexpected_keys"] == []


@CASINGS
def test_hidden_states_and_logits_of_both_tasks_are_the_same(seen, casing: str) -> None:
    encoder, theirs = seen[casing]
    for number, row in enumerate(ROWS):
        hidden = encoder.encode(*row)
        torch.testing.assert_close(hidden, theirs.tensors[f"hidden.{number}"], atol=1e-5, rtol=0)
        with torch.inference_mode():
            mlm, nsp = encoder.model.masked_lm(hidden[0]), encoder.model.next_sentence(hidden[:, 0])
        torch.testing.assert_close(mlm, theirs.tensors[f"mlm.{number}"][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(nsp, theirs.tensors[f"nsp.{number}"], atol=1e-5, rtol=0)  # 0: B follows A, there and here


@CASINGS
def test_tied_weights_stay_tied_there_and_back_again(seen, casing: str) -> None:
    encoder, theirs = seen[casing]
    assert theirs.report["tied"]
    assert encoder.model.masked_lm.decoder.weight is encoder.model.encoder.token_embedding.weight
    back = Encoder.load(theirs.folder / "BertForPreTraining")
    assert back.model.masked_lm.decoder.weight.data_ptr() == back.model.encoder.token_embedding.weight.data_ptr()
    state, wanted = back.model.state_dict(), encoder.model.state_dict()
    assert state.keys() == wanted.keys() and all(torch.equal(state[name], wanted[name]) for name in wanted)
    assert not any("decoder.weight" in name for name in load_file(theirs.folder / "BertForPreTraining" / "model.safetensors"))


@pytest.mark.parametrize("name", ["uncased", "cased", "words"])
def test_its_tokenizer_gives_the_same_ids(seen, name: str) -> None:
    encoder, theirs = seen[name]
    texts = random_texts(200)
    found = [encoder.tokens(*text) for text in texts]
    assert found == theirs.report["tokens"]
    kinds = {token for row in found for token in row}
    assert len(kinds) > 25, "the texts reach much of the vocabulary"


@CASINGS
def test_its_tokenizer_knows_segments_lengths_and_special_tokens(seen, casing: str) -> None:
    encoder, theirs = seen[casing]
    rows = [encoder.tokenizer.encode(*text) for text in random_texts(200)]
    assert [row.type_ids for row in rows] == theirs.report["segments"]
    assert theirs.report["model_max_length"] == 64
    assert theirs.report["special"] == {**encoder.table.special_tokens, "pad_token_id": encoder.table.pad_id}


def test_cased_and_uncased_differ(seen) -> None:
    assert seen["uncased"][0].tokens("FLYING") == seen["uncased"][0].tokens("flying")
    assert seen["cased"][0].tokens("FLYING") != seen["cased"][0].tokens("flying")


@CASINGS
def test_fill_mask_gives_its_pipelines_probabilities(seen, casing: str) -> None:
    encoder, theirs = seen[casing]
    for text, wanted in zip(MASKED, theirs.report["filled"], strict=True):
        found = fill_mask(encoder, text)
        assert [[token for token, _ in each] for each in found] == [[token for token, _ in each] for each in wanted]
        scores = torch.tensor([[score for _, score in each] for each in found])
        torch.testing.assert_close(scores, torch.tensor([[score for _, score in each] for each in wanted]), atol=1e-5, rtol=0)
