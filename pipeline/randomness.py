"""Random numbers that depend on a document, a seed and a purpose, and on nothing else.

In: streams (one 64-bit number a document and purpose) and counters. Out: uniform numbers, for whole arrays at once.
The decision that matters: a number is the hash of its stream and counter (SplitMix64, Steele et al. 2014,
doi 10.1145/2714064.2660195), so that order, blocks and number of builders cannot change a draw.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What a stream is for; two purposes never share a stream."""

    COIN = 1
    NEGATIVE_DOCUMENT = 2
    NEGATIVE_SENTENCE = 3
    MASK_ORDER = 4
    MASK_KIND = 5
    MASK_WORD = 6
    SHORT = 7
    LENGTH = 8
    SPLIT = 9
    CUT_FIRST = 10
    CUT_SECOND = 11


def mix(x: U64) -> U64:
    """The finalizer of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def streams(digests: U64, occurrence: U64, seed: int, purpose: Purpose, repeat: int = 0) -> U64:
    """One stream a document.

    :param digests: 64 bits of the digest of each document's text.
    :param occurrence: how many equal documents came before it.
    :param repeat: how many times the documents have been gone through before.
    """
    base = mix(digests + occurrence * _GOLDEN)
    return mix(base ^ mix(np.asarray([(repeat << 40) + seed * 256 + purpose], np.uint64)))


def bits(stream: U64, counter: U64) -> U64:
    """The 64 random bits at each stream's counter."""
    return mix(stream + (counter + np.uint64(1)) * _GOLDEN)


def coin(stream: U64, counter: U64) -> npt.NDArray[np.bool_]:
    """True or false, as likely."""
    return bits(stream, counter) >> np.uint64(63) > 0


def below(stream: U64, counter: U64, bound: U64 | np.uint64) -> U64:
    """Uniform whole numbers in [0, bound), for bounds far below 2**32."""
    return ((bits(stream, counter) >> np.uint64(32)) * bound) >> np.uint64(32)


def unit(stream: U64, counter: U64) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1)."""
    return (bits(stream, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53
