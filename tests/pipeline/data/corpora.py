"""Small corpora in every form, and what an attempt left in a store."""

import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.corpus import Corpus, fetch_corpus
from pipeline.errors import CorpusError
from pipeline.storage import Store

TRAIN = " = Title = \n \n the crane flies . it is \u00fcber . \n \n he left . \n"
VALID = " a b . c d . \n"
TEST = " e f . g h . \n"


def write_zip(path: Path, members: dict[str, bytes | str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def write_folder(path: Path, files: dict[str, bytes | str]) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def left_over(store: Store) -> list[Path]:
    return [path for path in Path(store.root).rglob("*") if path.is_file()]


def text_of(corpus: Corpus, split: str) -> bytes:
    return Path(corpus.output.file(f"{split}.tokens")).read_bytes()


def fails(store: Store, address: object, message: str, **options: Any) -> str:
    """The error's message; nothing may be left of the attempt."""
    with pytest.raises(CorpusError, match=message) as caught:
        fetch_corpus(store, str(address), **options)
    assert left_over(store) == []
    return str(caught.value)


def write_parquet(path: Path, rows: list[str | None], column: str = "text") -> None:
    pq.write_table(pa.table({column: pa.array(rows, pa.string())}), path)
