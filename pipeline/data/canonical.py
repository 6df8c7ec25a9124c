"""Text of any spelling -> canonical text: UTF-8 without a mark at its head, LF, one paragraph a line.

In: parts of a split as blocks of text. Out: one file, what is in it and what was met on the way. The decision that
matters: there are two forms. WikiText's keeps every byte of a line, so that its digests are those of the release; that
of other text has its paragraphs stripped and one empty line between documents, so that the same documents in any kind of
file are the same bytes.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CorpusError, some
from .counts import Counts
from .decoding import whole_lines
from .documents import TEXT, WIKITEXT

_LABELS = 3  # that a message names


@dataclass(frozen=True)
class Part:
    """A file of a split: what to call it in messages, and a function that gives its text.

    :param read: blocks of UTF-8 with LF ends, in whole characters; it counts what it drops and changes.
    """

    label: str
    read: Callable[[Counts], Iterator[bytes]]


@dataclass(frozen=True)
class SplitText:
    """What stands in a canonical file. `paragraphs` counts lines that are not blank."""

    bytes: int
    lines: int
    paragraphs: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Writer:
    """Writes canonical text in WikiText's form, which is what comes, and counts it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hasher = hashlib.sha256()
        self._bytes = self._lines = self._paragraphs = 0
        self.documents = 0

    def write(self, block: bytes) -> None:
        """Write some whole lines."""
        lines = block.split(b"\n")
        self._lines += len(lines) - 1
        self._paragraphs += sum(map(_has_text, lines))
        self._bytes += len(block)
        self._hasher.update(block)
        self._file.write(block)

    def end_part(self) -> None:
        """What follows comes from another file."""

    def close(self) -> SplitText:
        self._file.close()
        return SplitText(self._bytes, self._lines, self._paragraphs, self._hasher.hexdigest())


class TextWriter(Writer):
    """Writes canonical text of documents: paragraphs stripped, exactly one empty line between documents."""

    _at_gap = True

    def write(self, block: bytes) -> None:
        """Write some whole lines; a blank one, or several, ends a document."""
        stripped = "\n".join([line.strip() for line in block.decode().split("\n")[:-1]])
        text = stripped.strip("\n")
        while "\n\n\n" in text:
            text = text.replace("\n\n\n", "\n\n")
        self._at_gap = self._at_gap or stripped.startswith("\n") or not text
        if text:
            gap = "\n" if self._at_gap and self.documents else ""
            self.documents += self._at_gap + text.count("\n\n")
            super().write(f"{gap}{text}\n".encode())
            self._at_gap = stripped.endswith("\n")

    def end_part(self) -> None:
        """A file's end ends its document."""
        self._at_gap = True


def open_writer(path: Path, form: str) -> Writer:
    """A writer of canonical text in a form, `WIKITEXT` or `TEXT`."""
    return {WIKITEXT: Writer, TEXT: TextWriter}[form](path)


def canonicalise(parts: Iterable[Part], target: Path, form: str = WIKITEXT) -> tuple[SplitText, Counts]:
    """Write the parts of a split as one canonical file.

    :raises CorpusError: a part cannot be read, or there is no text in any of them.
    """
    writer, counts, labels = open_writer(target, form), Counts(), []
    try:
        for part in parts:
            labels.append(part.label)
            counts.files += 1
            for block in whole_lines(part.read(counts), counts):
                counts.look_at(block)
                writer.write(block)
            writer.end_part()
    finally:
        found = writer.close()
    counts.documents = writer.documents
    if not found.paragraphs:
        rows = f"{counts.rows} rows, {counts.empty_documents} of them empty" if counts.rows else f"{counts.files} files, all blank"
        raise CorpusError(f"{some(labels, _LABELS)}: no text ({rows}); wanted at least one paragraph")
    return found, counts


def _has_text(line: bytes) -> bool:
    first = line.lstrip()[:1]
    return b"!" <= first <= b"~" or bool(line.decode().strip())  # most lines are told by their first character
