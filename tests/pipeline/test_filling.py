"""Fill-mask, with both kinds of vocabulary. That its figures are those of transformers' pipeline, test_transformers shows."""

import pytest
import torch

from pipeline.encoding import Encoder
from pipeline.errors import EncodingError
from pipeline.filling import fill_mask
from pipeline.storage import Store
from tests.pipeline.encoders import publish_encoder, wordpiece, words


@pytest.fixture(scope="module", params=["bert", "deck"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    store = Store(str(tmp_path_factory.mktemp("store")))
    return Encoder.load(publish_encoder(store, request.param, wordpiece() if request.param == "bert" else words()).address)


def mask_of(encoder: Encoder) -> str:
    return encoder.table.special_tokens["mask_token"]


def test_probabilities_are_the_heads_at_each_mask(encoder: Encoder) -> None:
    mask, table = mask_of(encoder), encoder.table
    found = fill_mask(encoder, f"a {mask} is {mask}", top=len(table))
    ids = [table.cls_id, table.ids["a"], table.mask_id, table.ids["is"], table.mask_id, table.sep_id]
    (vectors,) = encoder.encode_input_ids([ids])
    with torch.inference_mode():
        wanted = torch.softmax(encoder.model.masked_lm(vectors[[2, 4]]), -1)
    assert len(found) == 2
    for row, probabilities in zip(found, wanted, strict=True):
        assert sum(probability for _, probability in row) == pytest.approx(1, abs=1e-5)
        assert [probability for _, probability in row] == sorted((probability for _, probability in row), reverse=True)
        for token, probability in row:
            assert probability == pytest.approx(float(probabilities[table.ids[token]]), abs=1e-6)
    assert [row[:3] for row in found] == fill_mask(encoder, f"a {mask} is {mask}", top=3)
    assert len(fill_mask(encoder, mask)[0]) == 5


def test_other_special_tokens_in_the_text_are_text(encoder: Encoder) -> None:
    mask = mask_of(encoder)
    spelt = encoder.table.special_tokens["sep_token"]
    (ids,) = encoder.plain_ids([f"a {spelt} crane"])
    assert encoder.table.sep_id not in ids
    assert fill_mask(encoder, f"a {spelt} {mask}") != fill_mask(encoder, f"a {mask}")


@pytest.mark.parametrize("text", ["a crane", "", None, 3, ["a", "[MASK]"], "a [mask] <MASK>"])
def test_a_text_without_a_mask_is_a_clear_error(encoder: Encoder, text: object) -> None:
    with pytest.raises(EncodingError, match=r"fill-mask: got .* wanted a text with (\[MASK\]|<mask>)"):
        fill_mask(encoder, text)


@pytest.mark.parametrize("top", [0, -1, 1_000_000, 2.0, "5"])
def test_how_many_is_checked(encoder: Encoder, top: object) -> None:
    with pytest.raises(EncodingError, match="wanted 1 to"):
        fill_mask(encoder, mask_of(encoder), top)


def test_the_longest_text_fits_and_one_token_more_is_a_clear_error(encoder: Encoder) -> None:
    assert len(fill_mask(encoder, "a " * 61 + mask_of(encoder))) == 1
    with pytest.raises(EncodingError, match=r"65 tokens .* wanted at most 64"):
        fill_mask(encoder, "a " * 62 + mask_of(encoder))


def test_text_that_is_no_unicode_is_a_clear_error(encoder: Encoder) -> None:
    with pytest.raises(EncodingError, match="wanted Unicode"):
        fill_mask(encoder, f"\udcff {mask_of(encoder)}")
