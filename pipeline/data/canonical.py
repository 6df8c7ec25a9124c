"""Text of any spelling -> canonical text: UTF-8 without a mark at its head, LF, one paragraph a line.

In: parts of a split as chunks of bytes. Out: one file and what is in it. The decision that matters: bytes pass
through in chunks, so that a corpus of any size, and a line of any length, takes little memory.
"""

import codecs
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CorpusError

VALID_ONE_IN = 10  # share of the paragraphs held out of a train split that comes alone


@dataclass(frozen=True)
class Part:
    """A file of a split: what to call it in messages, and its bytes in chunks."""

    label: str
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class SplitText:
    """What stands in a canonical file. `paragraphs` counts lines that are not blank."""

    bytes: int
    lines: int
    paragraphs: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Writer:
    """Writes canonical text and counts it; lines may come in pieces."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hasher = hashlib.sha256()
        self._bytes = self._lines = self._paragraphs = 0
        self._line_has_text = False
        self._line_open = False

    def write(self, data: bytes) -> None:
        """Write some whole characters."""
        if not data:
            return
        *whole, rest = data.split(b"\n")
        if whole:
            self._paragraphs += sum(map(_has_text, whole[1:])) + (self._line_has_text or _has_text(whole[0]))
            self._line_has_text = False
        self._line_has_text = self._line_has_text or _has_text(rest)
        self._line_open = bool(rest) or (self._line_open and not whole)
        self._lines += len(whole)
        self._bytes += len(data)
        self._hasher.update(data)
        self._file.write(data)

    def end_line(self) -> None:
        if self._line_open:
            self.write(b"\n")

    def close(self) -> SplitText:
        self._file.close()
        return SplitText(self._bytes, self._lines, self._paragraphs, self._hasher.hexdigest())


def canonicalise(parts: Iterable[Part], target: Path) -> SplitText:
    """Write the parts of a split as one canonical file.

    A BOM is dropped at a part's head only, CRLF becomes LF, a last line without an end gets one; nothing else changes.

    :raises CorpusError: a part is not UTF-8 (names the byte), or there is no text in any of them.
    """
    writer = _Writer(target)
    labels = []
    try:
        for part in parts:
            labels.append(part.label)
            for data in _decode(part):
                writer.write(data)
            writer.end_line()
    finally:
        found = writer.close()
    if not found.paragraphs:
        raise CorpusError(f"{', '.join(labels)}: no text ({found.bytes} bytes, all blank); wanted at least one paragraph")
    return found


def _has_text(line: bytes) -> bool:
    first = line.lstrip()[:1]
    return b"!" <= first <= b"~" or bool(line.decode().strip())  # most lines are told by their first character


def _decode(part: Part) -> Iterator[bytes]:
    """The text of a part in whole characters, with LF for CRLF; a character or a line end may be split over two chunks."""
    pending, position, held_back, at_head = b"", 0, b"", True
    for chunk in _with_end(part.chunks()):
        data = pending + (chunk or b"")
        try:
            _, used = codecs.utf_8_decode(data, "strict", chunk is None)
        except UnicodeDecodeError as error:
            offset = position + error.start
            found = f"byte {offset} (0x{data[error.start]:02x}) is not UTF-8 ({error.reason})"
            raise CorpusError(f"{part.label}: {found}; wanted UTF-8 text, so convert the file first") from None
        text, pending, position = data[:used], data[used:], position + used
        if at_head and text:
            text, at_head = text.removeprefix(codecs.BOM_UTF8), False
        text = held_back + text
        held_back = b"\r" if text.endswith(b"\r") and chunk is not None else b""
        text = text.removesuffix(held_back)
        yield text.replace(b"\r\n", b"\n") if b"\r" in text else text  # looking for one byte is fast


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from chunks
    yield None


def hold_out(train: Path, valid: Path) -> tuple[SplitText, SplitText]:
    """Move one paragraph in `VALID_ONE_IN` from a canonical train file to a new valid file.

    A paragraph's own digest decides, so that equal paragraphs stay together and other text's order changes nothing.

    :returns: what is in train and in valid afterwards.
    :raises CorpusError: one of them would be empty.
    """
    rest = train.with_suffix(".rest")
    kept, held = _Writer(rest), _Writer(valid)
    try:
        with train.open("rb") as lines:
            for line in lines:
                text = line.decode().strip()
                (held if text and _is_held_out(text) else kept).write(line)
    finally:
        in_train, in_valid = kept.close(), held.close()
    if not in_train.paragraphs or not in_valid.paragraphs:
        found = f"{in_train.paragraphs + in_valid.paragraphs} paragraphs"
        wanted = f"enough to hold out one in {VALID_ONE_IN} for validation (that left {in_train.paragraphs} and {in_valid.paragraphs})"
        raise CorpusError(f"no valid split, and train has {found}; wanted {wanted}; add text or a valid split")
    rest.replace(train)
    return in_train, in_valid


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % VALID_ONE_IN == 0
