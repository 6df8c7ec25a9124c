"""The pieces in which the shards of a large corpus are built, each by whoever is free, on this machine or another.

In: small frozen dataclasses that hold addresses and settings. Out: published outputs. The decision that matters: what one
kind of piece hands to the other lies in the store, published like every output, so that builders share nothing else, a piece
that was cut off is done again by anybody, and a run that was killed goes on. How a corpus is parted changes neither bytes
nor keys: a bucket has its documents in the order of their digests, whoever found them.
"""

import functools
import hashlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DamagedOutputError
from ..files import read_part
from ..settings import ShardSettings, TextSettings
from ..shards import SHARD, write_shard
from ..storage import Output, Recipe, Store
from .buckets import FILE, Index, read_buckets, sort_documents
from .documents import DocumentReader, digests_of, numbers_of
from .examples import make_examples
from .tokenizer import Vocabulary

SORTED = "sorted"
FORMAT, SORTED_FORMAT = 2, 1  # of buckets, and of what is sorted into them
_MB = 1 << 20


@dataclass(frozen=True)
class Sorting:
    """To sort a part of a corpus into buckets.

    :param store: address of its root. :param owner: key of the set that it is for, the only one to read it, and to delete it.
    """

    store: str
    corpus: str
    owner: str
    reader: DocumentReader
    buckets: int

    def __str__(self) -> str:
        return f"sort {self.reader.start // _MB:,} MB on"

    def recipe(self) -> Recipe:
        reader = self.reader
        part = {"file": reader.address.rpartition("/")[2], "documents": reader.documents, "start": reader.start, "end": reader.end}
        return Recipe(SORTED, SORTED_FORMAT, part | {"buckets": self.buckets, "set": self.owner}, {"corpus": self.corpus})


@dataclass(frozen=True)
class Span:
    """Some bytes of a file."""

    address: str
    start: int
    end: int


@dataclass(frozen=True)
class Building:
    """To build buckets that lie together.

    :param vocabulary: its address. :param spans: where their documents are. :param numbers: of the buckets.
    """

    store: str
    vocabulary: str
    vocabulary_key: str
    settings: ShardSettings
    text: TextSettings
    spans: tuple[Span, ...] = ()
    numbers: range = range(0)

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        return f"build bucket {first}" if first == last else f"build buckets {first} to {last}"


def spans_of(files: Sequence[tuple[str, Index]], numbers: range) -> tuple[Span, ...]:
    """Where buckets that lie together are in files of buckets, given by address and index."""
    return tuple(Span(address, index.offsets[numbers.start], index.offsets[numbers.stop]) for address, index in files)


def sort_part(piece: Sorting) -> Output:
    """Sort a part of a corpus, or find it sorted."""

    def build(folder: Path) -> dict[str, Any]:
        try:
            index = sort_documents(piece.reader, piece.buckets, folder / FILE)
        except FileNotFoundError as error:
            raise DamagedOutputError(_not_here(piece.reader.address)) from error
        return {"documents": index.documents, "offsets": index.offsets}

    return Store(piece.store).make(piece.recipe(), build, verify=True)


def index_of(sorted_part: Output) -> Index:
    """Where its buckets lie."""
    return Index(sorted_part.facts["documents"], sorted_part.facts["offsets"])


def build_buckets(piece: Building) -> list[Output]:
    """Build the shards of some buckets, or find them."""
    store, words = Store(piece.store), open_once(piece.vocabulary)
    return [_build_bucket(store, documents, words, piece.vocabulary_key, piece.settings, piece.text) for documents in _documents(piece)]


def _documents(piece: Building) -> Iterator[pa.Table]:
    """The documents of each bucket, which are those that were sorted: their digests become the key of what is built of them.

    :raises DamagedOutputError: they are others.
    """
    parts = [_read(span) for span in piece.spans]
    damaged = f"{piece}: what was sorted for it, in {piece.store}/{SORTED}, is damaged; run again, and it is sorted anew"
    try:
        for documents in read_buckets(parts, len(piece.numbers)):
            if not digests_of(documents.column("text").combine_chunks()).equals(documents.column("digest").combine_chunks()):
                raise DamagedOutputError(damaged)
            yield documents
    except (pa.ArrowException, OSError, EOFError) as error:  # Arrow's, of bytes that it cannot read
        raise DamagedOutputError(damaged) from error


@functools.lru_cache(maxsize=1)
def open_once(vocabulary: str) -> Vocabulary:
    """A published vocabulary by its address; a builder opens it for its first piece."""
    return Vocabulary.open(Output(vocabulary, {}))


def _read(span: Span) -> bytes:
    try:
        return read_part(span.address, span.start, span.end)
    except FileNotFoundError as error:
        raise DamagedOutputError(_not_here(span.address)) from error


def _not_here(address: str) -> str:
    todo = "builders on other machines need a store that all of them reach (BERT_STORE); if it was deleted, run again"
    return f"{address}: not to be found from the builder on {socket.gethostname()}; {todo}"


def _build_bucket(
    store: Store, documents: pa.Table, words: Vocabulary, vocabulary_key: str, settings: ShardSettings, text: TextSettings
) -> Output:
    """Build the shard of a bucket, or find it.

    :param documents: sorted by digest.
    """
    contents = hashlib.sha256(numbers_of(documents.column("digest").combine_chunks()).tobytes()).hexdigest()
    for_key = {name: value for name, value in settings.for_key().items() if not name.endswith("buckets")} | text.for_key()
    recipe = Recipe("bucket", FORMAT, for_key, {"documents": contents, "vocabulary": vocabulary_key})

    def build(folder: Path) -> dict[str, Any]:
        examples, counts = make_examples(documents, words, settings, text)
        write_shard(folder / SHARD, examples)
        return {"counts": counts.as_dict(), "contents": examples.digest()}

    return store.make(recipe, build, verify=True)
