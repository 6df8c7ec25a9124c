"""Sentences -> vectors, from an encoder folder.

In: strings or lists of words, alone or in pairs, or token ids. Out: one vector a token, as the deck's
`get_bert_encoding` gives them: `<cls>` first, a `<sep>` after each sentence. A token is a word, with WordPiece a piece of
one; text that spells a special token is text. The decision that matters: sentences of a batch lie one after another, those
of like length together, and padding is masked, so what stands beside a sentence changes its vectors by rounding alone.

Legend: B rows, L length of a row, D hidden size, N tokens of all rows.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from tokenizers import Encoding, Tokenizer

from .encoder_format import CONFIG, WEIGHTS, from_transformers, shape_of
from .errors import EncodingError
from .model.layout import Layout
from .model.pretraining import BertForPretraining
from .pooling import check_pooling, pool
from .tokens import TOKENIZER, TokenTable, is_unicode

_TOKENIZED_AT_ONCE = 1024  # inputs; what the tokenizer says of one takes more room than its ids

Text = str | Sequence[str]
"""A string, or a list of words."""

Input = Text | tuple[Text, Text]
"""A sentence, or a pair of them as a tuple."""


def numbered(place: int, first: int = 0) -> str:
    """Begins a message about an input."""
    return f"input {first + place}: "


class Encoder:
    """A pretrained encoder with its tokenizer."""

    def __init__(self, model: BertForPretraining, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._cutting = Tokenizer.from_str(tokenizer.to_str())  # another, since threads may share an encoder
        self._cutting.enable_truncation(model.encoder.shape.max_position_embeddings, strategy="longest_first")
        for each in (self.tokenizer, self._cutting):
            each.encode_special_tokens = True  # text that spells <cls> is text; the file cannot say so
        try:
            self.table = TokenTable.read(json.loads(tokenizer.to_str()))
        except ValueError as error:
            raise EncodingError(f"{TOKENIZER}: {error}; wanted the tokenizer of an encoder folder") from error

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load from a local encoder folder.

        :raises EncodingError: the folder is not an encoder's.
        """
        folder = Path(folder)
        for name in (CONFIG, WEIGHTS, TOKENIZER):
            if not (folder / name).is_file():
                raise EncodingError(f"{folder}: no {name} here; wanted an encoder folder")
        try:
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            if "finetuning" in config:
                raise ValueError("it has a head; wanted the encoder that it started from")
            shape = shape_of(config)
            model = BertForPretraining(shape)
            model.load_state_dict(from_transformers(load_file(folder / WEIGHTS), shape))
            tokenizer = Tokenizer.from_str((folder / TOKENIZER).read_text("utf-8"))
        except Exception as error:  # `tokenizers` raises bare Exception
            raise EncodingError(f"{folder}: not an encoder of this project ({type(error).__name__}: {error})") from error
        return cls(model, tokenizer)

    def encode(self, text: Text, text_pair: Text | None = None, *, truncate: bool = False) -> torch.Tensor:
        """Encode one sentence or one pair.

        :param truncate: drop the last tokens, of a pair those of the longer one, that are more than the model takes.
        :returns: (1, L, D), where L counts `<cls>` and each `<sep>`.
        :raises EncodingError: more tokens than the model takes, and `truncate` is not set.
        """
        (row,) = self._tokenize([(_text(text), None if text_pair is None else _text(text_pair))], truncate=truncate)
        (vectors,) = self._vectors([self._ids(row)], [row.type_ids])
        return vectors.unsqueeze(0)

    def encode_many(
        self, inputs: Iterable[Input], batch_size: int = 32, *, pooling: str = "tokens", truncate: bool = False
    ) -> list[torch.Tensor]:
        """Encode many sentences or pairs; each result is what `encode` gives for it alone, to 1e-5.

        :param batch_size: how many go through the model at a time; those of like length go together.
        :param pooling: see `pooling.pool`. :param truncate: see `encode`.
        :returns: a tensor (L, D) for each input, pooled (D), in their order.
        :raises EncodingError: an input has more tokens than the model takes; the message counts it from 0.
        """
        if isinstance(inputs, str) or not isinstance(batch_size, int) or batch_size < 1:
            raise EncodingError(f"encode_many: got {inputs!r:.80} and batch_size {batch_size}, wanted many inputs and at least 1")
        check_pooling(pooling)
        remaining, input_ids, token_type_ids, done = iter(inputs), list[list[int]](), list[list[int]](), 0
        while chunk := list(islice(remaining, _TOKENIZED_AT_ONCE)):
            ids, kinds = self.to_ids(chunk, partial(numbered, first=done), truncate=truncate)
            input_ids += ids
            token_type_ids += kinds
            done += len(chunk)
        return self._vectors(input_ids, token_type_ids, batch_size, pooling)

    def to_ids(
        self, inputs: Sequence[Input], where: Callable[[int], str] = numbered, *, truncate: bool = False
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The token ids of sentences and pairs, and the segment of each token, as `encode_input_ids` takes them.

        :param where: begins a message about the input at a place. :param truncate: see `encode`.
        :raises EncodingError: an input is no text, or has more tokens than the model takes.
        """
        rows = self._tokenize([_pair(entry, where(place)) for place, entry in enumerate(inputs)], where, truncate=truncate)
        return [self._ids(row) for row in rows], [row.type_ids for row in rows]

    def encode_input_ids(
        self,
        input_ids: Sequence[Sequence[int] | torch.Tensor],
        token_type_ids: Sequence[Sequence[int] | torch.Tensor] | None = None,
        batch_size: int = 32,
        *,
        pooling: str = "tokens",
    ) -> list[torch.Tensor]:
        """Encode rows of token ids; each result is what the row gives alone, to 1e-5.

        :param input_ids: rows of token ids, with those of `<cls>` and `<sep>` where they belong.
        :param token_type_ids: the segment, 0 or 1, of each token; None: 0 for all.
        :param batch_size: how many rows go through the model at a time; those of like length go together.
        :param pooling: see `pooling.pool`.
        :returns: a tensor (L, D) for each row, pooled (D), in their order.
        :raises EncodingError: a row is empty or longer than the model takes, or holds what is no id.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise EncodingError(f"encode_input_ids: got batch_size {batch_size}, wanted at least 1")
        check_pooling(pooling)
        shape = self.model.encoder.shape
        rows = _rows(input_ids)
        kinds = [[0] * len(row) for row in rows] if token_type_ids is None else _rows(token_type_ids)
        if len(kinds) != len(rows):
            raise EncodingError(f"token_type_ids: got {len(kinds)} rows, wanted {len(rows)}, as many as input_ids")
        for number, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
            if not 1 <= len(row) <= shape.max_position_embeddings:
                raise EncodingError(f"row {number}: got {len(row)} tokens, wanted 1 to {shape.max_position_embeddings}, the model's limit")
            if other := {found.__name__ for found in {*map(type, row), *map(type, kind)} if not issubclass(found, Integral)}:
                raise EncodingError(f"row {number}: got {', '.join(sorted(other))}, wanted whole numbers")
            if len(kind) != len(row) or min(kind) < 0 or max(kind) >= shape.type_vocab_size:
                raise EncodingError(
                    f"row {number}: got token_type_ids {kind!r:.80}, wanted {len(row)} numbers below {shape.type_vocab_size}"
                )
            if min(row) < 0 or max(row) >= shape.vocab_size:
                raise EncodingError(f"row {number}: got token ids {min(row)} to {max(row)}, wanted 0 to {shape.vocab_size - 1}")
        return self._vectors(rows, kinds, batch_size, pooling)

    def tokens(self, text: Text, text_pair: Text | None = None, *, truncate: bool = False) -> list[str]:
        """The tokens that the vectors of `encode` stand for."""
        (row,) = self._tokenize([(_text(text), None if text_pair is None else _text(text_pair))], truncate=truncate)
        return [str(self.tokenizer.id_to_token(token)) for token in self._ids(row)]

    def words(self, text: Text, text_pair: Text | None = None, *, truncate: bool = False) -> list[tuple[str, list[int]]]:
        """Each word of the text, then of the pair, with the places in `tokens` of those that stand for it.

        Words are what white space parts; one may have several tokens, and none where the tokenizer drops its characters.
        """
        texts = [_text(text), *([] if text_pair is None else [_text(text_pair)])]
        (row,) = self._tokenize([(texts[0], texts[1] if len(texts) == 2 else None)], truncate=truncate)
        spans = list(zip(row.sequence_ids, row.offsets, strict=True))
        return [
            (
                word[0],
                [place for place, (of, (start, end)) in enumerate(spans) if of == number and start < word.end() and end > word.start()],
            )
            for number, part in enumerate(texts)
            for word in re.finditer(r"\S+", part)
        ]

    def unknown_words(self, text: Text, text_pair: Text | None = None) -> list[str]:
        """The words that the vocabulary does not know whole."""
        unknown, tokens = self.table.special_tokens["unk_token"], self.tokens(text, text_pair, truncate=True)
        words = self.words(text, text_pair, truncate=True)
        return [word for word, places in words if unknown in [tokens[place] for place in places]]

    def plain_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, without special tokens but the unknown one."""
        rows = self.tokenizer.encode_batch([_text(text) for text in texts], add_special_tokens=False)
        return [[self.table.unknown_id if token in self.table.special_ids else token for token in row.ids] for row in rows]

    def _tokenize(
        self, pairs: Sequence[tuple[str, str | None]], where: Callable[[int], str] = lambda place: "", *, truncate: bool = False
    ) -> list[Encoding]:
        """Rows of sentences and pairs."""
        limit = self.model.encoder.shape.max_position_embeddings
        tokenizer = self._cutting if truncate else self.tokenizer
        rows = tokenizer.encode_batch([first if second is None else (first, second) for first, second in pairs])
        for place, row in enumerate(rows):
            if len(row.ids) > limit:
                tokens = f"{len(row.ids)} tokens with the special ones"
                raise EncodingError(f"{where(place)}{tokens}, wanted at most {limit}, the model's limit; shorten it, or have it truncated")
        return rows

    def _ids(self, row: Encoding) -> list[int]:
        """The row's ids, where a special token that the template did not put there is an unknown word."""
        return self.table.row_ids(row.ids, row.special_tokens_mask)

    @torch.inference_mode()
    def _vectors(
        self, input_ids: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]], batch_size: int = 1, pooling: str = "tokens"
    ) -> list[torch.Tensor]:
        """A tensor (L, D), or pooled (D), for each row; the rows go through the model in batches, shorter ones first."""
        order = sorted(range(len(input_ids)), key=lambda row: len(input_ids[row]))
        vectors: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            lengths = [len(input_ids[row]) for row in batch]
            flat = (array("q", chain.from_iterable(values[row] for row in batch)) for values in (input_ids, token_type_ids))
            found = self.model.encoder(*map(_tensor, flat), Layout.of(torch.tensor(lengths))).split(lengths)
            vectors.update(zip(batch, (pool(row, pooling) for row in found), strict=True))
        return [vectors[row] for row in range(len(input_ids))]


