"""The shard: Parquet examples, where the data stages and training meet.

In: columns of examples, one row an example, real tokens only. Out: zstd Parquet that any reader can use, and
flat arrays for training. The decision that matters: no padding is ever stored, so nothing downstream pays for it; a column
that a recipe does not fill (masks drawn while training, labels without a pair task) is absent, not filled with nothing.

Legend: R rows, N real tokens of all rows, M masked positions of all rows.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DamagedOutputError
from .files import read_file
from .ragged import offsets_of
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
OPTIONAL = (frozenset({"masked_lm_positions", "masked_lm_labels"}), frozenset({"next_sentence_label"}))
"""Columns that may be absent, those of a set together: with masks drawn while training, and without a pair task."""
IGNORED = -100  # next_sentence_label of a row without one, as torch's cross-entropy passes it over
_AT_ONCE = 1 << 20  # numbers that are widened for a digest

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class ShardCounts:
    """What was counted while a shard, or a set of them, was built.

    Of the text, once: `documents`, those `of_one_sentence`, `sentences` and `tokens` that are not empty, those `unknown`.
    Of each time that it is gone through: `pairs`, which become a row each unless they are dropped. Those are neighbouring
    sentences, of which `pairs_that_fit` are short enough before a random B is put in, or runs of sentences that fill a row
    (all of these fit, since they are truncated). `dropped_too_long`: neighbours longer than a row. `dropped_no_negative`:
    no honest random B in the bucket, or, of sentence order, the other order stands in the text too. `dropped_one_sentence`:
    no second sentence to order. Of the rows: `truncated` to the longest length, `followed` those of label 0, masks by kind.
    """

    documents: int = 0
    documents_of_one_sentence: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    pairs: int = 0
    pairs_that_fit: int = 0
    dropped_too_long: int = 0
    dropped_no_negative: int = 0
    dropped_one_sentence: int = 0
    rows: int = 0
    row_tokens: int = 0
    truncated: int = 0
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
    `masked_lm_positions[mask_offsets[r]:mask_offsets[r + 1]]`, counted from the row's own start. Without masks those arrays
    are empty and all mask offsets 0; without a pair task each label is `IGNORED`.
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

    @property
    def has_masks(self) -> bool:
        """Whether masks are in the rows; false: they are drawn while training. A set without a row has all columns."""
        return not len(self) or len(self.masked_lm_labels) > 0

    @property
    def has_labels(self) -> bool:
        """Whether rows have a next-sentence label."""
        return not len(self) or bool((self.next_sentence_label != IGNORED).any())

    def table(self) -> pa.Table:
        """The same as an Arrow table with the shard's schema, without the columns that hold nothing."""

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
        table = pa.Table.from_arrays(columns, schema=SCHEMA)
        held = zip(OPTIONAL, (self.has_masks, self.has_labels), strict=True)
        return table.drop_columns([name for names, here in held if not here for name in names])

    def digest(self) -> str:
        """The sha256 of the contents, whatever pyarrow wrote them."""
        hasher = hashlib.sha256()
        for entry in fields(self):
            hasher.update(entry.name.encode())
            values = getattr(self, entry.name)
            for start in range(0, len(values), _AT_ONCE):
                hasher.update(np.ascontiguousarray(values[start : start + _AT_ONCE], "<i8").data)
        return hasher.hexdigest()

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Take a table of one shard apart.

        :raises ValueError: the table has another schema.
        """
        absent = set(SCHEMA.names) - set(table.schema.names)
        wanted = pa.schema([entry for entry in SCHEMA if entry.name not in absent])
        whole_sets = all(names <= absent or not names & absent for names in OPTIONAL)
        if not table.schema.equals(wanted) or not absent <= frozenset.union(*OPTIONAL) or not whole_sets:
            raise ValueError(f"got columns {table.schema.names}, wanted {SCHEMA.names} with the shard's types")

        def lists(name: str) -> tuple[IntArray, IntArray]:
            column = table.column(name).combine_chunks()
            offsets = column.offsets.to_numpy().astype(np.int64)
            return offsets - offsets[0], column.flatten().to_numpy()

        offsets, input_ids = lists("input_ids")
        no_masks: tuple[IntArray, IntArray] = np.zeros_like(offsets), np.zeros(0, np.int32)
        mask_offsets, labels = no_masks if "masked_lm_labels" in absent else lists("masked_lm_labels")
        _, positions = no_masks if "masked_lm_positions" in absent else lists("masked_lm_positions")
        unlabelled = "next_sentence_label" in absent
        return cls(
            input_ids=input_ids,
            token_type_ids=lists("token_type_ids")[1],
            offsets=offsets,
            masked_lm_positions=positions.astype(np.int16),
            masked_lm_labels=labels,
            mask_offsets=mask_offsets,
            next_sentence_label=np.full(len(table), IGNORED, np.int8) if unlabelled else table.column("next_sentence_label").to_numpy(),
            document=table.column("document").to_numpy(),
        )


def concatenate(parts: Iterable[Examples]) -> Examples:
    """The rows of all, in their order. Parts that nobody else holds are let go array by array.

    :raises DamagedOutputError: some have masks or labels and others have not.
    """
    found = [part for part in parts if len(part)] or [Examples.from_table(SCHEMA.empty_table())]
    if len({(part.has_masks, part.has_labels) for part in found}) > 1:
        raise DamagedOutputError("some shards have masks or labels and others have not; wanted shards of one set")
    arrays = {entry.name: [getattr(part, entry.name) for part in found] for entry in fields(Examples)}
    found.clear()

    def joined(name: str) -> IntArray:
        values = arrays.pop(name)
        return offsets_of(np.concatenate([np.diff(part) for part in values])) if name.endswith("offsets") else np.concatenate(values)

    return Examples(**{entry.name: joined(entry.name) for entry in fields(Examples)})


def shard_buckets(store: Store, shards: Output) -> list[str]:
    """The addresses of a shard set's buckets that hold a row, in their order."""
    return [store.address("bucket", entry["key"]) for entry in shards.facts["buckets"] if entry["rows"]]


def write_shard(path: Path, examples: Examples) -> None:
    """Write one shard; the same examples give the same bytes with the same pyarrow."""
    pq.write_table(examples.table(), path, compression="zstd", use_dictionary=False)  # ids in a dictionary take more room, and time


def read_shard(data: bytes, address: str) -> Examples:
    """Take the bytes of a shard apart.

    :param address: where they are from.
    :raises DamagedOutputError: they are no readable shard or have another schema.
    """
    try:
        return Examples.from_table(pq.read_table(pa.BufferReader(data)))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DamagedOutputError(f"{address}: not a readable shard ({error}); run the flow again, which makes it anew") from error


def read_shards(buckets: Sequence[str]) -> Examples:
    """Read the shards of buckets, in the order given, into one set of arrays.

    :raises DamagedOutputError: a shard is missing, not readable or has another schema; the message names it.
    """
    return concatenate(_read(f"{bucket}/{SHARD}") for bucket in buckets)


def _read(address: str) -> Examples:
    try:
        data = read_file(address)  # whole: a thread of Arrow's that lets go of a Python file at exit aborts the process
    except FileNotFoundError:
        raise DamagedOutputError(f"{address}: missing; run the flow again, which makes it") from None
    except OSError as error:
        raise DamagedOutputError(f"{address}: not a readable shard ({error}); run the flow again, which makes it anew") from error
    return read_shard(data, address)
