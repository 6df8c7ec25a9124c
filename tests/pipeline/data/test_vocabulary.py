"""The vocabulary: the deck's words and WordPiece, one rule for tokenizing, the same bytes each time."""

import functools
import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece

from pipeline.data.tokenizer import Vocabulary, split_words, template
from pipeline.data.vocabulary import build_vocabulary
from pipeline.data.wordpiece import train_wordpiece
from pipeline.errors import CorpusError, PipelineError
from pipeline.settings import Preset, load_preset
from pipeline.storage import Store
from pipeline.tokens import TOKENIZER, WORD_LEVEL_TOKENS, WORDPIECE_TOKENS

COUNTS = {"the": 9, "b": 5, "a": 5, "z": 5, "rare": 4, "<unk>": 50, "<cls>": 7}
TEXT = [f"The {word}ing crane un{word}ed Ünter {word}s , {number % 7} {word} !" for number, word in enumerate(("fly", "walk", "talk") * 40)]


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


def test_two_processes_with_different_hash_seeds_write_the_same_bytes() -> None:
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


@functools.cache
def wordpiece() -> Vocabulary:
    """A small trained one."""
    return Vocabulary(train_wordpiece(lambda: TEXT, 90, lowercase=True))


def pieces(*known: str) -> Vocabulary:
    """A WordPiece vocabulary of these pieces, as training makes one."""
    tokenizer = train_wordpiece(lambda: ["a b c"], 100, lowercase=True)
    tokens = [*WORDPIECE_TOKENS.values(), *known]
    ids = {token: number for number, token in enumerate(tokens)}
    made = WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100, continuing_subword_prefix="##")
    tokenizer.model = made
    return Vocabulary(tokenizer)


def tokens_of(vocabulary: Vocabulary, *texts: str) -> list[list[str]]:
    """The tokens of each text."""
    ids, offsets = vocabulary.encode(pa.array(texts, pa.large_string()))
    return [[vocabulary.table.tokens[token] for token in ids[a:b]] for a, b in pairwise(offsets)]


def test_a_word_without_pieces_and_one_of_more_than_a_hundred_characters_are_one_unknown_token() -> None:
    vocabulary = pieces("un", "##want", "##ed", "a", "##a")
    found = tokens_of(vocabulary, "unwanted", "unwantedX", "a" * 100, "a" * 101, "un a")
    assert found == [["un", "##want", "##ed"], ["[UNK]"], ["a", *["##a"] * 99], ["[UNK]"], ["un", "a"]]


def test_text_that_spells_a_special_piece_is_pieces() -> None:
    vocabulary = pieces("[", "]", "mask", "cls", "sep", "pad", "unk", "a")
    found = tokens_of(vocabulary, "a [MASK] a", "[CLS]", "[SEP] [PAD]", "[UNK]")
    assert found == [["a", "[", "mask", "]", "a"], ["[", "cls", "]"], ["[", "sep", "]", "[", "pad", "]"], ["[", "unk", "]"]]


def test_wordpiece_gives_every_word_back() -> None:
    vocabulary = Vocabulary(train_wordpiece(lambda: TEXT, 120, lowercase=True))
    assert vocabulary.table.tokens[:5] == list(WORDPIECE_TOKENS.values()) and len(vocabulary) <= 120
    assert vocabulary.table.continues_word.any()
    for text, found in zip(TEXT, tokens_of(vocabulary, *TEXT), strict=True):
        assert "[UNK]" not in found
        assert " ".join(found).replace(" ##", "") == text.lower().replace("ü", "u")


@trials(deadline=None)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=5))
def test_ids_of_wordpiece_are_those_of_the_saved_tokenizer(texts: list[str]) -> None:
    vocabulary = wordpiece()
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    tokenizer.encode_special_tokens = True
    ids, offsets = vocabulary.encode(pa.array(texts, pa.large_string()))
    for row, text in enumerate(texts):
        assert ids[offsets[row] : offsets[row + 1]].tolist() == tokenizer.encode(text, add_special_tokens=False).ids


