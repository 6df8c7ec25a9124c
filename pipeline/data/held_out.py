"""A train split that comes alone -> train and valid.

In: a canonical file. Out: two. The decision that matters: whole documents are held out, by their own digests, so that no
document has a part on either side, equal ones stay together, and other text's order and arrival change nothing.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import CorpusError
from .canonical import SplitText, open_writer
from .documents import TEXT, DocumentReader

VALID_ONE_IN = 10
DOCUMENT, PARAGRAPH = "document", "paragraph"


def hold_out(train: Path, valid: Path, form: str) -> tuple[SplitText, SplitText, str]:
    """Move one document in `VALID_ONE_IN` from a canonical train file to a new valid file.

    Where that leaves one of them empty (a text without documents has but one), one paragraph in as many.

    :returns: what is in train and in valid afterwards, and what was held out, `document` or `paragraph`.
    :raises CorpusError: one of them would be empty with either.
    """
    for held_out_by in (DOCUMENT, PARAGRAPH):
        rest = train.with_suffix(".rest")
        in_train, in_valid = _divide(train, rest, valid, form, held_out_by)
        if in_train.paragraphs and in_valid.paragraphs:
            rest.replace(train)
            return in_train, in_valid, held_out_by
    found = f"{in_train.paragraphs + in_valid.paragraphs} paragraphs"
    wanted = f"enough to hold out one in {VALID_ONE_IN} for validation (that left {in_train.paragraphs} and {in_valid.paragraphs})"
    raise CorpusError(f"no valid split, and train has {found}; wanted {wanted}; add text or a valid split")


def _divide(train: Path, rest: Path, valid: Path, form: str, held_out_by: str) -> tuple[SplitText, SplitText]:
    kept, held = open_writer(rest, form), open_writer(valid, form)
    try:
        for piece in _documents(train, form) if held_out_by == DOCUMENT else _lines(train):
            text = piece.decode().strip()
            if text:
                (held if _is_held_out(text) else kept).write(piece)
                continue
            kept.write(piece)
            if form == TEXT:
                held.write(piece)  # a blank line ends a document on both sides
    finally:
        found = kept.close(), held.close()
    return found


def _documents(path: Path, form: str) -> Iterator[bytes]:
    reader = DocumentReader(str(path), "article", form)
    for block in reader.blocks():
        yield from reader.articles(block)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        yield from lines


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % VALID_ONE_IN == 0
