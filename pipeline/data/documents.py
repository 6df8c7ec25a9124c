"""Canonical text -> documents, and documents -> buckets.

In: a `.tokens` file, one paragraph a line. Out: documents, a block of text at a time, and a bucket's documents in an
order that the corpus's own order does not change. The decision that matters: for the deck a document is a paragraph,
and the hash of its text alone says which bucket it falls into.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..storage import Output
from .parallel import map_in_threads

SCHEMA = pa.schema([pa.field("text", pa.large_string()), pa.field("digest", pa.binary(16))])
SENTENCE_END = " . "
TEXT_FORM = (
    "wanted one paragraph a line with its sentences parted by ` . ` (a blank line after each sentence makes each a paragraph of its own)"
)
_BLOCK = 4 << 20  # bytes of text read at a time


def split_label(corpus: Output, split: str) -> str:
    """What to call a split in a message: where the user has it, not where the store keeps it."""
    return f"{corpus.manifest['recorded'].get('source', corpus.address)}, {split} split"


def read_blocks(address: str) -> Iterator[bytes]:
    """A text file in blocks of whole lines."""
    with fsspec.open(address, "rb") as file:
        rest = b""
        while block := file.read(_BLOCK):
            lines, _, rest = (rest + block).rpartition(b"\n")
            yield lines
        yield rest


def find_documents(block: bytes) -> pa.Array:
    """The documents (large_string) of a block of lines.

    A line is a document when ` . ` stands in it, as in the deck's reader: a paragraph with ` . ` at its end only
    has one sentence and is kept, for the vocabulary and as a source of negatives.
    """
    lines = pc.split_pattern(pa.array([block], pa.large_binary()).cast(pa.large_string()), "\n").flatten()
    return pc.utf8_trim_whitespace(lines.filter(pc.match_substring(lines, SENTENCE_END)))


def digests_of(documents: pa.Array) -> pa.FixedSizeBinaryArray:
    """The digests (binary(16) [D]) of documents (large_string [D])."""
    digests = b"".join(hashlib.sha256(text).digest()[:16] for text in documents.cast(pa.large_binary()).to_pylist())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(documents), [None, pa.py_buffer(digests)])


def numbers_of(digests: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint64]:
    """Digests (binary(16) [D]) as numbers [D, 2], their first 64 bits first."""
    numbers = np.frombuffer(digests.buffers()[1] or b"", "<u8").reshape(-1, 2)
    return numbers[digests.offset : digests.offset + len(digests)]


def spill_buckets(address: str, buckets: int, folder: Path) -> dict[Path, int]:
    """Sort the documents of a text file into one Arrow file a bucket, holding few blocks of text in memory.

    :returns: the bucket files, in the order of their numbers, and how many documents each holds.
    """

    def sort_out(block: bytes) -> list[pa.RecordBatch]:
        """The documents of a block and their digests, for each bucket."""
        texts = find_documents(block)
        digests = digests_of(texts)
        numbers = numbers_of(digests)[:, 0] % np.uint64(buckets)
        order = np.argsort(numbers, kind="stable")
        batch = pa.record_batch([texts, digests], schema=SCHEMA).take(pa.array(order))
        ends = np.searchsorted(numbers[order], np.arange(buckets), side="right")
        return [batch.slice(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]

    documents = {folder / f"bucket-{number:05d}.arrow": 0 for number in range(buckets)}
    with ExitStack() as stack:
        writers = {path: stack.enter_context(pa.ipc.new_stream(str(path), SCHEMA)) for path in documents}
        for parts in map_in_threads(sort_out, read_blocks(address)):
            for (path, writer), part in zip(writers.items(), parts, strict=True):
                if len(part):
                    writer.write_batch(part)
                    documents[path] += len(part)
    return documents


def read_bucket(path: Path) -> pa.Table:
    """A bucket's documents, sorted by digest."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all().sort_by("digest").combine_chunks()
