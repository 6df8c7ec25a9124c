"""Vectors of a row's tokens -> one vector.

In: the vectors of one row, special tokens included, without padding. Out: what a pooling makes of them. The mean is over
all of the row's tokens, as sentence-transformers takes it (Reimers and Gurevych 2019, arXiv 1908.10084).
"""

from torch import Tensor

from .errors import EncodingError

POOLINGS = ("tokens", "cls", "mean")


def check_pooling(pooling: object) -> None:
    """See that there is such a pooling.

    :raises EncodingError: there is none.
    """
    if pooling not in POOLINGS:
        raise EncodingError(f"pooling: got {pooling!r}, wanted {', '.join(POOLINGS)}")


def pool(vectors_LD: Tensor, pooling: str) -> Tensor:
    """`cls`: the first token's vector (D). `mean`: the mean of all (D). `tokens`: all of them (L, D)."""
    if pooling == "tokens":
        return vectors_LD
    if pooling == "cls":
        return vectors_LD[0].clone()  # a view would keep the vectors of a whole batch
    return vectors_LD.mean(0)
