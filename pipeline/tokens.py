"""Tokens of a vocabulary, which making data, training and encoding share, and the tokenizer's file.

In: the JSON of a `tokenizer.json`. Out: tokens by id, and which of them are special. The decision that matters: the file
alone says which ids the special tokens have; it is read as JSON, so that training needs no tokenizer library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

TOKENIZER = "tokenizer.json"
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""The special tokens under transformers' names, in the order of their ids in vocabularies that are made here."""
WORD_LEVEL_TOKENS = dict(zip(ROLES, ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"), strict=True))
WORDPIECE_TOKENS = dict(zip(ROLES, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))
_NAMES = {role: (WORDPIECE_TOKENS[role], WORD_LEVEL_TOKENS[role]) for role in ROLES}  # as they may stand in a tokenizer


def is_unicode(text: str) -> bool:
    """Whether a string is text: JSON can bring half of a surrogate pair, which no file holds and no tokenizer takes."""
    return text.isprintable() or not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a vocabulary.

    :param tokens: by id [V]. :param special_tokens: by their role.
    :param prefix: what begins a token that continues a word; empty: no token does.
    """

    tokens: Sequence[str]
    special_tokens: Mapping[str, str]
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Each token's id."""
        return {token: number for number, token in enumerate(self.tokens)}

    @property
    def pad_id(self) -> int:
        return self.ids[self.special_tokens["pad_token"]]

    @property
    def unknown_id(self) -> int:
        return self.ids[self.special_tokens["unk_token"]]

    @property
    def cls_id(self) -> int:
        return self.ids[self.special_tokens["cls_token"]]

    @property
    def sep_id(self) -> int:
        return self.ids[self.special_tokens["sep_token"]]

    @property
    def mask_id(self) -> int:
        return self.ids[self.special_tokens["mask_token"]]

    @cached_property
    def never_masked(self) -> npt.NDArray[np.bool_]:
        """Which tokens are no candidates for masking [V]: the special ones but the unknown one."""
        return np.isin(np.arange(len(self)), (self.pad_id, self.cls_id, self.sep_id, self.mask_id))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens but the unknown one."""
        return frozenset(np.flatnonzero(self.never_masked).tolist())

    @cached_property
    def words(self) -> npt.NDArray[np.int32]:
        """The ids that a random replacement may have, rising: all but the special ones."""
        return np.flatnonzero(~self.never_masked & (np.arange(len(self)) != self.unknown_id)).astype(np.int32)

    @cached_property
    def continues_word(self) -> npt.NDArray[np.bool_]:
        """Which tokens go on with the word before them [V]."""
        return np.asarray([bool(self.prefix) and token.startswith(self.prefix) for token in self.tokens], bool)

    def row_ids(self, input_ids: Sequence[int], of_template: Sequence[int]) -> list[int]:
        """A tokenized row's ids, where a special token that the template did not put there is an unknown word.

        :param of_template: not 0 where it did.
        """
        unknown, special = self.unknown_id, self.special_ids
        return [unknown if token in special and not placed else token for token, placed in zip(input_ids, of_template, strict=True)]

    @classmethod
    def read(cls, tokenizer: Mapping[str, Any]) -> Self:
        """Take the JSON of a `tokenizer.json` apart.

        :raises ValueError: it is no tokenizer's, has no special token for a role, or its ids have gaps.
        """
        try:
            model = tokenizer["model"]
            known = model["vocab"]
            ids = dict(known) if isinstance(known, dict) else {token: number for number, (token, _) in enumerate(known)}
            ids |= {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no tokenizer's JSON ({type(error).__name__}: {error})") from error
        tokens = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise ValueError("its ids are not 0, 1, 2 and so on")
        special = {role: next((token for token in names if token in ids), "") for role, names in _NAMES.items()}
        if missing := [" or ".join(_NAMES[role]) for role, token in special.items() if not token]:
            raise ValueError(f"it has no special token {', '.join(missing)}")
        prefix = model.get("continuing_subword_prefix") if model.get("type") == "WordPiece" else None
        return cls(tokens, special, prefix or "")
