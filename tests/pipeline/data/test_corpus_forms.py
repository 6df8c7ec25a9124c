"""The same documents in any kind of file, packed in any way and from anywhere, are one corpus."""

import gzip
import io
import json
import lzma
from collections.abc import Callable

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.corpus import fetch_corpus
from pipeline.data.documents import TEXT, WIKITEXT
from pipeline.settings import CorpusSettings
from tests.pipeline.data.corpora import fails, text_of, write_folder, write_zip

DOCUMENTS = [("Crane", "It flies .\nIt is über ."), (None, "He left .\n\n 日本 . "), ("Un  tidy\n", "\r\n one \r\n\r\ntwo\t\r\n")]
CANONICAL = "= Crane =\nIt flies .\nIt is über .\n\nHe left .\n日本 .\n\n= Un tidy =\none\ntwo\n"
VALID = [("V", "v .")]
TITLED = CorpusSettings(title_column="title")


def json_lines(rows: list[tuple[str | None, str | None]]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text, "title": title}) + "\n" for title, text in rows).encode()


def plain(rows: list[tuple[str | None, str]]) -> bytes:
    lines = []
    for title, text in rows:
        heading = [f"= {' '.join(title.split())} ="] if title else []
        lines += ["", *heading, *(line for line in text.split("\n") if line.strip()), " \t", ""]
    return "\n".join(lines).encode()


def parquet(rows: list[tuple[str | None, str | None]], kind: pa.DataType | None = None) -> bytes:
    buffer = io.BytesIO()
    titles, texts = (list(column) for column in zip(*rows, strict=True))
    table = pa.table({"title": pa.array(titles, pa.string()), "text": pa.array(texts, pa.string()).cast(kind or pa.string())})
    pq.write_table(table, buffer, row_group_size=2)
    return buffer.getvalue()


def zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


FORMS: dict[str, Callable[[list], bytes]] = {
    "jsonl": json_lines,
    "ndjson": lambda rows: b"\xef\xbb\xbf" + json_lines(rows).replace(b"\n", b"\r\n\r\n"),
    "json": lambda rows: json_lines(rows).rstrip(b"\n"),
    "parquet": parquet,
    "txt": lambda rows: b"\xef\xbb\xbf" + plain(rows).replace(b"\n", b"\r\n"),
    "text": plain,
}
PACKINGS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zst}


def settings_of(form: str) -> CorpusSettings:
    """Plain text that begins with a title would be taken for WikiText's form."""
    return CorpusSettings(form="text") if form in ("txt", "text") else TITLED


@pytest.mark.parametrize("form", FORMS)
def test_one_corpus_in_every_form_and_packing(store, tmp_path, form):
    files = {"train.jsonl": json_lines(DOCUMENTS), "dev.jsonl": json_lines(VALID)}
    wanted = fetch_corpus(store, str(write_folder(tmp_path / "wanted", files)), TITLED)
    assert (text_of(wanted, "train").decode(), wanted.output.facts["form"]) == (CANONICAL, TEXT)
    assert wanted.output.facts["read"]["train"]["documents"] == 3
    members = {split: FORMS[form](rows) for split, rows in (("train", DOCUMENTS), ("valid", VALID))}
    for packing, pack in PACKINGS.items():
        files = {f"{split}.{form}{packing}": pack(data) for split, data in members.items()}
        folder = write_folder(tmp_path / f"mine{packing}", files)
        zipped = write_zip(tmp_path / f"mine{packing}.zip", {f"in/{name}": data for name, data in files.items()})
        for address in (folder, f"{folder}/*", zipped):
            corpus = fetch_corpus(store, str(address), settings_of(form))
            assert corpus.output.key == wanted.output.key, address
            assert corpus.name == f"mine{packing}".replace(".", "-")


def test_wikitext_stays_as_it_is_in_every_packing(store, tmp_path):
    text = b"\n = Title = \n \n  the crane . it flies . \n\n" * 3
    plain_file = fetch_corpus(store, str(write_folder(tmp_path / "a", {"wiki.train.tokens": text, "wiki.valid.tokens": b" a . b . \n"})))
    assert (text_of(plain_file, "train"), plain_file.output.facts["form"]) == (text, WIKITEXT)
    for packing, pack in PACKINGS.items():
        files = {f"train.raw{packing}": pack(text), f"validation.raw{packing}": pack(b" a . b . ")}
        assert fetch_corpus(store, str(write_folder(tmp_path / f"b{packing}", files))).output.key == plain_file.output.key
    as_text = fetch_corpus(store, str(tmp_path / "a"), CorpusSettings(form="text"))
    assert text_of(as_text, "train").decode() == "\n\n".join(["= Title =\n\nthe crane . it flies ."] * 3) + "\n"
    assert as_text.output.key != plain_file.output.key


