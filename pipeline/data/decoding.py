"""Bytes of a text file -> whole lines of UTF-8.

In: chunks of any size. Out: blocks of whole lines with LF ends, no mark at the head. The decision that matters: a
character, a line end or a line may be split over chunks, and memory holds no more than the longest line.
"""

import codecs
from collections.abc import Iterator

from ..errors import CorpusError
from .counts import Counts

LONGEST_LINE = 16 << 20  # bytes; a longer one is cut at white space


def decode(chunks: Iterator[bytes], label: str, counts: Counts) -> Iterator[bytes]:
    """The text in whole characters, with LF for CRLF and without a byte order mark at its head.

    :raises CorpusError: it is not UTF-8; names the byte.
    """
    pending, position, held_back, at_head = b"", 0, b"", True
    for chunk in _with_end(chunks):
        data = pending + (chunk or b"")
        try:
            _, used = codecs.utf_8_decode(data, "strict", chunk is None)
        except UnicodeDecodeError as error:
            raise CorpusError(not_utf8(label, position, error)) from None
        text, pending, position = data[:used], data[used:], position + used
        if at_head and text:
            counts.byte_order_marks += text.startswith(codecs.BOM_UTF8)
            text, at_head = text.removeprefix(codecs.BOM_UTF8), False
        text = held_back + text
        held_back = b"\r" if text.endswith(b"\r") and chunk is not None else b""
        text = text.removesuffix(held_back)
        if b"\r" in text:  # looking for one byte is fast
            counts.crlf_line_ends += text.count(b"\r\n")
            text = text.replace(b"\r\n", b"\n")
        yield text


def not_utf8(label: str, position: int, error: UnicodeDecodeError) -> str:
    """The message for bytes that are not UTF-8.

    :param position: in the file, of what could not be decoded.
    """
    offset, byte = position + error.start, error.object[error.start]
    return f"{label}: byte {offset} (0x{byte:02x}) is not UTF-8 ({error.reason}); wanted UTF-8 text, so convert the file first"


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from chunks
    yield None


def whole_lines(chunks: Iterator[bytes], counts: Counts) -> Iterator[bytes]:
    """Blocks of whole lines, the last one ended too; a line longer than `LONGEST_LINE` is cut into several."""
    rest = b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield _cut_long(rest + chunk[:end], counts)
            rest = chunk[end:]
        else:
            rest += chunk
        while len(rest) > LONGEST_LINE:
            piece, rest = _cut(rest, counts)
            yield piece
    if rest:
        yield rest + b"\n"


def _cut_long(block: bytes, counts: Counts) -> bytes:
    if len(block) <= LONGEST_LINE:
        return block
    pieces = []
    for line in block.removesuffix(b"\n").split(b"\n"):
        rest = line
        while len(rest) > LONGEST_LINE:
            piece, rest = _cut(rest, counts)
            pieces.append(piece)
        pieces.append(rest + b"\n")
    return b"".join(pieces)


def _cut(line: bytes, counts: Counts) -> tuple[bytes, bytes]:
    """The longest beginning that ends at white space, else at a character, as a line; and the rest."""
    counts.cut_lines += 1
    at = max(line.rfind(space, 0, LONGEST_LINE) for space in (b" ", b"\t")) + 1
    if not at:
        at = LONGEST_LINE
        while line[at] & 0xC0 == 0x80:  # within a character
            at -= 1
    return line[:at] + b"\n", line[at:]
