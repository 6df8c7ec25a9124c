"""Documents are the same however the text is cut into blocks, and by the same rule as Python's."""

import hashlib
import sys
from pathlib import Path

import pytest

from pipeline.data import documents


def test_white_space_is_cut_off_as_python_does() -> None:
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF and chr(c) != "\n"]
    lines = [f"{c} x . y {c}" for c in points] + ["no document", "", " . ", "ends . "]
    found = documents.find_documents("\n".join(lines).encode()).to_pylist()
    assert found == [line.strip() for line in lines if " . " in line]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_blocks_of_any_size_hold_the_same_documents(block: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"sentence {number} \u2013 ö . another {number * number}" for number in range(50)]
    path = tmp_path / "text"
    path.write_bytes(("\n \n".join(lines) + end).encode())
    monkeypatch.setattr(documents, "_BLOCK", block)
    found = [text for data in documents.read_blocks(str(path)) for text in documents.find_documents(data).to_pylist()]
    assert found == lines
    spilled = documents.spill_buckets(str(path), 5, tmp_path)
    buckets = [documents.read_bucket(bucket).to_pylist() for bucket in spilled]
    assert list(spilled.values()) == [len(bucket) for bucket in buckets]
    for number, bucket in enumerate(buckets):
        assert bucket == sorted(bucket, key=lambda row: row["digest"])
        for row in bucket:
            assert row["digest"] == hashlib.sha256(row["text"].encode()).digest()[:16]
            assert int.from_bytes(row["digest"][:8], "little") % 5 == number
    assert sorted(row["text"] for bucket in buckets for row in bucket) == sorted(lines)
