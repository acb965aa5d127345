"""Stores to write to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

# Test modules are not a package: without it they could not import what they share.
sys.path.insert(0, str(Path(__file__).parent))

from raw_requests import Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., Site]]:
    """Opens a new, empty store with the given options; more than one in a test if need be. They are closed at the end."""
    opened: list[Site] = []

    def make(**options: Any) -> Site:
        opened.append(Site(f"sqlite:///{tmp_path_factory.mktemp('site')}/stagelens.db", options))
        return opened[-1]

    yield make
    for one in opened:
        one.store.close()
