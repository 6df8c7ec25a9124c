"""A store for each test."""

from pathlib import Path

import pytest

from pipeline.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store of the test's own."""
    return Store(str(tmp_path / "store"))