def test_one_file_is_train_whatever_it_is_called(store, tmp_path):
    rows = [(None, f"document {number} . of many .") for number in range(100)]
    folder = write_folder(tmp_path / "mine", {"test.jsonl.gz": gzip.compress(json_lines(rows)), "other.jsonl": b"broken"})
    corpus = fetch_corpus(store, str(folder / "test.jsonl.gz"))
    assert (corpus.name, corpus.output.facts["held_out_by"]) == ("test", "document")
    found = sorted(line for split in ("train", "valid") for line in text_of(corpus, split).decode().splitlines() if line)
    assert found == sorted(text for _, text in rows)


def test_files_without_a_splits_name_are_all_train_in_order(store, tmp_path):
    files = {f"part-{number}.txt": f"a{number} .\n\nb{number} ." for number in (2, 0, 1)}
    files |= {"notes.md": "not ours", "valid.bin": "nor this"}
    corpus = fetch_corpus(store, str(write_folder(tmp_path / "mine", files)))
    kept = [line for line in text_of(corpus, "train").decode().splitlines() if line]
    held = [line for line in text_of(corpus, "valid").decode().splitlines() if line]
    assert kept == [line for line in ("a0 .", "b0 .", "a1 .", "b1 .", "a2 .", "b2 .") if line not in held]


def test_the_end_of_a_file_ends_its_document(store, tmp_path):
    files = {"train-0.txt": "one .\ntwo .", "train-1.txt": "three .", "valid.txt": "x ."}
    assert text_of(fetch_corpus(store, str(write_folder(tmp_path / "mine", files))), "train") == b"one .\ntwo .\n\nthree .\n"


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_of_any_strings(store, tmp_path, kind):
    folder = write_folder(tmp_path / "mine", {"train.parquet": parquet(DOCUMENTS, kind), "valid.parquet": parquet(VALID)})
    assert text_of(fetch_corpus(store, str(folder), TITLED), "train").decode() == CANONICAL


def test_a_form_that_is_set_reads_any_name(store, tmp_path):
    write_folder(tmp_path / "mine", {"corpus.data": json_lines(DOCUMENTS * 20)})
    fails(store, tmp_path / "mine" / "corpus.data", r"corpus.data: not a readable zip")
    corpus = fetch_corpus(store, str(tmp_path / "mine" / "corpus.data"), CorpusSettings(form="json_lines", text_column="text"))
    assert corpus.output.facts["read"]["train"]["rows"] == 60


def test_empty_documents_are_dropped_and_counted(store, tmp_path):
    rows = [(None, "a ."), ("title only", " \n\t\n"), (None, None), (None, "b .")]
    folder = write_folder(tmp_path / "mine", {"train.jsonl": json_lines(rows), "valid.jsonl": json_lines(VALID)})
    corpus = fetch_corpus(store, str(folder), TITLED)
    assert text_of(corpus, "train") == b"a .\n\nb .\n"
    counts = corpus.output.facts["read"]["train"]
    assert (counts["rows"], counts["empty_documents"], counts["documents"]) == (4, 2, 2)


def test_settings_count_in_what_is_not_read_again(store):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/once/train.jsonl", b'{"a": "one", "b": "two", "text": "three"}\n')
    memory.pipe_file("/once/valid.jsonl", b'{"a": "x", "b": "y", "text": "z"}\n')
    found = {}
    for _ in range(2):
        for column in ("a", "b", "text"):
            corpus = fetch_corpus(store, "memory://once", CorpusSettings(text_column=column))
            found.setdefault(text_of(corpus, "train"), []).append("not read again" in corpus.note)
    assert found == {b"one\n": [False, True], b"two\n": [False, True], b"three\n": [False, True]}


def test_wikitext_is_read_in_its_own_form_alone(store, tmp_path):
    folder = write_folder(tmp_path / "wikitext-2", {"wiki.train.tokens": " = T = \n \n a . b . \n"})
    fails(store, folder, r"train.tokens: read as documents .* wanted WikiText-2 in WikiText's", settings=CorpusSettings(form="text"))
    fails(store, write_folder(tmp_path / "wikitext-103", {"train.jsonl": json_lines(DOCUMENTS)}), r"wanted WikiText-103 in WikiText's")
    mixed = write_folder(tmp_path / "mixed", {"train.txt": " = T = \n \n a . b . \n", "valid.jsonl": json_lines(VALID)})
    fails(store, mixed, r"valid.jsonl: JSON Lines beside a train split in WikiText's form; leave one, or set corpus.form")
