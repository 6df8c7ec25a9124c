"""Files of a corpus -> their bytes, whatever they are packed in.

In: open files and archives. Out: blocks of unpacked bytes. The decision that matters: every way in which a file can be
unreadable ends as one `CorpusError` that names it, and unpacked bytes are counted as they come.
"""

import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ..errors import CorpusError

_BLOCK = 1 << 20  # bytes
_PADDING = b"\0"  # between streams of .xz
_UNREADABLE = (
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
_UNPACK: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lambda file: _XzReader(file),  # type: ignore[dict-item,return-value]
    ".zst": lambda file: pa.CompressedInputStream(file, "zstd"),
}

Opener = Callable[[], BinaryIO]


class _XzReader(AbstractContextManager["_XzReader"]):
    """Reads `.xz` of one or more streams, to the end of the last; `lzma.open` takes a damaged one after the first for what follows it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream = file, lzma.LZMADecompressor()

    def __exit__(self, *_: object) -> None:
        """The file is closed by whoever opened it."""

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end.

        :raises LZMAError: damaged. :raises EOFError: it ends within a stream.
        """
        found = b""
        while not found:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(_PADDING)
                while not packed:
                    if not (block := self._file.read(_BLOCK)):
                        return b""
                    packed = block.lstrip(_PADDING)
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not (packed := self._file.read(_BLOCK)):
                raise EOFError("it ends too early")
            found = self._stream.decompress(packed, size)
        return found


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


@dataclass(frozen=True)
class File:
    """A file of a corpus.

    :param form: `text`, `json_lines` or `parquet`. :param packing: `.gz`, `.zst`, `.xz` or empty.
    :param opened: opens its bytes as they lie. :param in_zip: it is a member of a zip.
    :param spool: a path of its own, where it may be unpacked to.
    """

    label: str
    form: str
    packing: str
    opened: Opener
    in_zip: bool
    spool: Path

    def blocks(self, budget: Budget) -> Iterator[bytes]:
        """Its bytes, unpacked.

        :raises CorpusError: it cannot be read, is damaged, or unpacks to more than the budget.
        """
        packed = self.in_zip or bool(self.packing)
        unreadable = _UNREADABLE if packed else (OSError,)
        try:
            with ExitStack() as stack:
                file = stack.enter_context(self.opened())
                if self.packing:
                    file = stack.enter_context(_UNPACK[self.packing](file))
                while block := file.read(_BLOCK):
                    if packed:
                        budget.spend(len(block), self.label)
                    yield block
        except unreadable as error:
            what = "damaged, or packed in a way that cannot be unpacked" if packed else "cannot be read"
            raise CorpusError(f"{self.label}: {what} ({error}){'; get it again' if packed else ''}") from error

    def seekable(self, budget: Budget) -> Opener:
        """What opens it for reading from its end, as Parquet is; what is packed is unpacked first, lest that be done again and again.

        :raises OSError: the disk that it is unpacked to is full.
        """
        if not (self.in_zip or self.packing):
            return self.opened
        if not self.spool.exists():
            with self.spool.open("wb") as file:
                file.writelines(self.blocks(budget))
        return lambda: self.spool.open("rb")


def open_zip(file: BinaryIO, label: str, wanted: str) -> zipfile.ZipFile:
    """:raises CorpusError: it is not a zip, or its directory is damaged."""
    try:
        archive = zipfile.ZipFile(file)
        for member in archive.infolist():
            if not member.flag_bits & 1:
                archive.open(member).close()  # compares its name with the one beside its data: a flipped byte would hide a split
        return archive
    except _UNREADABLE as error:
        raise CorpusError(f"{label}: not a readable zip ({error}); wanted {wanted}") from error


def member_opener(archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str, budget: Budget) -> Opener:
    """:raises CorpusError: encrypted, or larger than the budget by what the archive's directory says of it."""
    if member.flag_bits & 1:
        raise CorpusError(f"{label} is encrypted; unpack it and give the folder")
    Budget(budget.limit).spend(member.file_size, label)  # what the directory says; what comes is counted as well
    return lambda: archive.open(member)  # type: ignore[return-value]
