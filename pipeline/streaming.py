"""Many sentences -> vectors, in flat memory.

In: sentences or pairs, as they come. Out: for each, in their order, its ids and vectors. The decision that matters: a window
of inputs is tokenized and encoded at a time, those of like length together, so memory depends on the window and not on how
many there are.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from .encoding import Encoder, Input, numbered
from .pooling import check_pooling

WINDOW = 4096  # inputs


@dataclass(frozen=True)
class Encoded:
    """One input and what the encoder makes of it.

    :param input_ids: of its tokens. :param vectors: (L, D), or pooled (D).
    """

    input: Input
    input_ids: list[int]
    vectors: torch.Tensor


class Stream:
    """Encodes inputs window by window, and counts.

    :param where: begins a message about an input, by its number from 0.
    :raises EncodingError: there is no such pooling.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        pooling: str = "mean",
        truncate: bool = False,
        batch_size: int = 128,
        where: Callable[[int], str] = numbered,
    ) -> None:
        check_pooling(pooling)
        self.encoder = encoder
        self.inputs = self.tokens = self.unknown = 0
        self._pooling, self._truncate, self._batch_size, self._where = pooling, truncate, batch_size, where

    def encode(self, inputs: Iterable[Input]) -> Iterator[Encoded]:
        """Encode sentences or pairs, in their order.

        :raises EncodingError: an input is no text, or has more tokens than the model takes and is not to be truncated.
        """
        remaining = iter(inputs)
        while window := list(islice(remaining, WINDOW)):
            first = self.inputs
            ids, kinds = self.encoder.to_ids(window, partial(self._named, first), truncate=self._truncate)
            vectors = self.encoder.encode_input_ids(ids, kinds, self._batch_size, pooling=self._pooling)
            self.inputs += len(window)
            self.tokens += sum(map(len, ids))
            self.unknown += sum(row.count(self.encoder.table.unknown_id) for row in ids)
            yield from map(Encoded, window, ids, vectors)
            del window, ids, kinds, vectors  # before the next ones are made

    def _named(self, first: int, place: int) -> str:
        return self._where(first + place)
