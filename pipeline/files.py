"""Files at any address: the one place where they are opened.

In: a path, or an fsspec address. Out: the file system there, or a file's bytes. The decision that matters: whatever is not on
this machine is read with patience, block by block: a block that failed is asked for again from its own offset, so that a large
text is neither begun again nor held whole.
"""

import hashlib
import io
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from .addresses import protocol_of, without_credentials
from .errors import SettingsError
from .retries import RetryingFileSystem

_BLOCK = 4 << 20  # bytes asked for at a time
_CHUNK = 1 << 20
_NEEDS_SFTP = "sftp is not installed; .venv/bin/pip install -c constraints.txt -e '.[sftp]'"


def find_file_system(address: str) -> tuple[Any, str]:
    """fsspec's file system at an address, and the path within it.

    :raises ImportError, ValueError: fsspec cannot open it here.
    """
    for protocol in ("sftp", "ssh"):  # others trust any server, and end with their first connection
        fsspec.register_implementation(protocol, f"{__package__}.sftp.SftpFileSystem", clobber=True, errtxt=_NEEDS_SFTP)
    found: tuple[Any, str] = fsspec.url_to_fs(address)
    return found


def file_system(address: str) -> tuple[Any, str]:
    """The same, patient where it is not local.

    :raises SettingsError: nothing that fsspec can open here.
    """
    shown = without_credentials(address)
    try:
        fs, path = find_file_system(address)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"{shown}: {error}; wanted a path, or an address that fsspec can open here") from error
    return (fs if isinstance(fs, LocalFileSystem) else RetryingFileSystem(fs, shown.rstrip("/"))), path


def open_file(address: str) -> BinaryIO:
    """A file to read from; it may be sought in, and is to be closed.

    :raises FileNotFoundError: there is none. :raises PipelineError: a store that refuses, or is away for long.
    """
    fs, path = file_system(address)
    if isinstance(fs, LocalFileSystem):
        return Path(path).open("rb")
    if protocol_of(address) in ("http", "https"):  # many a web server knows no size beforehand, or sends the whole for a part
        return io.BytesIO(fs.cat_file(path))
    return cast(BinaryIO, io.BufferedReader(_RemoteFile(fs, path), _BLOCK))


def read_part(address: str, start: int, end: int) -> bytes:
    """Some bytes of a file."""
    fs, path = file_system(address)
    data: bytes = fs.cat_file(path, start=start, end=end)
    return data


def read_file(address: str) -> bytes:
    """A file's bytes; raises as `open_file` does."""
    fs, path = file_system(address)
    data: bytes = fs.cat_file(path)
    return data


def file_digest(address: str) -> str:
    """The sha256 of a file, in hexadecimal; raises as `open_file` does."""
    hasher = hashlib.sha256()
    with open_file(address) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


class _RemoteFile(io.RawIOBase):
    """A file that does not change, each block of it asked for by its offset."""

    def __init__(self, fs: RetryingFileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._size, self._position = int(fs.info(path)["size"]), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        data: bytes = self._fs.cat_file(self._path, start=self._position, end=self._position + wanted)
        if len(data) != wanted:
            raise OSError(f"{self._path}: got {len(data)} bytes from byte {self._position} on, wanted {wanted}")
        buffer[:wanted] = data
        self._position += len(data)
        return len(data)