def _rows(values: Iterable[Sequence[int] | torch.Tensor]) -> list[Sequence[int]]:
    """Rows of numbers, which may be tensors.

    :raises EncodingError: a row is a single number.
    """
    rows = [row.tolist() if isinstance(row, torch.Tensor) else row for row in values]
    for number, row in enumerate(rows):
        if not hasattr(row, "__len__"):
            raise EncodingError(f"row {number}: got {row!r:.80}, wanted a row of numbers")
    return rows


def _tensor(numbers: "array[int]") -> torch.Tensor:
    """The same memory as int64; much faster than from a list."""
    return torch.frombuffer(numbers, dtype=torch.int64)


def _pair(entry: Input, where: str) -> tuple[str, str | None]:
    """The texts of a sentence or of a pair.

    :raises EncodingError: it is neither.
    """
    if not isinstance(entry, tuple):
        return _text(entry, where), None
    if len(entry) != 2:
        raise EncodingError(f"{where}got a tuple of {len(entry)}, wanted a pair; tokens come as a list")
    return _text(entry[0], where), _text(entry[1], where)


def _text(part: object, where: str = "") -> str:
    """A string, or words joined by spaces.

    :raises EncodingError: it is neither.
    """
    if isinstance(part, str):
        if not is_unicode(part):
            raise EncodingError(f"{where}got {part!r:.80}, which is not valid text; wanted Unicode")
        return part
    if isinstance(part, Sequence) and not isinstance(part, bytes) and all(isinstance(token, str) for token in part):
        if broken := [token for token in part if len(token.split()) != 1]:
            raise EncodingError(f"{where}got the token {broken[0]!r}, wanted tokens of one word each, so that vectors can be told apart")
        return _text(" ".join(part), where)
    raise EncodingError(f"{where}got {type(part).__name__} {part!r:.80}, wanted a string or a list of tokens")
