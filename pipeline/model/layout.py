"""How a batch's rows lie one after another, worked out on the CPU before its tensors go anywhere.

In: the rows' lengths. Out: what attention needs of them, sizes as plain numbers, so that no layer ever asks the device.
The decision that matters: where many neighbouring rows have one length, as in sorted ones, they are a group, in which
nothing is padded or masked; else all rows are one padded grid, since many small calls cost more than some padding does.

Legend: B rows, L the longest row's length, N real tokens, R tokens that are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

_ROWS_A_GROUP = 8  # from which on groups are faster


@dataclass(frozen=True)
class Layout:
    """Where the flat tokens lie in rows.

    :param positions: (N) int64, the position of each token in its row.
    :param groups: (rows, length) of each group; their tokens follow one another.
    :param slots: (N) int64, where there is padding: the place of each token in a B x L grid.
    :param keys: (B, 1, 1, L) bool, where there is padding: true where a row has a token.
    """

    positions: Tensor
    groups: tuple[tuple[int, int], ...]
    slots: Tensor | None = None
    keys: Tensor | None = None

    @classmethod
    def of(cls, lengths: Tensor, padded: bool | None = None) -> "Layout":
        """The layout of rows with these lengths (B) int64, on the CPU.

        :param padded: as one padded grid, else as groups of one length; None: what is faster on a CPU.
        """
        offsets = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum())) - offsets.repeat_interleave(lengths)
        groups = tuple((len(list(same)), length) for length, same in groupby(lengths.tolist())) or ((0, 0),)
        if padded is None:
            padded = len(groups) > max(1, len(lengths) // _ROWS_A_GROUP)
        if not padded:
            return cls(positions, groups)
        longest = max([1, *lengths.tolist()])
        slots = torch.arange(len(lengths)).repeat_interleave(lengths) * longest + positions
        # An empty row keeps one key, so that its softmax is finite; nobody reads its result.
        keys = torch.arange(longest) < lengths.clamp(min=1)[:, None]
        return cls(positions, ((len(lengths), longest),), slots, keys[:, None, None, :])

    def map(self, move: Callable[[Tensor], Tensor]) -> "Layout":
        """The same with each tensor moved."""
        slots, keys = (None if value is None else move(value) for value in (self.slots, self.keys))
        return replace(self, positions=move(self.positions), slots=slots, keys=keys)


@dataclass(frozen=True)
class Reads:
    """The tokens whose last vectors are read: as many of each row as its group's neediest row has, the first one over again.

    :param tokens: (R) int64, their places among the N tokens, row by row.
    :param widths: how many of each row, for each group.
    """

    tokens: Tensor
    widths: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout, lengths: Tensor, masked: Tensor, mask_counts: Tensor) -> tuple["Reads", Tensor, Tensor]:
        """Of rows that are each read at their first token and at their masked ones, on the CPU.

        :param lengths: (B) of the rows. :param masked: (M) places among the N tokens. :param mask_counts: (B), masks of each row.
        :returns: the reads; the places (M) of the masked tokens among them; the places (B) of the first tokens.
        """
        rows = [count for count, _ in layout.groups]
        widths = [int(part.max()) + 1 if len(part) else 1 for part in torch.split(mask_counts, rows)]
        each = torch.tensor(widths, dtype=torch.int64).repeat_interleave(torch.tensor(rows))
        first = each.cumsum(0) - each
        within = torch.arange(len(masked)) - (mask_counts.cumsum(0) - mask_counts).repeat_interleave(mask_counts)
        places = first.repeat_interleave(mask_counts) + 1 + within
        tokens = (lengths.cumsum(0) - lengths).repeat_interleave(each)
        tokens[places] = masked
        return cls(tokens, tuple(widths)), places, first

    def map(self, move: Callable[[Tensor], Tensor]) -> "Reads":
        """The same with its tensor moved."""
        return replace(self, tokens=move(self.tokens))
