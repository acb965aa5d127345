"""Fixtures for imports: a store."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from stagelens.store import Store
from tests.collector.imports.taking import Taking


@pytest.fixture
def taking(tmp_path: Path) -> Generator[Taking]:
    store = Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    yield Taking(store)
    store.close()
