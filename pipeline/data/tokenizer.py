"""Text -> ids, by the rule of a `tokenizer.json`.

In: a tokenizer, or counts of words. Out: the ids of many texts at once. The decision that matters: there is one rule for
splitting text into tokens, that of the file; for words (lower case, white space) a fast path through Arrow gives the same
ones and steps aside for the few characters where it would not; by BERT's rules each distinct word is looked at once.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from ..errors import DamagedOutputError, PipelineError
from ..files import read_file
from ..ragged import offsets_of, spans
from ..storage import Output
from ..tokens import TOKENIZER, WORD_LEVEL_TOKENS, TokenTable

_AT_ONCE = 1024  # texts; what a tokenizer says of one takes more room than its ids
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


def template(special: Mapping[str, str]) -> TemplateProcessing:
    """`<cls> A <sep> B <sep>`, for special tokens whose ids are 0, 1, 2 and so on."""
    ids = {token: number for number, token in enumerate(special.values())}
    cls, sep = special["cls_token"], special["sep_token"]
    return TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, ids[cls]), (sep, ids[sep])]
    )


def _kinds(tokenizer: Mapping[str, Any]) -> list[str]:
    """What the JSON of a tokenizer says of its normalizer, pre-tokenizer and model."""
    return [(tokenizer[part] or {}).get("type", "") for part in ("normalizer", "pre_tokenizer", "model")]


class Vocabulary:
    """A tokenizer with its table of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True  # text that spells <cls> is text; the file cannot say so
        values = json.loads(tokenizer.to_str())
        self.table = TokenTable.read(values)
        self._splits_at_spaces = _kinds(values)[:2] == ["BertNormalizer", "BertPreTokenizer"]
        self._words: pa.Array | None = None
        if _kinds(values) == ["Lowercase", "WhitespaceSplit", "WordLevel"]:
            # Text that spells a special token is text: it finds no word and is unknown.
            table = ["\0 \0" if never else token for token, never in zip(self.table.tokens, self.table.never_masked, strict=True)]
            self._words = pa.array(table, pa.large_string())

    def __len__(self) -> int:
        return len(self.table)

    def encode(self, texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The ids of texts (large_string [S]), without special tokens but the unknown one.

        :returns: the ids of all texts one after another [T], and the offsets of the texts among them [S + 1].
        """
        if self._words is not None:
            words, offsets = split_words(texts)
            found: npt.NDArray[np.int32] = pc.fill_null(pc.index_in(words, value_set=self._words), self.table.unknown_id).to_numpy()
            return found, offsets
        return self._encode_distinct_words(texts) if self._splits_at_spaces else self._encode_each(texts)

    def _encode_distinct_words(self, texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Each word between spaces is tokenized once: BERT's rules never look across one."""
        split = pc.split_pattern(texts, " ")
        words = pc.dictionary_encode(split.flatten())
        ids, offsets = self._encode_each(words.dictionary)
        word: npt.NDArray[np.int32] = words.indices.to_numpy()
        lengths = np.diff(offsets)[word]
        ends = offsets_of(lengths)[offsets_of(pc.list_value_length(split).to_numpy(zero_copy_only=False))]
        return ids[spans(offsets[word], lengths)], ends

    def _encode_each(self, texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        parts, lengths = [np.zeros(0, np.int32)], list[int]()
        for start in range(0, len(texts), _AT_ONCE):
            rows = self.tokenizer.encode_batch_fast(texts[start : start + _AT_ONCE].to_pylist(), add_special_tokens=False)
            parts += [np.asarray(row.ids, np.int32) for row in rows]
            lengths += [len(row) for row in rows]
        ids = np.concatenate(parts)
        return np.where(self.table.never_masked[ids], np.int32(self.table.unknown_id), ids), offsets_of(np.asarray(lengths, np.int64))

    @classmethod
    def of_words(cls, counts: Mapping[str, int], min_count: int) -> Self:
        """Special tokens first, then the words seen often enough by falling count, ties by code point, whatever their order here."""
        special = list(WORD_LEVEL_TOKENS.values())
        kept = [(-count, word) for word, count in counts.items() if count >= min_count and word not in special]
        words = [*special, *(word for _, word in sorted(kept))]
        tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=WORD_LEVEL_TOKENS["unk_token"]))
        tokenizer.normalizer = Lowercase()
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.post_processor = template(WORD_LEVEL_TOKENS)
        tokenizer.add_special_tokens(special)
        return cls(tokenizer)

    @classmethod
    def open(cls, output: Output) -> Self:
        """Read a published vocabulary.

        :raises DamagedOutputError: the file is missing, or not a tokenizer.
        """
        try:
            return cls(Tokenizer.from_str(read_file(output.file(TOKENIZER)).decode()))
        except PipelineError:  # a store that is away says nothing of the file
            raise
        except Exception as error:  # `tokenizers` raises bare Exception
            raise DamagedOutputError(
                f"{output.file(TOKENIZER)}: not a readable tokenizer ({error}); delete its folder and run again"
            ) from error
