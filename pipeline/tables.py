"""Rows of a user's own table: TSV, CSV, JSON Lines, Parquet.

In: an address, by whose ending the form is known, and names of columns. Out: batches of these columns as text, few rows in
memory at a time. The decision that matters: every value is handed over as the text that stands there (numbers and booleans
as JSON writes them), so a label 0 is the same label in each form, and a null stays null. TSV has no quotes: a `"` in it is a
character.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from .addresses import refuse_credentials
from .errors import TableError, some
from .files import open_file
from .tokens import is_unicode

_ROWS = 4096  # of a batch
_BLOCK = 1 << 20  # bytes
_SHOWN = 12  # names of columns in a message
_FORMS = ".tsv, .csv, .jsonl, .ndjson or .parquet, the first four also .gz"


def read_table(address: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches of some columns, in the order asked for, as strings, nulls where the table has them.

    :param address: local, or any that fsspec knows.
    :raises TableError: it cannot be read, or lacks a column; names the file, and the row where one is at fault.
    """
    read = _READERS.get(form_of(address))
    if read is None:
        raise TableError(f"{address}: not a known kind of table; wanted a name that ends in {_FORMS}")
    with opened(address, _FORMS) as file:
        yield from read(file, address, list(columns))


def form_of(address: str) -> str:
    """The ending that says what an address holds, without `.gz`."""
    name = address.rstrip("/").rpartition("/")[2].removesuffix(".gz")
    return name.rpartition(".")[2].lower() if "." in name else ""


def is_table(address: str) -> bool:
    """Whether the ending is that of a table."""
    return form_of(address) in _READERS


@contextmanager
def opened(address: str, wanted: str) -> Iterator[BinaryIO]:
    """A user's file, unpacked where it ends in `.gz`.

    :param wanted: what it should have been, for the message where there is none.
    :raises TableError: whatever makes it unreadable. :raises SettingsError: the address holds credentials.
    """
    refuse_credentials("file", address)
    try:
        with open_file(address) as raw:
            if address.endswith(".gz") and form_of(address) != "parquet":
                with gzip.open(raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except FileNotFoundError:
        raise TableError(f"{address}: no such file; wanted {wanted}") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TableError(f"{address}: not readable as gzip ({error}); get or pack it again") from error
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{address}: not readable ({str(error).splitlines()[0] if str(error) else type(error).__name__})") from error


def _csv(delimiter: str) -> Callable[[BinaryIO, str, list[str]], Iterator[pa.RecordBatch]]:
    def read(file: BinaryIO, address: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        quoted = delimiter == ","
        try:
            header = _header(file, delimiter)
        except csv.Error as error:
            wanted = "names of columns, and lines that end in LF or CRLF"
            raise TableError(f"{address}: its first line is not readable ({error}); wanted {wanted}") from error
        if not header:
            raise TableError(f"{address}: empty; wanted a first line with the names of the columns")
        if any(header.count(column) != 1 for column in columns):
            raise TableError(_lacks(address, columns, header))
        parse = pacsv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted)
        parse.ignore_empty_lines = len(header) > 1  # of one column it is an empty value, and those after it keep their numbers
        options = pacsv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
        try:
            reader = pacsv.open_csv(file, pacsv.ReadOptions(block_size=_BLOCK), parse, options)
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):  # a header without a line end
                return
            raise
        yield from (batch for batch in reader if batch.num_rows)

    return read


def _header(file: BinaryIO, delimiter: str) -> list[str]:
    """The names of the columns; the file is at its begin again."""
    line = file.readline().decode("utf-8-sig", "replace").rstrip("\r\n")
    file.seek(0)
    return next(csv.reader([line], delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE), [])


def _json_lines(file: BinaryIO, address: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    rows: list[list[str | None]] = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        rows.append(_json_row(line, f"{address}: line {number}", columns))
        if len(rows) == _ROWS:
            yield _batch(rows, columns)
            rows = []
    if rows:
        yield _batch(rows, columns)


def _json_row(line: bytes, where: str, columns: list[str]) -> list[str | None]:
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TableError(f"{where}: not JSON ({error}); wanted an object on each line") from None
    if not isinstance(values, dict):
        raise TableError(f"{where}: a JSON {type(values).__name__}; wanted an object on each line")
    if any(column not in values for column in columns):
        raise TableError(_lacks(where, columns, list(values)))
    return [_text(values[column], where, column) for column in columns]


def _text(value: Any, where: str, column: str) -> str | None:
    if isinstance(value, str) and not is_unicode(value):
        raise TableError(f"{where}: `{column}` has half a surrogate pair, wanted Unicode text")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TableError(f"{where}: `{column}` is a JSON {type(value).__name__}, wanted a string, a number or null")


def _batch(rows: list[list[str | None]], columns: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string()) for values in zip(*rows, strict=True)], names=columns)


def _parquet(file: BinaryIO, address: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file, buffer_size=_BLOCK) as table:
        schema = table.schema_arrow
        if any(schema.names.count(column) != 1 for column in columns):
            raise TableError(_lacks(address, columns, schema.names))
        for batch in table.iter_batches(batch_size=_ROWS, columns=columns):
            batch.validate(full=True)  # of strings that are not UTF-8
            yield pa.record_batch([_strings(batch.column(column), address, column) for column in columns], names=columns)


def _strings(values: pa.Array, address: str, column: str) -> pa.Array:
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise TableError(f"{address}: column `{column}` is {values.type}, wanted strings, numbers or booleans")
    text = pc.cast(values, pa.string())
    if not pa.types.is_floating(values.type):
        return text
    whole = pc.match_substring_regex(text, r"^-?\d+$")  # of 1.0 Arrow writes 1
    return pc.if_else(whole, pc.binary_join_element_wise(text, "0", "."), text)


def _lacks(where: str, columns: Sequence[str], there: Sequence[str]) -> str:
    missing = next(column for column in columns if list(there).count(column) != 1)
    return f"{where}: its columns are {some(there, _SHOWN) or 'none'}; wanted one column `{missing}`"


_READERS: dict[str, Callable[[BinaryIO, str, list[str]], Iterator[pa.RecordBatch]]] = {
    "csv": _csv(","),
    "tsv": _csv("\t"),
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "parquet": _parquet,
}
