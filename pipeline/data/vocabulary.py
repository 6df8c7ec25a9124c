"""Words -> ids: a word-level vocabulary, saved as `tokenizer.json`.

In: the corpus's training text. Out: a file that any `tokenizers` user can load. The decision that matters: there is
one rule for splitting text into words, that of the file (lower case, white space); the fast path through Arrow gives
the same words and steps aside for the few characters where it would not.
"""

import heapq
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from ..errors import CorpusError, DamagedOutputError
from ..settings import VocabularySettings
from ..storage import Output, Recipe, Store
from ..tokens import CLS, CLS_ID, FIRST_WORD_ID, MASK_ID, PAD_ID, SEP, SEP_ID, SPECIAL_TOKENS, TOKENIZER, UNKNOWN, UNKNOWN_ID
from .documents import TEXT_FORM, find_documents, read_blocks, split_label
from .parallel import map_in_threads
from .ragged import offsets_of
from .sentences import split_sentences

FORMAT = 1
STAGE = "vocabulary"
# What `tokenizers` splits at besides a space, and a capital I with a dot, of which it makes two characters and Arrow one.
# A test tries every code point.
_UNUSUAL = "[\t-\r\x1c-\x1f\x85\xa0\u0130\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"


def split_words(sentences: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The lower-cased words of each sentence (large_string [S]).

    :returns: the words of all sentences one after another [T], and the offsets of the sentences among them [S + 1].
    """
    lower = pc.utf8_lower(sentences)
    unusual = pc.invert(pc.ascii_is_printable(sentences))  # few, so that the slower look is taken at few
    unusual = pc.replace_with_mask(unusual, unusual, pc.match_substring_regex(sentences.filter(unusual), _UNUSUAL))
    if pc.any(unusual).as_py():
        plain = [_spaced(sentence) for sentence in sentences.filter(unusual).to_pylist()]
        lower = pc.replace_with_mask(lower, unusual, pa.array(plain, pa.large_string()))
    words = pc.split_pattern(lower, " ")
    flat, lengths = words.flatten(), pc.list_value_length(words).to_numpy(zero_copy_only=False)
    empty = pc.equal(pc.binary_length(flat), 0)  # of an empty sentence, and between spaces that follow one another
    if pc.any(empty).as_py():
        lengths = lengths - np.bincount(pc.list_parent_indices(words).filter(empty), minlength=len(lengths))
        flat = flat.filter(pc.invert(empty))
    return flat, offsets_of(lengths)


def _spaced(sentence: str) -> str:
    """The words that `tokenizers` finds, with one space between."""
    return " ".join(word for word, _ in WhitespaceSplit().pre_tokenize_str(Lowercase().normalize_str(sentence)))


class Vocabulary:
    """Words and their ids: special tokens first, then by falling count, ties by code point."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        table = self.words.copy()
        # Text that spells a special token is text: it finds no word and is unknown.
        table[PAD_ID] = table[CLS_ID] = table[SEP_ID] = table[MASK_ID] = "\0 \0"
        self._table = pa.array(table, pa.large_string())

    def __len__(self) -> int:
        return len(self.words)

    def ids(self, words: pa.Array) -> npt.NDArray[np.int32]:
        """The ids of words (large_string [T]); words that are not in the vocabulary get the unknown token's."""
        found = pc.index_in(words, value_set=self._table)
        ids: npt.NDArray[np.int32] = pc.fill_null(found, UNKNOWN_ID).to_numpy()
        return ids

    def tokenizer(self) -> Tokenizer:
        """The same rule as a `tokenizers` tokenizer, with the template `<cls> A <sep> B <sep>`."""
        tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(self.words)}, unk_token=UNKNOWN))
        tokenizer.normalizer = Lowercase()
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.post_processor = TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, CLS_ID), (SEP, SEP_ID)],
        )
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
        return tokenizer

    @classmethod
    def count(cls, counts: Mapping[str, int], min_count: int) -> "Vocabulary":
        """Keep the words seen often enough; the order does not depend on the order of counting."""
        special = list(SPECIAL_TOKENS.values())
        kept = [(-count, word) for word, count in counts.items() if count >= min_count and word not in special]
        return cls([*special, *(word for _, word in sorted(kept))])

    @classmethod
    def open(cls, output: Output) -> "Vocabulary":
        """Read a published vocabulary.

        :raises DamagedOutputError: the file is not a word-level tokenizer.
        """
        try:
            with fsspec.open(output.file(TOKENIZER), "rb") as file:
                known: dict[str, int] = json.load(file)["model"]["vocab"]
            words = sorted(known, key=known.__getitem__)
            if [known[word] for word in words] != list(range(len(words))):
                raise ValueError("its ids are not 0, 1, 2 and so on")
            return cls(words)
        except (ValueError, LookupError, TypeError, AttributeError, FileNotFoundError) as error:
            raise DamagedOutputError(
                f"{output.file(TOKENIZER)}: not a readable tokenizer ({error}); delete its folder and run again"
            ) from error


