"""Which stores are taken, with a warning, or not at all."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from flows import places
from pipeline import stores
from pipeline.errors import SettingsError
from pipeline.storage import Store
from pipeline.training.run import FILE, RunSettings, read_run
from tests.conftest import Built


@pytest.mark.parametrize(
    "root", ["https://host/bert", "hf://datasets/me/bert", "ftp://host/bert", "simplecache::s3://bucket/bert", "bert://x"]
)
def test_a_store_that_may_not_create_only_if_absent_is_one_clear_line(root: str) -> None:
    protocol = root.partition(":")[0]
    with pytest.raises(
        SettingsError, match=rf"^BERT_STORE: got .*protocol {protocol} is not known to .*; wanted a folder, s3:// or sftp://"
    ):
        Store(root)


@pytest.mark.parametrize("protocol", ["gs", "gcs", "az", "abfs", "abfss"])
def test_an_untried_store_is_taken_with_one_warning(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    stores._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            stores.check("BERT_STORE", f"{protocol}://bucket/bert")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"stores at {protocol}"]


@pytest.mark.parametrize("root", ["s3://key:HIDDEN@bucket/bert", "sftp://me:HIDDEN@host/bert", "s3://bucket/bert?X-Amz-Signature=HIDDEN"])
def test_a_store_with_credentials_in_its_address_is_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_STORE", root)
    for refused in (places.store, lambda: Store(root)):
        with pytest.raises(SettingsError, match=r"^BERT_STORE: got .* give credentials by the store's own means") as raised:
            refused()
        assert "HIDDEN" not in str(raised.value)


def test_a_store_in_memory_is_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_STORE", "memory://bert")
    with pytest.raises(SettingsError, match=r"BERT_STORE: got memory://bert, which no other process sees.*; wanted a folder"):
        places.store()


@pytest.mark.parametrize("field", ["store", "vocabulary", "encoder", "train", "valid_long"])
def test_a_run_with_credentials_in_an_address_is_refused(small_built: Built, tmp_path: Path, field: str) -> None:
    run: RunSettings = small_built.write_run(tmp_path / "work")
    path = Path(run.work) / FILE
    assert read_run(path) == run
    address = "s3://key:HIDDEN@bucket/a"
    path.write_text(replace(run, **{field: [address] if isinstance(getattr(run, field), list) else address}).text())
    with pytest.raises(SettingsError, match=rf"{path}.*: got s3://bucket/a with a user") as raised:
        read_run(path)
    assert "HIDDEN" not in str(raised.value)


def test_a_run_in_memory_is_refused(small_built: Built, tmp_path: Path) -> None:
    run = small_built.write_run(tmp_path / "work")
    path = Path(run.work) / FILE
    path.write_text(json.dumps(json.loads(run.text()) | {"store": "memory://bert"}))
    with pytest.raises(SettingsError, match="which no other process sees"):
        read_run(path)
