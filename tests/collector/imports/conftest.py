"""A store to import into."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from stagelens.store import Store
from tests.collector.imports.taking import Taking


@pytest.fixture
def taking(tmp_path: Path) -> Generator[Taking]:
    """Imports into a store of this test's own."""
    store = Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    yield Taking(store)
    store.close()
