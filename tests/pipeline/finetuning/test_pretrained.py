"""An encoder of WikiText-2 against random weights, under the same head on the same few sentences.

The encoder is one that pretraining has taught how words follow one another, which takes minutes, so it is brought along.
"""

import os
from pathlib import Path

import pytest

from tests.benchmarks.own_finetuning import accuracies

MARGIN = 0.15  # of held-out accuracy; EXPERIMENTS.md has what mini reaches


@pytest.fixture(scope="module")
def wikitext2_encoder() -> Path:
    """The folder of an encoder that was pretrained on WikiText-2."""
    if not (folder := os.environ.get("WIKITEXT2_ENCODER")):
        pytest.skip("set WIKITEXT2_ENCODER to artifacts/encoder/KEY, as `make pretrain PRESET=mini` makes it, to run this test")
    return Path(folder)


def test_pretraining_is_worth_its_time(wikitext2_encoder: Path, wikitext2: str, tmp_path: Path) -> None:
    found = accuracies(wikitext2_encoder, wikitext2, 1, tmp_path)
    assert found["pretrained"][0] > found["random"][0] + MARGIN
