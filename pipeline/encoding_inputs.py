"""Sentences and pairs out of a user's files.

In: a text file with a sentence a line, standard input, or columns of a table. Out: sentences or pairs, as they come. The
decision that matters: each line and each row is one input, a blank line too (the encoding of no words), so that what comes
out lines up with what went in.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import TableError
from .files import open_file
from .tables import form_of, is_table, opened, read_table

STANDARD_INPUT = "-"
_WANTED = "a text file, or a table (.tsv, .csv, .jsonl, .parquet)"


@dataclass(frozen=True)
class Source:
    """A file of inputs.

    :param address: of a text file or a table, local or any that fsspec knows, or `-`.
    :param column: of a table. :param pair_column: of the second sentences; None: there are none.
    :param pairs: of a text file: each line is a pair, with a TAB between.
    """

    address: str
    column: str = "text"
    pair_column: str | None = None
    pairs: bool = False

    def where(self, number: int) -> str:
        """Begins a message about an input, by its number from 0."""
        name = "standard input" if self.address == STANDARD_INPUT else self.address
        return f"{name}: {'row' if is_table(self.address) else 'line'} {number + 1}: "

    def count(self) -> int | None:
        """How many inputs there are, where that is known beforehand."""
        if form_of(self.address) != "parquet":
            return None
        try:
            with open_file(self.address) as file:
                return int(pq.ParquetFile(file).metadata.num_rows)
        except (OSError, pa.ArrowException):
            return None  # reading says what is wrong

    def read(self) -> Iterator[str | tuple[str, str]]:
        """The inputs.

        :raises TableError: it cannot be read, or a line or row is no input; names it.
        """
        return self._rows() if is_table(self.address) else self._lines()

    def _rows(self) -> Iterator[str | tuple[str, str]]:
        columns, number = [self.column, *filter(None, [self.pair_column])], 0
        for batch in read_table(self.address, columns):
            for values in zip(*(batch.column(place).to_pylist() for place in range(len(columns))), strict=True):
                if None in values:
                    raise TableError(f"{self.where(number)}`{columns[values.index(None)]}` is null, wanted text")
                number += 1
                yield values[0] if len(values) == 1 else (values[0], values[1])

    def _lines(self) -> Iterator[str | tuple[str, str]]:
        if self.address == STANDARD_INPUT:
            if sys.stdin is None:
                raise TableError("standard input: closed; wanted lines of text")
            try:
                yield from self._inputs(sys.stdin.buffer)
            except OSError as error:
                raise TableError(f"standard input: {error.strerror or error}; wanted lines of text") from error
            return
        with opened(self.address, _WANTED) as file:
            yield from self._inputs(file)

    def _inputs(self, file: BinaryIO) -> Iterator[str | tuple[str, str]]:
        for number, line in enumerate(file):
            try:
                text = line.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TableError(f"{self.where(number)}byte {error.start + 1} is not UTF-8; wanted UTF-8 text") from None
            yield self._split(text, number) if self.pairs else text

    def _split(self, text: str, number: int) -> tuple[str, str]:
        first, *others = text.split("\t")
        if len(others) != 1:
            raise TableError(f"{self.where(number)}got {len(others)} TABs, wanted one, between the two sentences of a pair")
        return first, others[0]


def check_source(source: Source, given: Callable[[str], bool]) -> None:
    """Refuse options that the kind of file does not heed.

    :param given: whether an option was typed.
    :raises TableError: names it.
    """
    table = is_table(source.address)
    for option, heeded, kind in (("column", table, "a table"), ("pair_column", table, "a table"), ("pairs", not table, "a text file")):
        if given(option) and not heeded:
            raise TableError(f"--{option.replace('_', '-')}: is for {kind}, which {source.address} is not by its ending")
