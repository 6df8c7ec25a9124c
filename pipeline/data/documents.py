"""Canonical text -> documents.

In: a `.tokens` file, one paragraph a line, or a part of it. Out: documents, a block of text at a time. The decision that
matters: for the deck a document is a paragraph, for the paper an article, whose text here is its paragraphs, one a line. A
file is parted only where a document begins, and read in blocks that begin at the same bytes whatever the part, so that the
parts together give the documents of the whole.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..files import file_system, open_file
from ..settings import TextSettings
from ..storage import Output

SENTENCE_END = " . "
LONGEST_DOCUMENT = 16 << 20  # bytes; a longer one is taken for several, cut at the end of a line
WIKITEXT, TEXT = "wikitext", "text"
"""Forms of canonical text: an article begins at its title ` = Title = `, or after a blank line."""
_BLOCK = 4 << 20  # bytes of text read at a time
_LOOK = 1 << 16  # bytes read at a time where only the beginning of a document is looked for
_TITLE = re.compile(rb"^[ \t]*= (?!=)[^\n]*(?<!=) =[ \t]*$", re.MULTILINE)
_BLANK = re.compile(rb"\n[ \t]*\n")
_HEADING = re.compile(r"= .* =")


def is_title(line: bytes) -> bool:
    """Whether a line is the title of an article in WikiText's form."""
    return _TITLE.fullmatch(line.rstrip(b"\r\n")) is not None


def wanted_text(text: TextSettings) -> str:
    """What a text has to look like, for a message."""
    if text.documents == "paragraph":
        return (
            "wanted one paragraph a line with its sentences parted by ` . ` "
            "(a blank line after each sentence makes each a paragraph of its own)"
        )
    return "wanted documents of several sentences, parted by blank lines (one after each sentence makes each a document of its own)"


def split_label(corpus: Output, split: str) -> str:
    """What to call a split in a message: where the user has it, not where the store keeps it."""
    return f"{corpus.manifest['recorded'].get('source', corpus.address)}, {split} split"


@dataclass(frozen=True)
class DocumentReader:
    """Reads the documents of a text file in blocks; many threads may take a block's documents out of it.

    :param address: of a `.tokens` file. :param documents: `paragraph` or `article`. :param form: `WIKITEXT` or `TEXT`.
    :param start: byte at which a document begins. :param end: byte at which one ends; None: that of the file.
    """

    address: str
    documents: str
    form: str = WIKITEXT
    start: int = 0
    end: int | None = None

    @classmethod
    def of(cls, corpus: Output, split: str, text: TextSettings) -> "DocumentReader":
        """The reader of a split of a published corpus."""
        return cls(corpus.file(f"{split}.tokens"), text.documents, corpus.facts.get("form", WIKITEXT))

    def size(self) -> int:
        """Bytes of the text."""
        fs, path = file_system(self.address)
        return int(fs.size(path))

    def parts(self, size: int) -> list["DocumentReader"]:
        """Readers of parts of some `size` bytes at most, but where a document is longer; each document is in one of them."""
        end = self.size()
        size, cuts = -(-end // max(1, -(-end // size))), [0]  # none is much smaller than the others
        if size < end:
            with open_file(self.address) as file:
                while cuts[-1] + size < end:
                    cuts.append(self._beginning(file, cuts[-1] + size, end))
        ends = [*cuts[1:], end]
        return [replace(self, start=start, end=stop) for start, stop in zip(cuts, ends, strict=True) if start < stop or not end]

    def _beginning(self, file: BinaryIO, position: int, end: int) -> int:
        """Where the first document begins of which the line before is at or behind a position; where none does, the file's end."""
        file.seek(position)
        rest = b""
        while block := file.read(_LOOK):
            rest += block
            first, lines = rest.find(b"\n") + 1, rest.rfind(b"\n") + 1
            if self.documents == "paragraph" and first:
                return position + first
            if found := next((start for start in self._boundaries(rest[:lines]) if first and start >= first), 0):
                return position + found
            if lines:  # what follows is told by the end of the line before
                position, rest = position + lines - 1, rest[lines - 1 :]
        return end

    def blocks(self) -> Iterator[bytes]:
        """The text in blocks of whole documents, few megabytes each but where one document is longer."""
        with open_file(self.address) as file:
            file.seek(self.start)
            position, rest = self.start, b""
            while block := file.read(self._until(position)):
                position += len(block)
                rest += block
                if cut := self._last_boundary(rest):
                    yield rest[:cut]
                    rest = rest[cut:]
            yield rest

    def _until(self, position: int) -> int:
        """Bytes up to the next multiple of a block, so that a document that is too long is cut where the whole file's reader cuts it."""
        bytes_ = _BLOCK - position % _BLOCK
        return bytes_ if self.end is None else min(bytes_, self.end - position)

    def _last_boundary(self, text: bytes) -> int:
        """Where the last document of a text that goes on begins; 0 where all of it may be one document."""
        end = text.rfind(b"\n") + 1  # what follows is no whole line: it may only look like a title
        if self.documents == "paragraph":
            return end
        last = 0
        for last in self._boundaries(text[:end]):  # noqa: B007 the last one is wanted
            pass
        return last or (end if len(text) > LONGEST_DOCUMENT else 0)

    def _boundaries(self, text: bytes) -> Iterator[int]:
        """Where documents begin: at a title, or after a blank line."""
        if self.form == WIKITEXT:
            return (found.start() for found in _TITLE.finditer(text))
        return (found.end() for found in _BLANK.finditer(text))

    def articles(self, block: bytes) -> Iterator[bytes]:
        """The bytes of each document of a block, one after another; together they are the block."""
        start = 0
        for end in self._boundaries(block):
            if end > start:
                yield block[start:end]
            start = end
        if start < len(block):
            yield block[start:]

    def find(self, block: bytes) -> pa.Array:
        """The documents (large_string) of a block.

        A paragraph is a document when ` . ` stands in it, as in the deck's reader: one with ` . ` at its end only has one
        sentence and is kept, for the vocabulary and as a source of negatives. Of an article, headings are left out.
        """
        if self.documents == "paragraph":
            lines = pc.split_pattern(pa.array([block], pa.large_binary()).cast(pa.large_string()), "\n").flatten()
            return pc.utf8_trim_whitespace(lines.filter(pc.match_substring(lines, SENTENCE_END)))
        texts = (self._paragraphs(article.decode()) for article in self.articles(block))
        return pa.array([text for text in texts if text], pa.large_string())

    def _paragraphs(self, article: str) -> str:
        lines = [stripped for line in article.split("\n") if (stripped := line.strip())]
        headings = lines if self.form == WIKITEXT else lines[:1]
        kept = [line for line in headings if not _HEADING.fullmatch(line)]
        return "\n".join(kept + lines[len(headings) :])


def digests_of(documents: pa.Array) -> pa.FixedSizeBinaryArray:
    """The digests (binary(16) [D]) of documents (large_string [D])."""
    digests = b"".join(hashlib.sha256(text).digest()[:16] for text in documents.cast(pa.large_binary()).to_pylist())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(documents), [None, pa.py_buffer(digests)])


def numbers_of(digests: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint64]:
    """Digests (binary(16) [D]) as numbers [D, 2], their first 64 bits first."""
    numbers = np.frombuffer(digests.buffers()[1] or b"", "<u8").reshape(-1, 2)
    return numbers[digests.offset : digests.offset + len(digests)]
