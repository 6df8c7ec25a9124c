"""Texts -> rows of token ids, as the heads take them.

In: sentences, pairs, questions with contexts. Out: rows of ids with segments; of a long context several windows, each with
where its tokens stand in it. The decision that matters: the tokenizer of the encoder's folder says what a row is, special
tokens included, so that transformers makes the same rows of the same folder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from tokenizers import Encoding, Tokenizer

from ..errors import EncodingError
from ..tokens import TokenTable

_SPECIAL = 3  # tokens of a pair: <cls> and two <sep>
_AT_ONCE = 1024  # inputs; what the tokenizer says of one takes more room than its ids

Input = tuple[str, str | None]
"""A sentence and, of a pair, the second."""
Where = Callable[[int], str]
"""Begins a message about an input, by its number from 0."""


def numbered(number: int) -> str:
    """What a message begins with where nobody knows better."""
    return f"input {number}: "


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of a row with their segments, 0 or 1."""

    input_ids: list[int]
    token_type_ids: list[int]


@dataclass(frozen=True, slots=True)
class Window:
    """A row of a question and a part of its context.

    :param first: place of the part's first token in the row. :param spans: where each of its tokens stands in the context.
    """

    row: Row
    first: int
    spans: list[tuple[int, int]]

    def places(self, start: int, length: int) -> tuple[int, int] | None:
        """The places in the row of the first and last token of a text in the context; None where it is not wholly in this part."""
        end = start + length
        covered = [place for place, (left, right) in enumerate(self.spans) if left < end and right > start]
        if not covered or self.spans[covered[0]][0] > start or self.spans[covered[-1]][1] < end:
            return None
        return self.first + covered[0], self.first + covered[-1]


class Rows:
    """Makes rows of at most `max_length` tokens."""

    def __init__(self, tokenizer: Tokenizer, table: TokenTable, max_length: int, doc_stride: int) -> None:
        self._tokenizer, self._table = tokenizer, table
        self._tokenizer.no_truncation()
        self._max_length, self._doc_stride = max_length, doc_stride
        # Half of what the special tokens and the overlap leave, so that a window always has some of the context.
        self._question_length = (max_length - _SPECIAL - doc_stride) // 2

    # A tokenizer for each way to cut, since one whose way is changed in a thread has it changed in the others.

    @cached_property
    def _rows(self) -> Tokenizer:
        tokenizer = _copy(self._tokenizer)
        tokenizer.enable_truncation(self._max_length, strategy="longest_first")
        return tokenizer

    @cached_property
    def _windows(self) -> Tokenizer:
        tokenizer = _copy(self._tokenizer)
        tokenizer.enable_truncation(self._max_length, stride=self._doc_stride, strategy="only_second")
        return tokenizer

    def of(self, inputs: Iterable[Input]) -> Iterator[Row]:
        """A row for each sentence or pair; what is too long is cut at its end, of a pair the longer one first."""
        remaining = iter(inputs)
        while part := list(islice(remaining, _AT_ONCE)):
            for row in _encode(self._rows, [first if second is None else (first, second) for first, second in part]):
                yield self._row(row)

    def windows(self, questions: Iterable[tuple[str, str]], where: Where = numbered) -> Iterator[list[Window]]:
        """The windows of each question with its context: at least one, each with a token of the context.

        :raises EncodingError: no token of a context or of a question is left.
        """
        remaining = enumerate(questions)
        while part := list(islice(remaining, _AT_ONCE)):
            numbers, pairs = zip(*part, strict=True)
            cut = [(question, context) for question, (_, context) in zip(self._cut([first for first, _ in pairs]), pairs, strict=True)]
            for number, row in zip(numbers, _encode(self._windows, cut), strict=True):
                found = [self._window(window) for window in (row, *row.overflowing)]
                if not all(window.spans for window in found):
                    raise EncodingError(f"{where(number)}its context has no token; wanted text that the answer may stand in")
                yield found

    def _cut(self, questions: Sequence[str]) -> list[str]:
        limit = self._question_length
        rows = self._tokenizer.encode_batch(list(questions), add_special_tokens=False)
        return [text[: row.offsets[limit - 1][1]] if len(row.ids) > limit else text for text, row in zip(questions, rows, strict=True)]

    def _row(self, row: Encoding) -> Row:
        return Row(self._table.row_ids(row.ids, row.special_tokens_mask), row.type_ids)

    def _window(self, row: Encoding) -> Window:
        places = [place for place, sequence in enumerate(row.sequence_ids) if sequence == 1]
        return Window(self._row(row), places[0] if places else 0, [row.offsets[place] for place in places])


def _encode(tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]]) -> list[Encoding]:
    rows: list[Encoding] = tokenizer.encode_batch(list(texts))
    return rows


def _copy(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # which its JSON does not hold
    return copy