def build_vocabulary(store: Store, corpus: Output, settings: VocabularySettings) -> Output:
    """Count the words of the training split and publish the vocabulary.

    :raises CorpusError: no word is seen often enough.
    """
    recipe = _recipe(settings, corpus.key)

    def build(folder: Path) -> dict[str, Any]:
        counts, tokens = _count_words(corpus.file("train.tokens"))
        vocabulary = Vocabulary.count(counts, settings.min_count)
        if len(vocabulary) == FIRST_WORD_ID:
            raise CorpusError(f"{split_label(corpus, 'train')}: {_why_empty(counts, settings.min_count)}")
        (folder / TOKENIZER).write_text(vocabulary.tokenizer().to_str(), "utf-8")
        known = sum(counts[word] for word in vocabulary.words if word in counts and word != UNKNOWN)
        return {"size": len(vocabulary), "tokens": tokens, "distinct_words": len(counts), "unknown_tokens": tokens - known}

    return store.make(recipe, build, verify=True)


def kept_vocabulary(store: Store, key: str, settings: VocabularySettings, corpus_key: str | None = None) -> Output:
    """The vocabulary of an earlier corpus, kept for another.

    :param corpus_key: where the vocabulary is gone, it is made again from this corpus, if that is what it was made from.
    :raises CorpusError: it is not in the store, or was made with other settings.
    """
    output = store.whole(STAGE, key, verify=True)
    if output is None and corpus_key and _recipe(settings, corpus_key).key == key and (corpus := store.whole("corpus", corpus_key)):
        return build_vocabulary(store, corpus, settings)
    if output is None:
        raise CorpusError(f"vocabulary_from: vocabulary {key} is not whole in {store.root}; run where it was made, or count words anew")
    asked = settings.for_key()
    if output.manifest["settings"] != asked:
        found = f"was made with {output.manifest['settings']}, these settings are {asked}"
        raise CorpusError(f"vocabulary_from: vocabulary {key} {found}; give the same settings, or count words anew")
    return output


def _recipe(settings: VocabularySettings, corpus_key: str) -> Recipe:
    return Recipe(STAGE, FORMAT, settings.for_key(), {"corpus": corpus_key})


def _why_empty(counts: Mapping[str, int], min_count: int) -> str:
    if not counts:
        return f"no paragraph has a sentence that ends in ` . `, so there is no word; {TEXT_FORM}"
    most = heapq.nlargest(3, counts.items(), key=lambda entry: (entry[1], entry[0]))
    seen = ", ".join(f"{word!r} {count} times" for word, count in most)
    return f"no word is seen {min_count} times (most frequent: {seen}); lower vocabulary.min_count or bring more text"


def _count_words(address: str) -> tuple[dict[str, int], int]:
    """How often each word is seen, and how many words there are in all."""

    def count(block: bytes) -> tuple[int, dict[str, int]]:
        words, _ = split_words(split_sentences(find_documents(block)).text)
        values, seen = pc.value_counts(words).flatten()
        return len(words), dict(zip(values.to_pylist(), seen.to_pylist(), strict=True))

    counts: dict[str, int] = {}
    tokens = 0
    for words, found in map_in_threads(count, read_blocks(address)):
        tokens += words
        for word, seen in found.items():
            counts[word] = counts.get(word, 0) + seen
    return counts, tokens
