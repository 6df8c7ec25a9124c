"""The shard: Parquet examples, where the data stages and training meet.

In: columns of examples, one row an example, real tokens only. Out: zstd Parquet that any reader can use, and
flat arrays for training. The decision that matters: no padding is ever stored, so nothing downstream pays for it.

Legend: R rows, N real tokens of all rows, M masked positions of all rows.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DamagedOutputError
from .storage import Output, Store

SHARD = "examples.parquet"
SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("token_type_ids", pa.list_(pa.int8()), nullable=False),
        pa.field("masked_lm_positions", pa.list_(pa.int16()), nullable=False),
        pa.field("masked_lm_labels", pa.list_(pa.int32()), nullable=False),
        pa.field("next_sentence_label", pa.int8(), nullable=False),
        pa.field("document", pa.int32(), nullable=False),
    ]
)

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class ShardCounts:
    """What was counted while a shard, or a set of them, was built."""

    documents: int = 0
    documents_of_one_sentence: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    pairs: int = 0
    pairs_that_fit: int = 0
    dropped_too_long: int = 0
    dropped_no_negative: int = 0
    rows: int = 0
    row_tokens: int = 0
    followed: int = 0
    masked: int = 0
    masked_as_mask: int = 0
    masked_as_random: int = 0
    masked_kept: int = 0

    def __add__(self, other: "ShardCounts") -> "ShardCounts":
        return ShardCounts(**{entry.name: getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(self)})

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Examples:
    """Examples of one or many shards as flat arrays.

    Row r's tokens are `input_ids[offsets[r]:offsets[r + 1]]`, its masks
    `masked_lm_positions[mask_offsets[r]:mask_offsets[r + 1]]`, counted from the row's own start.
    """

    input_ids: IntArray  # [N] int32
    token_type_ids: IntArray  # [N] int8
    offsets: IntArray  # [R + 1] int64
    masked_lm_positions: IntArray  # [M] int16
    masked_lm_labels: IntArray  # [M] int32
    mask_offsets: IntArray  # [R + 1] int64
    next_sentence_label: IntArray  # [R] int8
    document: IntArray  # [R] int32

    def __len__(self) -> int:
        return len(self.next_sentence_label)

    def table(self) -> pa.Table:
        """The same as an Arrow table with the shard's schema."""

        def lists(offsets: IntArray, values: IntArray, kind: pa.DataType) -> pa.ListArray:
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, kind))

        columns = [
            lists(self.offsets, self.input_ids, pa.int32()),
            lists(self.offsets, self.token_type_ids, pa.int8()),
            lists(self.mask_offsets, self.masked_lm_positions, pa.int16()),
            lists(self.mask_offsets, self.masked_lm_labels, pa.int32()),
            pa.array(self.next_sentence_label, pa.int8()),
            pa.array(self.document, pa.int32()),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def digest(self) -> str:
        """The sha256 of the contents, whatever pyarrow wrote them."""
        hasher = hashlib.sha256()
        for entry in fields(self):
            hasher.update(entry.name.encode())
            hasher.update(np.ascontiguousarray(getattr(self, entry.name), "<i8").data)
        return hasher.hexdigest()

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Take a table of one shard apart.

        :raises ValueError: the table has another schema.
        """
        if not table.schema.equals(SCHEMA):
            raise ValueError(f"got columns {table.schema.names}, wanted {SCHEMA.names} with the shard's types")

        def lists(name: str) -> tuple[IntArray, IntArray]:
            column = table.column(name).combine_chunks()
            offsets = column.offsets.to_numpy().astype(np.int64)
            return offsets - offsets[0], column.flatten().to_numpy()

        offsets, input_ids = lists("input_ids")
        mask_offsets, labels = lists("masked_lm_labels")
        return cls(
            input_ids=input_ids,
            token_type_ids=lists("token_type_ids")[1],
            offsets=offsets,
            masked_lm_positions=lists("masked_lm_positions")[1],
            masked_lm_labels=labels,
            mask_offsets=mask_offsets,
            next_sentence_label=table.column("next_sentence_label").to_numpy(),
            document=table.column("document").to_numpy(),
        )


def shard_buckets(store: Store, shards: Output) -> list[str]:
    """The addresses of a shard set's buckets that hold a row, in their order."""
    return [store.address("bucket", entry["key"]) for entry in shards.facts["buckets"] if entry["rows"]]


def write_shard(path: Path, examples: Examples) -> None:
    """Write one shard; the same examples give the same bytes with the same pyarrow."""
    pq.write_table(examples.table(), path, compression="zstd", use_dictionary=False)  # ids in a dictionary take more room, and time


def read_shards(buckets: Sequence[str]) -> Examples:
    """Read the shards of buckets, in the order given, into one set of arrays.

    :raises DamagedOutputError: a shard is not readable or has another schema; the message names it.
    """
    tables = []
    for bucket in buckets:
        address = f"{bucket}/{SHARD}"
        try:
            with fsspec.open(address, "rb") as file:
                # Read whole: a thread of Arrow's that lets go of a Python file at exit aborts the process.
                tables.append(Examples.from_table(pq.read_table(pa.BufferReader(file.read()))).table())
        except FileNotFoundError:
            raise DamagedOutputError(f"{address}: missing; run the flow again, which makes it") from None
        except (pa.ArrowException, ValueError, OSError) as error:
            raise DamagedOutputError(f"{address}: not a readable shard ({error}); run the flow again, which makes it anew") from error
    return Examples.from_table(pa.concat_tables(tables) if tables else SCHEMA.empty_table())
