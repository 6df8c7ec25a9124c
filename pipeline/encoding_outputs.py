"""Vectors -> a file: NumPy, JSON Lines, Parquet.

In: encoded inputs, as they come. Out: a file that a NumPy, DuckDB or pandas user can open. The decision that matters: it is
written aside and takes its name when it is whole, so that what a kill leaves is not taken for a result; the next to write
into that folder removes it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .encoding import Encoder
from .errors import EncodingError
from .staging import check_place, written_whole
from .streaming import Encoded

_ROWS = 2048  # of a row group
Write = Callable[[BinaryIO, Iterable[Encoded], Encoder, bool], None]


def write_vectors(path: Path, encoded: Iterable[Encoded], encoder: Encoder, *, pooled: bool) -> None:
    """Write all of it; the file is there once it is whole. One that is there already is replaced.

    `.npy`: float32 [N, D], pooled alone. `.jsonl`: text, text_pair where it is a pair, and vector, or tokens and vectors.
    `.parquet`: the same as columns, a vector being a fixed_size_list<float>[D].

    :raises EncodingError: see `check_destination`. :raises PipelineError: it cannot be written.
    """
    check_destination(path, pooled=pooled)
    with written_whole(path) as file:
        _WRITERS[path.suffix](file, encoded, encoder, pooled)


def check_destination(path: Path, *, pooled: bool, source: str = "") -> None:
    """See, before anything is encoded, that there can be such a file.

    :param source: the file of inputs.
    :raises EncodingError: the ending is none that is known or cannot hold what is written.
    :raises PipelineError: a folder has that name, or none that it would be in is there, or it is the file of inputs.
    """
    if path.suffix not in _WRITERS:
        raise EncodingError(f"{path}: not a known kind of file; wanted a name that ends in {', '.join(_WRITERS)}")
    if path.suffix == ".npy" and not pooled:
        raise EncodingError(f"{path}: one array cannot hold rows that differ in length; wanted .parquet, .jsonl, or a pooling")
    check_place(path, source)


def write_json_lines(file: TextIO, encoded: Iterable[Encoded], encoder: Encoder, *, pooled: bool) -> None:
    """Write a line each."""
    for entry in encoded:
        file.write(json.dumps(_row(entry, encoder, pooled)) + "\n")


def _row(entry: Encoded, encoder: Encoder, pooled: bool) -> dict[str, Any]:
    text, text_pair = entry.input if isinstance(entry.input, tuple) else (entry.input, None)
    row: dict[str, Any] = {"text": text} | ({} if text_pair is None else {"text_pair": text_pair})
    if pooled:
        return row | {"vector": entry.vectors.tolist()}
    return row | {"tokens": [encoder.table.tokens[token] for token in entry.input_ids], "vectors": entry.vectors.tolist()}


def _npy(file: BinaryIO, encoded: Iterable[Encoded], encoder: Encoder, pooled: bool) -> None:
    """One array, whose first size is known at the end; NumPy's headers have room for it to grow."""
    size = encoder.model.encoder.shape.hidden_size

    def header(rows: int) -> None:
        described = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": (rows, size)}
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, described)

    header(0)
    begun, rows = file.tell(), 0
    for part in _parts(encoded):
        file.write(np.stack([entry.vectors.numpy() for entry in part]).astype("<f4").tobytes())
        rows += len(part)
    header(rows)
    if file.tell() != begun:
        raise EncodingError(f"{rows} rows do not fit NumPy's header; write Parquet")


def _json_lines(file: BinaryIO, encoded: Iterable[Encoded], encoder: Encoder, pooled: bool) -> None:
    for entry in encoded:
        file.write(json.dumps(_row(entry, encoder, pooled)).encode() + b"\n")


def _parquet(file: BinaryIO, encoded: Iterable[Encoded], encoder: Encoder, pooled: bool) -> None:
    vector = pa.list_(pa.float32(), encoder.model.encoder.shape.hidden_size)
    held = [("vector", vector)] if pooled else [("tokens", pa.list_(pa.string())), ("vectors", pa.list_(vector))]
    schema = pa.schema([("text", pa.string()), ("text_pair", pa.string()), *held])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in _parts(encoded):
            writer.write_batch(_batch(part, schema, encoder, pooled))


def _batch(part: list[Encoded], schema: pa.Schema, encoder: Encoder, pooled: bool) -> pa.RecordBatch:
    texts = [entry.input if isinstance(entry.input, tuple) else (entry.input, None) for entry in part]
    columns = [pa.array([text[place] for text in texts], pa.string()) for place in (0, 1)]
    size = encoder.model.encoder.shape.hidden_size
    flat = np.concatenate([entry.vectors.numpy().reshape(-1) for entry in part])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), size)
    if pooled:
        return pa.record_batch([*columns, vectors], schema=schema)
    offsets = pa.array(np.cumsum([0, *(len(entry.input_ids) for entry in part)]), pa.int32())
    names = pa.array([encoder.table.tokens[token] for entry in part for token in entry.input_ids], pa.string())
    lists = (pa.ListArray.from_arrays(offsets, values) for values in (names, vectors))
    return pa.record_batch([*columns, *lists], schema=schema)


def _parts(encoded: Iterable[Encoded]) -> Iterator[list[Encoded]]:
    remaining = iter(encoded)
    while part := list(islice(remaining, _ROWS)):
        yield part


_WRITERS: dict[str, Write] = {".npy": _npy, ".jsonl": _json_lines, ".parquet": _parquet}
