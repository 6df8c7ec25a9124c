"""Documents -> buckets, in one file.

In: a reader of documents. Out: a file of Arrow messages, a record batch a bucket, in their order, and where each begins; and a
bucket's documents from any number of such files, in an order that neither the corpus's nor the files' changes. The decision
that matters: the hash of a document's text alone says which bucket it falls into, so that many can sort parts of a corpus at
once; and the buckets that one builder takes lie together, so that it reads one range of bytes of each file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..storage import digest
from .documents import DocumentReader, digests_of, numbers_of

FILE = "documents.arrow"
SCHEMA = pa.schema([pa.field("text", pa.large_string()), pa.field("digest", pa.binary(16))])

Blocks = Callable[[Callable[[bytes], pa.RecordBatch], Iterable[bytes]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Index:
    """Of a file of buckets: documents of each bucket [B], and the bytes where each begins and the last ends [B + 1]."""

    documents: list[int]
    offsets: list[int]

    def sizes(self) -> list[int]:
        """Bytes of each bucket."""
        return [end - start for start, end in pairwise(self.offsets)]


def sort_documents(reader: DocumentReader, buckets: int, path: Path, map_blocks: Blocks = map) -> Index:
    """Write a file of buckets; the text of the reader is held in memory.

    :param map_blocks: like `map`, over blocks of text.
    """

    def find(block: bytes) -> pa.RecordBatch:
        texts = reader.find(block)
        return pa.record_batch([texts, digests_of(texts)], schema=SCHEMA)

    found = pa.Table.from_batches(map_blocks(find, reader.blocks()), SCHEMA)
    documents = pa.record_batch([column.combine_chunks() for column in found.columns], schema=SCHEMA)
    del found  # its text is held once
    numbers = numbers_of(documents.column("digest"))[:, 0] % np.uint64(buckets)
    order, counts = np.argsort(numbers, kind="stable"), np.bincount(numbers.astype(np.int64), minlength=buckets)
    offsets = [0]
    with path.open("wb") as file:
        for places in np.split(order, np.cumsum(counts)[:-1]):
            offsets.append(offsets[-1] + file.write(documents.take(pa.array(places)).serialize()))
    return Index(counts.tolist(), offsets)


def digests_of_buckets(reader: DocumentReader, buckets: int) -> Iterator[str]:
    """The digest of the documents of each bucket, from which its shard's key is made; in memory are 16 bytes a document, no text.

    The order within a bucket is that of `read_buckets`.
    """
    numbers = np.concatenate([numbers_of(digests_of(reader.find(block))) for block in reader.blocks()])
    places = numbers[:, 0] % np.uint64(buckets)
    for bucket in range(buckets):
        found = numbers[places == np.uint64(bucket)]
        by_bytes = found.byteswap()  # whose order as numbers is that of the bytes
        yield digest(found[np.lexsort((by_bytes[:, 1], by_bytes[:, 0]))].tobytes())


def read_buckets(parts: Iterable[bytes], count: int) -> Iterator[pa.Table]:
    """The documents of buckets that lie together, each sorted by digest.

    :param parts: of each file the bytes of these buckets, which are held in memory.
    :raises pa.ArrowInvalid: the bytes are not those of so many buckets.
    """
    messages = [pa.BufferReader(part) for part in parts]
    for _ in range(count):
        found = [pa.ipc.read_record_batch(pa.ipc.read_message(part), SCHEMA) for part in messages]
        yield pa.Table.from_batches(found, SCHEMA).sort_by("digest").combine_chunks()
