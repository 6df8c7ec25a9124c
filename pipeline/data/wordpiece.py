"""Text -> a WordPiece tokenizer (Schuster and Nakajima 2012; as BERT uses it, arXiv 1810.04805), trained by `tokenizers`.

In: documents, twice. Out: a tokenizer. The decision that matters: the library numbers pieces in the order in which a hash
table gives them, so two trainings differ; here all pieces of one character are numbered beforehand, after which nothing is
left to that order, and the same text gives the same file.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from ..tokens import WORDPIECE_TOKENS
from .tokenizer import template

PREFIX = "##"
LONGEST_WORD = 100  # characters; a longer one is unknown
_COVERED = 0.9999  # share of the text's characters that the alphabet covers; the rest are so rare that words of them are unknown
_ALPHABET_SHARE = 2  # at most half of the tokens are characters, of which those that can go on with a word are there twice
_FEWEST = 2  # times that a piece has to be seen
_CODES = 0x110000
_TEXTS_AT_ONCE = 256


def train_wordpiece(texts: Callable[[], Iterable[str]], size: int, *, lowercase: bool) -> Tokenizer:
    """Train a tokenizer with the template `[CLS] A [SEP] B [SEP]`.

    :param texts: gives all documents, each time that it is called.
    :param size: tokens, special ones included; fewer where the text does not give so many.
    """
    special = list(WORDPIECE_TOKENS.values())
    tokenizer = _untrained({}, lowercase)
    alphabet = _alphabet(texts(), tokenizer, size // _ALPHABET_SHARE)
    within = [PREFIX + character for character in alphabet if _goes_on(character, tokenizer)]
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=_FEWEST,
        special_tokens=[*special, *within],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    known = tokenizer.get_vocab(with_added_tokens=False)
    trained = _untrained(known, lowercase)  # without the pieces among the special tokens
    trained.post_processor = template(WORDPIECE_TOKENS)
    trained.decoder = WordPieceDecoder(PREFIX)
    trained.add_special_tokens(special)
    return trained


def _untrained(pieces: dict[str, int], lowercase: bool) -> Tokenizer:
    unknown = WORDPIECE_TOKENS["unk_token"]
    model = WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD, continuing_subword_prefix=PREFIX)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def _alphabet(texts: Iterable[str], tokenizer: Tokenizer, most: int) -> list[str]:
    """The most frequent characters of words, as many as cover nearly all of the text, ties by code point; sorted by code point.

    :param most: tokens that they may take.
    """
    counts = np.zeros(_CODES, np.int64)
    waiting = iter(texts)
    while chunk := "".join(islice(waiting, _TEXTS_AT_ONCE)):
        seen = np.bincount(np.frombuffer(chunk.encode("utf-32-le"), "<u4"))
        counts[: len(seen)] += seen
    of_words: dict[str, int] = {}
    for code in np.flatnonzero(counts).tolist():
        for character in _normal(chr(code), tokenizer):
            of_words[character] = of_words.get(character, 0) + int(counts[code])
    falling = sorted(of_words, key=lambda character: (-of_words[character], character))
    covered = np.cumsum([of_words[character] for character in falling])
    enough = int(np.searchsorted(covered, _COVERED * covered[-1])) + 1 if falling else 0
    taken = np.cumsum([1 + _goes_on(character, tokenizer) for character in falling[:enough]])
    return sorted(falling[: int(np.searchsorted(taken, most, "right"))])


def _goes_on(character: str, tokenizer: Tokenizer) -> bool:
    """Whether a character can go on with a word: punctuation and Chinese characters stand alone."""
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(f"a{character}"))) == 1


def _normal(character: str, tokenizer: Tokenizer) -> Iterator[str]:
    """The characters of words that a character of text becomes; white space becomes none."""
    yield from "".join(tokenizer.normalizer.normalize_str(character).split())
