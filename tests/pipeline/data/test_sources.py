"""What is wrong with a corpus is named, and nothing of it is published."""

import zipfile
from pathlib import Path

import pytest

from pipeline.data.corpus import fetch_corpus
from pipeline.errors import CorpusError
from pipeline.storage import Store
from tests.pipeline.data.corpora import TEST, TRAIN, VALID, fails, left_over, text_of, write_folder, write_parquet, write_zip


def test_what_is_not_there_is_named(store, tmp_path):
    fails(store, tmp_path / "nowhere", r"nowhere: nothing there; wanted a file \.txt, .* a folder, a glob or a \.zip")
    fails(store, tmp_path / "nowhere.zip", r"nowhere\.zip: nothing there")
    fails(
        store,
        write_folder(tmp_path / "other", {"book.md": "a", "valid.txt": VALID}),
        r"no train split there, only book.md, valid.txt; wanted",
    )
    fails(store, write_folder(tmp_path / "bare", {}), "only nothing")
    fails(store, "nosuchscheme://x/y", "nosuchscheme")


@pytest.mark.parametrize("text", ["", "\n \n\t\r\n", "\ufeff"])
def test_text_without_text(store, tmp_path, text):
    fails(store, write_folder(tmp_path / "mine", {"train.txt": text, "valid.txt": VALID}), r"mine/train.txt: no text")
    fails(store, write_folder(tmp_path / "yours", {"train.txt": TRAIN, "valid.txt": text}), r"yours/valid.txt: no text")


NOT_UTF8 = {
    "lone": (b"ab\xffc", 2),
    "far": (b"x\n" * (1 << 20) + b"\xc3(", 1 << 21),
    "cut": (b"ab\xe2\x82", 2),
    "utf-16": ("a".encode("utf-16"), 0),
}


@pytest.mark.parametrize(("data", "offset"), NOT_UTF8.values(), ids=NOT_UTF8)
def test_bytes_that_are_not_utf8(store, tmp_path, data, offset):
    fails(store, write_folder(tmp_path / "mine", {"train.txt": data}), rf"mine/train.txt: byte {offset} \(0x[0-9a-f]+\) is not UTF-8")


def test_two_files_for_one_split(store, tmp_path):
    twice = write_zip(tmp_path / "twice.zip", {"a/train.txt": TRAIN, "b/train.txt": TRAIN})
    fails(store, twice, r"twice.zip: train.txt stands there 2 times \(a/train.txt, b/train.txt\)")
    both = write_folder(tmp_path / "both", {"train.txt": TRAIN, "wiki.train.tokens": TRAIN})
    fails(store, both, r"train is there in more than one form \(train.txt, wiki.train.tokens\)")


def test_names_in_a_zip_are_never_paths(store, tmp_path):
    names = ["../../train.txt", "/tmp/valid.txt", "..\\..\\test.txt"]
    corpus = fetch_corpus(store, str(write_zip(tmp_path / "slip.zip", dict(zip(names, (TRAIN, VALID, TEST), strict=True)))))
    assert text_of(corpus, "train").decode() == TRAIN
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "slip.zip", *left_over(store)}
    assert {path.parent for path in left_over(store)} == {Path(corpus.output.address)}


def test_no_byte_of_a_zip_can_flip_unseen(store, tmp_path):
    texts = {"in/train.txt": TRAIN * 30, "in/valid.txt": VALID}
    good = write_zip(tmp_path / "good.zip", texts)
    key = fetch_corpus(Store(str(tmp_path / "good")), str(good)).output.key
    data, flipped, errors = good.read_bytes(), tmp_path / "flipped.zip", 0
    for position in range(len(data)):
        flipped.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            corpus = fetch_corpus(store, str(flipped))
        except CorpusError as error:
            errors += 1
            assert "flipped.zip" in str(error)
        else:  # a date, say; or a name, which hides a file: that is another corpus, and its note says so
            assert corpus.output.key == key or "held out" in corpus.note
    assert errors > len(data) / 4


def test_a_damaged_member_is_named(store, tmp_path):
    path = write_zip(tmp_path / "mine.zip", {"in/train.txt": TRAIN * 100})
    with zipfile.ZipFile(path) as archive:
        start = archive.infolist()[0].header_offset + 30 + len("in/train.txt")
    data = bytearray(path.read_bytes())
    data[start + 20] ^= 0xFF
    path.write_bytes(data)
    fails(store, path, r"mine.zip: in/train.txt: damaged")


def test_what_is_not_a_zip(store, tmp_path):
    (tmp_path / "book.zip").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "book.md").write_text(TRAIN)
    fails(store, tmp_path / "book.zip", r"book.zip: not a readable zip .* wanted a file \.txt")
    fails(store, tmp_path / "book.md", r"book.md: not a readable zip .* wanted a file \.txt")


def test_an_encrypted_member(store, tmp_path):
    path = write_zip(tmp_path / "mine.zip", {"train.txt": TRAIN})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag in the archive's directory
    path.write_bytes(data)
    fails(store, path, r"mine.zip: train.txt is encrypted")


def test_a_bomb_by_its_word_and_in_fact(store, tmp_path):
    path = write_zip(tmp_path / "mine.zip", {"train.txt": b"a b . c d .\n" * 100_000, "valid.txt": b"a . b\n" * 100_000})
    fails(store, path, r"mine.zip: train.txt: unpacks to more than 1000000 bytes", max_bytes=1_000_000)
    fails(store, path, r"mine.zip: valid.txt: unpacks to more than 1500000 bytes", max_bytes=1_500_000)
    (tmp_path / "mine").mkdir()
    write_parquet(tmp_path / "mine" / "train-0.parquet", ["a b . c d ."] * 100_000)
    fails(store, tmp_path / "mine", r"train-0.parquet: unpacks to more than 1000000 bytes", max_bytes=1_000_000)


def test_parquet_without_texts(store, tmp_path):
    folder = write_folder(tmp_path / "mine", {"train-0.parquet": b"PAR1 not really"})
    fails(store, folder, r"mine/train-0.parquet: not readable as Parquet")
    write_parquet(folder / "train-0.parquet", ["a"], column="words")
    fails(store, folder, r"its columns are words; wanted a column `text`")
