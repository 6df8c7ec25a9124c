"""Files of a corpus -> chunks of text: plain text, Parquet, and either inside a zip.

In: open files and archives. Out: functions that give a file's text in chunks. The decision that matters: every way in
which a file can be unreadable ends as one `CorpusError` that names it, and unpacked bytes are counted as they come.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import CorpusError

TEXT_COLUMN = "text"
_BLOCK = 1 << 20  # bytes
_ROWS = 4096  # rows of Parquet held at a time
_UNREADABLE_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)

Opener = Callable[[], BinaryIO]
Chunks = Callable[[], Iterator[bytes]]


@dataclass
class Budget:
    """Counts unpacked bytes, so that a small archive cannot fill the disk."""

    limit: int
    spent: int = 0

    def spend(self, size: int, label: str) -> None:
        """:raises CorpusError: with these bytes it is more than the limit."""
        self.spent += size
        if self.spent > self.limit:
            raise CorpusError(f"{label}: unpacks to more than {self.limit} bytes; unpack it yourself and give the folder")


def text_chunks(opened: Opener, label: str) -> Chunks:
    """The bytes of a file as they are."""

    def chunks() -> Iterator[bytes]:
        try:
            with opened() as file:
                while block := file.read(_BLOCK):
                    yield block
        except OSError as error:
            raise CorpusError(f"{label}: cannot be read ({error})") from error

    return chunks


def parquet_chunks(opened: Opener, label: str, budget: Budget) -> Chunks:
    """Rows as lines of WikiText's form: ` line `, a blank one ` `; rows may have lost their spaces and line ends."""

    def chunks() -> Iterator[bytes]:
        try:
            with opened() as opened_file:
                file = pq.ParquetFile(opened_file)
                names = file.schema_arrow.names
                if TEXT_COLUMN not in names or file.schema_arrow.field(TEXT_COLUMN).type not in (pa.string(), pa.large_string()):
                    raise CorpusError(f"{label}: its columns are {', '.join(names)}; wanted a column `{TEXT_COLUMN}` of strings")
                for batch in file.iter_batches(batch_size=_ROWS, columns=[TEXT_COLUMN]):
                    budget.spend(batch.nbytes, label)
                    rows = ((row or "").strip(" \r\n") for row in batch.column(0).to_pylist())
                    lines = (line.strip(" \r") for row in rows for line in row.split("\n"))
                    yield "".join(f" {line} \n" if line else " \n" for line in lines).encode()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"{label}: not readable as Parquet ({error}); get or write it again") from error

    return chunks


def open_zip(file: BinaryIO, label: str, wanted: str) -> zipfile.ZipFile:
    """:raises CorpusError: it is not a zip, or its directory is damaged."""
    try:
        archive = zipfile.ZipFile(file)
        for member in archive.infolist():
            if not member.flag_bits & 1:
                archive.open(member).close()  # compares its name with the one beside its data: a flipped byte would hide a split
        return archive
    except _UNREADABLE_ZIP as error:
        raise CorpusError(f"{label}: not a readable zip ({error}); wanted {wanted}") from error


def member_chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str, budget: Budget, spool: Path) -> Chunks:
    """The text of a zip's member, which may be Parquet.

    :param spool: where Parquet is unpacked to: it is read from its end, which inside a zip means unpacking it again and again.
    :raises CorpusError: encrypted, or larger than the budget by what the archive's directory says of it.
    """
    if member.flag_bits & 1:
        raise CorpusError(f"{label} is encrypted; unpack it and give the folder")
    Budget(budget.limit).spend(member.file_size, label)  # what the directory says; what comes is counted as well

    def chunks() -> Iterator[bytes]:
        try:
            with archive.open(member) as file:
                while block := file.read(_BLOCK):
                    budget.spend(len(block), label)
                    yield block
        except _UNREADABLE_ZIP as error:
            raise CorpusError(f"{label}: damaged, or packed in a way that cannot be unpacked ({error}); get it again") from error

    def unpack() -> BinaryIO:
        with spool.open("wb") as file:
            for chunk in chunks():
                file.write(chunk)
        return spool.open("rb")

    return parquet_chunks(unpack, label, Budget(budget.limit)) if member.filename.endswith(".parquet") else chunks
