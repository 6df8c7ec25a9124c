"""Canonical text -> documents, and documents -> buckets.

In: a `.tokens` file, one paragraph a line. Out: Arrow batches of documents (text and digest), and a bucket's
documents in an order that the corpus's own order does not change. The decision that matters: for the deck a
document is a paragraph, and the hash of its text alone says which bucket it falls into.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pyarrow as pa

from ..storage import Output

SCHEMA = pa.schema([pa.field("text", pa.large_string()), pa.field("digest", pa.binary(16))])
SENTENCE_END = " . "
TEXT_FORM = (
    "wanted one paragraph a line with its sentences parted by ` . ` (a blank line after each sentence makes each a paragraph of its own)"
)
_BLOCK = 8 << 20  # bytes of text read at a time


def split_label(corpus: Output, split: str) -> str:
    """What to call a split in a message: where the user has it, not where the store keeps it."""
    return f"{corpus.manifest['recorded'].get('source', corpus.address)}, {split} split"


def read_documents(address: str) -> Iterator[pa.RecordBatch]:
    """Documents of a text file, in batches with columns text and digest.

    A line is a document when ` . ` stands in it, as in the deck's reader: a paragraph with ` . ` at its end only
    has one sentence and is kept, for the vocabulary and as a source of negatives.
    """
    with fsspec.open(address, "rb") as file:
        rest = b""
        while block := file.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            yield _batch(lines)
        yield _batch([rest])


def _batch(lines: list[bytes]) -> pa.RecordBatch:
    end = SENTENCE_END.encode()
    texts = [line.decode().strip() for line in lines if end in line]
    digests = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
    return pa.record_batch([pa.array(texts, pa.large_string()), pa.array(digests, pa.binary(16))], schema=SCHEMA)


def spill_buckets(address: str, buckets: int, folder: Path) -> list[Path]:
    """Sort the documents of a text file into one Arrow file a bucket, holding one block of text in memory.

    :returns: the bucket files, in the order of their numbers.
    """
    paths = [folder / f"bucket-{number:05d}.arrow" for number in range(buckets)]
    with ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(path), SCHEMA)) for path in paths]
        for batch in read_documents(address):
            rows: list[list[int]] = [[] for _ in range(buckets)]
            for row, value in enumerate(batch.column("digest").to_pylist()):
                rows[int.from_bytes(value[:8], "little") % buckets].append(row)
            for writer, taken in zip(writers, rows, strict=True):
                if taken:
                    writer.write_batch(batch.take(pa.array(taken, pa.int64())))
    return paths


def read_bucket(path: Path) -> pa.Table:
    """A bucket's documents, sorted by digest."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all().sort_by("digest").combine_chunks()
