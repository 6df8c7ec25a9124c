"""Rows of JSON Lines and Parquet -> documents, or lines of WikiText's form.

In: a file whose rows hold texts. Out: blocks of text, a paragraph a line and a blank line after each document. The
decision that matters: a row is a document, a line end in its text ends a paragraph and a blank line there means nothing,
so that what ends a document is the same in every kind of file.
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import CorpusError, some
from ..settings import CorpusSettings
from .counts import Counts
from .decoding import not_utf8
from .documents import is_title
from .forms import Budget, File

LONGEST_ROW = 256 << 20  # bytes of a line of JSON Lines
_BLOCK = 1 << 20  # characters of text that are handed on together
_ROWS, _BATCH = 4096, 4 << 20  # most rows and about how many bytes of Parquet are held at a time
_SHOWN = 12  # names of columns in a message

Row = tuple[str | None, str | None]
"""Title and text."""


def documents(rows: Iterable[Row], counts: Counts) -> Iterator[bytes]:
    """Rows as documents: the title as a first line ` = Title = ` of its own, then the paragraphs. Rows without text are dropped."""

    def found() -> Iterator[str]:
        for title, text in rows:
            counts.rows += 1
            counts.crlf_line_ends += text.count("\r\n") if text else 0
            lines = [stripped for line in (text or "").split("\n") if (stripped := line.strip())]
            if not lines:
                counts.empty_documents += 1
                continue
            if heading := " ".join((title or "").split()):
                lines.insert(0, f"= {heading} =")
            yield "\n".join(lines) + "\n\n"

    return _blocks(found())


def _blocks(pieces: Iterable[str]) -> Iterator[bytes]:
    """Pieces of text put together, so that few large blocks are handed on."""
    block: list[str] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size > _BLOCK:
            yield "".join(block).encode()
            block, size = [], 0
    if block:
        yield "".join(block).encode()


def json_rows(file: File, settings: CorpusSettings, budget: Budget, counts: Counts) -> Iterator[Row]:
    """The rows of JSON Lines: an object a line; blank lines are none.

    :raises CorpusError: names the line and what is wrong with it.
    """
    position = 0
    for number, line in enumerate(_lines(file, budget), 1):
        text, start = line, position
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            counts.byte_order_marks += 1
            text, start = line.removeprefix(codecs.BOM_UTF8), position + len(codecs.BOM_UTF8)
        position += len(line) + 1
        if not text.isspace() and text:
            yield _row(text, start, f"{file.label}: line {number}", settings)


def _lines(file: File, budget: Budget) -> Iterator[bytes]:
    begun: list[bytes] = []
    size = 0
    for block in file.blocks(budget):
        first, *others = block.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LONGEST_ROW:
            raise CorpusError(f"{file.label}: a line of more than {LONGEST_ROW} bytes; wanted JSON Lines, an object a line")
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun, size = [others[-1]], len(others[-1])
    if last := b"".join(begun):
        yield last


def _row(line: bytes, position: int, where: str, settings: CorpusSettings) -> Row:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise CorpusError(not_utf8(where, position, error)) from None
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON ({error}); wanted an object such as {{{_example(settings)}}} on each line") from None
    if not isinstance(values, dict):
        raise CorpusError(f"{where}: a JSON {type(values).__name__}; wanted an object such as {{{_example(settings)}}} on each line")
    title = _value(values, settings.title_column, where, "corpus.title_column") if settings.title_column else None
    return title, _value(values, settings.text_column, where, "corpus.text_column")


def _example(settings: CorpusSettings) -> str:
    return f'"{settings.text_column}": "…"'


def _value(values: dict[str, object], column: str, where: str, setting: str) -> str | None:
    if column not in values:
        there = some((name.encode("utf-8", "backslashreplace").decode() for name in values), _SHOWN)  # a name may have half a character
        raise CorpusError(f"{where}: its columns are {there or 'none'}; wanted a column `{column}`, or its name in {setting}")
    value = values[column]
    if value is None:
        return None
    if not isinstance(value, str):
        raise CorpusError(f"{where}: `{column}` is a JSON {type(value).__name__}, wanted a string or null")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise CorpusError(f"{where}: `{column}` has half of a character ({half}), which no UTF-8 can hold; mend the file") from None
    return value


def parquet_rows(file: File, settings: CorpusSettings, budget: Budget) -> Iterator[Row]:
    """The rows of Parquet, few at a time.

    :raises CorpusError: damaged, or a column is missing or of another type; names it.
    """
    wanted = [name for name in (settings.title_column, settings.text_column) if name]
    counted, opener = Budget(budget.limit), file.seekable(budget)
    try:
        with opener() as opened, pq.ParquetFile(opened, buffer_size=_BLOCK) as table:  # else a row group is read whole
            _check_columns(table.schema_arrow, settings, file.label)
            for batch in table.iter_batches(batch_size=_rows_at_a_time(table.metadata, wanted), columns=wanted):
                (counted if file.in_zip or file.packing else budget).spend(batch.nbytes, file.label)
                texts = _strings(batch, settings.text_column, file.label)
                titles = _strings(batch, settings.title_column, file.label) if settings.title_column else [None] * len(texts)
                yield from zip(titles, texts, strict=True)
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{file.label}: not readable as Parquet ({error}); get or write it again") from error


def _rows_at_a_time(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(metadata.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return max(1, min(_ROWS, _BATCH * int(metadata.num_rows) // max(int(size), 1)))


def _check_columns(schema: pa.Schema, settings: CorpusSettings, label: str) -> None:
    for column, setting in ((settings.text_column, "corpus.text_column"), (settings.title_column, "corpus.title_column")):
        if not column:
            continue
        kind = schema.field(column).type if schema.names.count(column) == 1 else None
        if kind is not None and pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind not in (pa.string(), pa.large_string(), pa.string_view()):
            there = some((f"{field.name} ({field.type})" if field.name == column else field.name for field in schema), _SHOWN) or "none"
            raise CorpusError(f"{label}: its columns are {there}; wanted a column `{column}` of strings, or its name in {setting}")


def _strings(batch: pa.RecordBatch, column: str, label: str) -> list[str | None]:
    try:
        values: list[str | None] = batch.column(column).to_pylist()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{label}: column `{column}` holds what is not UTF-8 ({error.reason}); write it again as UTF-8") from None
    return values


def wikitext_lines(rows: Iterable[Row], counts: Counts) -> Iterator[bytes]:
    """Rows as lines of WikiText's form: ` line `, a blank one ` `; rows may have lost their spaces and line ends."""

    def lines() -> Iterator[str]:
        for _, text in rows:
            counts.rows += 1
            for line in (text or "").strip(" \r\n").split("\n"):
                stripped = line.strip(" \r")
                yield f" {stripped} \n" if stripped else " \n"

    return _blocks(lines())


def begins_with_title(rows: Iterator[Row]) -> bool | None:
    """Whether the first row that is not blank is an article's title in WikiText's form; None where all are blank."""
    for _, text in rows:
        if text and (stripped := text.strip()):
            return is_title(stripped.partition("\n")[0].encode())
    return None
