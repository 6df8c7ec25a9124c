"""What reading a split met: rows, line ends, and characters that a tokenizer may not expect.

In: blocks of text. Out: counts, for the manifest. The decision that matters: ASCII is deleted first, by one pass in C,
so that plain English costs nothing and other scripts are counted letter by letter.
"""

from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

_ASCII = bytes(range(128))
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\n")
_NOT_LATIN = r"[^\P{L}\p{Latin}\p{Common}\p{Inherited}]"  # RE2 has no intersection: neither a non-letter, nor Latin, nor of every script
_RIGHT_TO_LEFT = r"[\p{Hebrew}\p{Arabic}\p{Syriac}\p{Thaana}\p{Nko}\p{Samaritan}\p{Mandaic}\p{Hanifi_Rohingya}\p{Adlam}]"


@dataclass
class Counts:
    """Of one split, as it came.

    :param rows: of JSON Lines and Parquet. :param empty_documents: rows without text, which are dropped.
    :param documents: of canonical text, form `text`; 0 for WikiText's form, whose articles are found later.
    :param crlf_line_ends: turned into LF. :param byte_order_marks: dropped at a file's head.
    :param cut_lines: cuts at white space in lines that were longer than 16 MiB.
    :param control_characters: all but tab and line end, kept.
    """

    files: int = 0
    rows: int = 0
    empty_documents: int = 0
    documents: int = 0
    crlf_line_ends: int = 0
    byte_order_marks: int = 0
    cut_lines: int = 0
    control_characters: int = 0
    non_latin_letters: int = 0
    right_to_left_letters: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def look_at(self, text: bytes) -> None:
        """Count the characters of a block of UTF-8."""
        self.control_characters += len(text) - len(text.translate(None, _CONTROLS))
        if not (rest := text.translate(None, _ASCII)):
            return
        characters = pa.array([rest], pa.large_binary()).cast(pa.large_string())
        self.control_characters += _count(characters, r"\p{Cc}")
        if others := _count(characters, _NOT_LATIN):
            self.non_latin_letters += others
            self.right_to_left_letters += _count(characters, _RIGHT_TO_LEFT)


def _count(characters: pa.Array, pattern: str) -> int:
    return int(pc.count_substring_regex(characters, pattern)[0].as_py())