def test_two_processes_with_different_hash_seeds_train_the_same_wordpiece() -> None:
    code = (
        "import sys; from pipeline.data.wordpiece import train_wordpiece\n"
        "texts = [' '.join(f'w{i % 97}x{(i * k) % 89}' for i in range(200)) for k in range(1, 30)]\n"
        "sys.stdout.write(train_wordpiece(lambda: texts, 600, lowercase=True).to_str())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in "1234"]
    assert runs[0].returncode == 0 and len(runs[0].stdout) > 5000
    assert len({run.stdout for run in runs}) == 1


def bring(path: Path, vocabulary: Vocabulary, **replaced: object) -> Preset:
    """A tokenizer's file with parts replaced, and the preset that takes it."""
    path.write_text(json.dumps(json.loads(vocabulary.tokenizer.to_str()) | replaced), "utf-8")
    return load_preset("tiny").override(vocabulary={"kind": "file", "file": str(path)})


def test_a_tokenizer_that_is_brought_along_is_published_as_it_is_whatever_its_address(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path / "store"))
    corpus, given = publish(store, " a b . c d . \n"), wordpiece()
    made = [build_vocabulary(store, corpus, bring(tmp_path / name, given)) for name in ("one.json", "other.json")]
    assert made[0].key == made[1].key and made[1].found
    assert (Path(made[0].address) / TOKENIZER).read_bytes() == (tmp_path / "one.json").read_bytes()
    assert Vocabulary.open(made[0]).table == given.table


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"post_processor": None}, r"makes .* of a pair, wanted \[CLS\] A \[SEP\] B \[SEP\] with segments 0 and 1"),
        ({"added_tokens": [], "model": {"type": "WordPiece", "vocab": {"a": 0, "b": 1}}}, "no special token"),
        ({"model": {"type": "Nonsense"}}, "not a tokenizer that can be used"),
        ({"model": {"unk_token": "[OOV]"}}, r"not a tokenizer that can be used \(.*Missing \[UNK\]"),
        ({"model": {"vocab": {token: number for number, token in enumerate(WORDPIECE_TOKENS.values())}}}, "special tokens alone"),
    ],
    ids=["template", "special tokens", "no model", "unknown token", "no words"],
)
def test_a_tokenizer_that_lacks_what_pretraining_needs_is_refused_by_name(tmp_path: Path, publish, replaced: dict, message: str) -> None:
    store, path = Store(str(tmp_path / "store")), tmp_path / "tokenizer.json"
    whole = json.loads(wordpiece().tokenizer.to_str())
    parts = {name: whole[name] | value if name == "model" else value for name, value in replaced.items()}
    preset = bring(path, wordpiece(), **parts)
    with pytest.raises(PipelineError, match=rf"vocabulary\.file: {path}: .*{message}"):
        build_vocabulary(store, publish(store, " a . b . \n"), preset)


def test_tokens_that_share_an_id_are_refused(tmp_path: Path, publish) -> None:
    model = json.loads(wordpiece().tokenizer.to_str())["model"]
    preset = bring(tmp_path / "tokenizer.json", wordpiece(), model=model | {"vocab": model["vocab"] | {"twin": 7}})
    with pytest.raises(PipelineError, match=r"vocabulary\.file: .*its ids are not 0, 1, 2"):
        build_vocabulary(Store(str(tmp_path)), publish(Store(str(tmp_path)), " a . b . \n"), preset)


def test_whole_words_want_a_tokenizer_that_tells_them(tmp_path: Path, publish) -> None:
    store, special = Store(str(tmp_path)), WORDPIECE_TOKENS.values()
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate([*special, "a", "b", "ab"])}, [("a", "b")]))
    tokenizer.post_processor = template(WORDPIECE_TOKENS)
    tokenizer.add_special_tokens(list(special))
    corpus, preset = publish(store, " a b . ab . \n"), bring(tmp_path / "tokenizer.json", Vocabulary(tokenizer))
    assert build_vocabulary(store, corpus, preset).facts["size"] == 8
    with pytest.raises(PipelineError, match=r"vocabulary\.file: .*BPE do not say.*shards\.whole_word false"):
        build_vocabulary(store, corpus, preset.override(shards={"whole_word": True}))


def test_long_documents_of_which_none_falls_into_the_share_name_the_setting(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, " crane . \n" * 2_000_000, form="text")
    preset = load_preset("mini").override(vocabulary={"megabytes": 1})
    with pytest.raises(CorpusError, match=r"none of few, long documents falls into vocabulary\.megabytes, 1 of 20; raise it"):
        build_vocabulary(store, corpus, preset)


def test_chinese_characters_take_one_token_each_and_up_to_half_of_the_vocabulary() -> None:
    text = "".join(chr(0x4E00 + number) * 3 for number in range(180))
    vocabulary = Vocabulary(train_wordpiece(lambda: [text], 400, lowercase=True))
    assert len(vocabulary) == len(WORDPIECE_TOKENS) + 180
    fewer = Vocabulary(train_wordpiece(lambda: [text], 200, lowercase=True))
    assert len(fewer) == len(WORDPIECE_TOKENS) + 100


def test_a_tokenizer_file_that_is_not_there_is_named(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    preset = load_preset("tiny").override(vocabulary={"kind": "file", "file": str(tmp_path / "none.json")})
    with pytest.raises(PipelineError, match=rf"vocabulary\.file: {tmp_path}/none\.json: "):
        build_vocabulary(store, publish(store, " a . b . \n"), preset)


def test_wordpiece_of_a_corpus_is_that_of_its_training_split(tmp_path: Path, publish) -> None:
    store = Store(str(tmp_path))
    corpus = publish(store, "".join(f" {text} . {text} . \n" for text in TEXT), " zebra . quagga . \n")
    preset = load_preset("tiny").override(vocabulary={"kind": "wordpiece", "size": 100})
    made = build_vocabulary(store, corpus, preset)
    vocabulary = Vocabulary.open(made)
    assert made.facts["size"] == len(vocabulary) <= 100 and "z" not in vocabulary.table.tokens
    with pytest.raises(CorpusError, match="no document has a word"):
        build_vocabulary(store, publish(store, "no paragraph\n"), preset)
