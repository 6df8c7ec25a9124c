"""Documents in buckets: each in that of its digest, in one order, from however many files."""

import hashlib
from pathlib import Path

import pytest

from pipeline.data.buckets import read_buckets, sort_documents
from pipeline.data.documents import DocumentReader

PARAGRAPHS = [f"sentence {number} \u2013 ö . another {number * number}" for number in range(50)] + ["twice . the same"] * 2


@pytest.mark.parametrize("size", [1 << 20, 200])
def test_buckets_hold_every_document_by_its_digest(size: int, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("\n \n".join(PARAGRAPHS), "utf-8")
    parts = DocumentReader(str(path), "paragraph").parts(size)
    files = [tmp_path / f"{number}" for number in range(len(parts))]
    indexes = [sort_documents(part, 100, file) for part, file in zip(parts, files, strict=True)]
    spans = [file.read_bytes()[index.offsets[20] : index.offsets[90]] for file, index in zip(files, indexes, strict=True)]
    buckets = [bucket.to_pylist() for bucket in read_buckets(spans, 70)]
    assert [len(bucket) for bucket in buckets] == [sum(index.documents[number] for index in indexes) for number in range(20, 90)]
    assert {len(bucket) for bucket in buckets} > {0, 1}, "empty ones among them"
    for number, bucket in enumerate(buckets, 20):
        assert bucket == sorted(bucket, key=lambda row: row["digest"])
        for row in bucket:
            assert row["digest"] == hashlib.sha256(row["text"].encode()).digest()[:16]
            assert int.from_bytes(row["digest"][:8], "little") % 100 == number
    wanted = [text for text in PARAGRAPHS if 20 <= int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % 100 < 90]
    assert sorted(row["text"] for bucket in buckets for row in bucket) == sorted(wanted)
    whole = sort_documents(DocumentReader(str(path), "paragraph"), 100, tmp_path / "whole")
    same = (tmp_path / "whole").read_bytes()[whole.offsets[20] : whole.offsets[90]]
    assert [bucket.to_pylist() for bucket in read_buckets([same], 70)] == buckets
