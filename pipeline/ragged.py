"""Rows of unequal length kept as flat values and offsets."""

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def offsets_of(lengths: npt.NDArray[np.integer]) -> I64:
    """Offsets [R + 1] of rows with these lengths [R]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def spans(starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> I64:
    """The positions start, start + 1, … of each row, one row after another."""
    offsets = offsets_of(lengths)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    positions: I64 = np.repeat(starts.astype(np.int64), lengths) + within
    return positions
