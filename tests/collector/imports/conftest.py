"""A store to import into."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from taking import Taking

from stagelens.collector.store import Store


@pytest.fixture
def taking(tmp_path: Path) -> Generator[Taking]:
    """Imports into a store of this test's own."""
    store = Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    yield Taking(store)
    store.close()
