"""The vocabulary: the deck's words, one rule for tokenizing, the same bytes each time."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.data.tokenizer import Vocabulary, split_words
from pipeline.data.vocabulary import build_vocabulary
from pipeline.errors import CorpusError
from pipeline.settings import load_preset
from pipeline.storage import Store
from pipeline.tokens import WORD_LEVEL_TOKENS

COUNTS = {"the": 9, "b": 5, "a": 5, "z": 5, "rare": 4, "<unk>": 50, "<cls>": 7}


def words_of(text: str) -> list[str]:
    words, _ = split_words(pa.array([text], pa.large_string()))
    return words.to_pylist()


def test_ids_are_special_tokens_then_falling_count_then_code_point() -> None:
    assert Vocabulary.of_words(COUNTS, 5).table.tokens == [*WORD_LEVEL_TOKENS.values(), "the", "a", "b", "z"]


def test_every_code_point_splits_and_lowers_as_the_saved_tokenizer_does() -> None:
    tokenizer = Vocabulary.of_words(COUNTS, 5).tokenizer
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]
    for start in range(0, len(points), 4096):
        texts = [f"x{c}Y {c}" for c in points[start : start + 4096]]
        for one_by_one in (False, True):  # a text that Arrow would get wrong may stand among others, or alone
            words = (
                [w for t in texts for w in words_of(t)] if one_by_one else split_words(pa.array(texts, pa.large_string()))[0].to_pylist()
            )
            wanted = [
                word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
            ]
            assert words == wanted
            if start:  # the first block holds all of ASCII and the exceptions; one way is enough for the rest
                break


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=5))
def test_ids_are_those_of_the_saved_tokenizer(texts: list[str]) -> None:
    vocabulary = Vocabulary.of_words(COUNTS | {"\u03c3": 6, "i\u0307": 6}, 5)
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    tokenizer.encode_special_tokens = True
    ids, offsets = vocabulary.encode(pa.array(texts, pa.large_string()))
    for row, text in enumerate(texts):
        found = tokenizer.encode(text, add_special_tokens=False).ids
        wanted = [vocabulary.table.unknown_id if token < len(WORD_LEVEL_TOKENS) else token for token in found]
        assert ids[offsets[row] : offsets[row + 1]].tolist() == wanted


def test_text_that_spells_a_special_token_is_unknown() -> None:
    vocabulary = Vocabulary.of_words(COUNTS, 5)
    ids, _ = vocabulary.encode(pa.array([*WORD_LEVEL_TOKENS.values(), "the"], pa.large_string()))
    assert ids.tolist() == [vocabulary.table.unknown_id] * 5 + [5]


def test_two_processes_with_different_hash_seeds_write_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys; from pipeline.data.tokenizer import Vocabulary\n"
        "words = {f'w{i % 97}x{i}': 5 + i % 3 for i in range(500)}\n"
        "sys.stdout.write(Vocabulary.of_words({w: words[w] for w in set(words)}, 5).tokenizer.to_str())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in "12"]
    assert runs[0].returncode == 0 and len(runs[0].stdout) > 5000
    assert runs[0].stdout == runs[1].stdout


def test_a_corpus_without_a_frequent_word_names_the_file_and_the_setting(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, " one two . three four . \n")
    with pytest.raises(CorpusError, match=r"train split: .*vocabulary\.min_count"):
        build_vocabulary(store, corpus, load_preset("tiny"))
    assert not (tmp_path / "vocabulary").exists()


def test_wikitext2_has_the_decks_vocabulary(wikitext2_built) -> None:
    words = Vocabulary.open(wikitext2_built.vocabulary).table.tokens
    assert len(words) == 20_256
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()
    assert digest == "ef65fa99d9bf0d519849eddfdaf50887e1a8c0ba2273714048543a6a3526f739"
    assert {"a", "crane", "is", "flying", "driver", "came", "he", "just", "left"} <= set(words)
    assert wikitext2_built.vocabulary.facts["tokens"] == 1_926_788
