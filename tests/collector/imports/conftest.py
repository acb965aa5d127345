"""Fixtures for imports: a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagelens.store import Store
from tests.collector.imports.taking import Taking


@pytest.fixture
def taking(open_store: Callable[..., Store]) -> Taking:
    return Taking(open_store())
