"""Sentences -> vectors, from an encoder folder.

In: strings or lists of tokens, alone or in pairs. Out: one vector a token, as the deck's `get_bert_encoding` gives
them: `<cls>` first, a `<sep>` after each sentence. The decision that matters: sentences of a batch lie one after
another without padding, so what stands beside a sentence cannot change its vectors.

Legend: B rows, L length of a row, D hidden size, N tokens of all rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from tokenizers import Encoding, Tokenizer

from .encoder_format import CONFIG, WEIGHTS, from_transformers, shape_of
from .errors import EncodingError
from .model.pretraining import BertForPretraining
from .tokens import SPECIAL_TOKENS, TOKENIZER, UNKNOWN

Text = str | Sequence[str]
"""A string, or a list of tokens."""

Input = Text | tuple[Text, Text]
"""A sentence, or a pair of them as a tuple."""


class Encoder:
    """A pretrained encoder with its tokenizer."""

    def __init__(self, model: BertForPretraining, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True  # text that spells <cls> is text; the file cannot say so
        ids = {name: tokenizer.token_to_id(token) for name, token in SPECIAL_TOKENS.items()}
        if missing := [SPECIAL_TOKENS[name] for name, number in ids.items() if number is None]:
            raise EncodingError(f"{TOKENIZER}: has no {', '.join(missing)}; wanted all of {', '.join(SPECIAL_TOKENS.values())}")
        self._special = set(ids.values())
        self._unknown = tokenizer.get_vocab()[UNKNOWN]

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
            shape = shape_of(json.loads((folder / CONFIG).read_text("utf-8")))
            model = BertForPretraining(shape)
            model.load_state_dict(from_transformers(load_file(folder / WEIGHTS), shape.num_hidden_layers))
            tokenizer = Tokenizer.from_str((folder / TOKENIZER).read_text("utf-8"))
        except Exception as error:  # `tokenizers` raises bare Exception
            raise EncodingError(f"{folder}: not an encoder of this project ({type(error).__name__}: {error})") from error
        return cls(model, tokenizer)

    def encode(self, text: Text, text_pair: Text | None = None) -> torch.Tensor:
        """Encode one sentence or one pair.

        :returns: (1, L, D), where L counts `<cls>` and each `<sep>`.
        :raises EncodingError: more tokens than the model takes.
        """
        return next(self._vectors([self._tokenize(text, text_pair)])).unsqueeze(0)

    def encode_many(self, inputs: Iterable[Input], batch_size: int = 32) -> list[torch.Tensor]:
        """Encode many sentences or pairs; each result is what `encode` gives for it alone.

        :returns: a tensor (L, D) for each input.
        :raises EncodingError: an input has more tokens than the model takes; the message counts it from 0.
        """
        if isinstance(inputs, str) or batch_size < 1:
            raise EncodingError(f"encode_many: got {inputs!r:.80} and batch_size {batch_size}, wanted many inputs and at least 1")
        remaining, vectors = enumerate(inputs), list[torch.Tensor]()
        while chunk := list(islice(remaining, batch_size)):
            rows = []
            for number, entry in chunk:
                if isinstance(entry, tuple) and len(entry) != 2:
                    raise EncodingError(f"input {number}: got a tuple of {len(entry)}, wanted a pair; tokens come as a list")
                text, text_pair = entry if isinstance(entry, tuple) else (entry, None)
                rows.append(self._tokenize(text, text_pair, f"input {number}: "))
            vectors.extend(self._vectors(rows))
        return vectors

    def tokens(self, text: Text, text_pair: Text | None = None) -> list[str]:
        """The tokens that the vectors of `encode` stand for."""
        return [str(self.tokenizer.id_to_token(token)) for token in self._ids(self._tokenize(text, text_pair))]

    def _tokenize(self, text: Text, text_pair: Text | None, where: str = "") -> Encoding:
        first = _text(text, where)
        second = None if text_pair is None else _text(text_pair, where)
        row = self.tokenizer.encode(first, second)
        limit = self.model.encoder.shape.max_position_embeddings
        if len(row.ids) > limit:
            raise EncodingError(
                f"{where}{len(row.ids)} tokens with the special ones, wanted at most {limit}, the model's limit; shorten it"
            )
        return row

    def _ids(self, row: Encoding) -> list[int]:
        """The row's ids, where a special token that the template did not put there is an unknown word."""
        return [
            self._unknown if token in self._special and not of_template else token
            for token, of_template in zip(row.ids, row.special_tokens_mask, strict=True)
        ]

    @torch.inference_mode()
    def _vectors(self, rows: Sequence[Encoding]) -> Iterator[torch.Tensor]:
        ids = [self._ids(row) for row in rows]
        lengths = [len(row) for row in ids]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        input_ids = torch.tensor([token for row in ids for token in row])
        token_type_ids = torch.tensor([kind for row in rows for kind in row.type_ids])
        return iter(self.model.encoder(input_ids, token_type_ids, offsets).split(lengths))


def _text(part: object, where: str) -> str:
    """A string, or tokens joined by spaces.

    :raises EncodingError: it is neither.
    """
    if isinstance(part, str):
        if not part.isprintable() and any("\ud800" <= character <= "\udfff" for character in part):
            raise EncodingError(f"{where}got {part!r:.80}, which is not valid text; wanted Unicode")
        return part
    if isinstance(part, Sequence) and not isinstance(part, bytes) and all(isinstance(token, str) for token in part):
        if broken := [token for token in part if len(token.split()) != 1]:
            raise EncodingError(f"{where}got the token {broken[0]!r}, wanted tokens of one word each, so that each gets one vector")
        return " ".join(part)
    raise EncodingError(f"{where}got {type(part).__name__} {part!r:.80}, wanted a string or a list of tokens")
