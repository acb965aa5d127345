"""Test modules are not a package: without it they could not import what they share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagelens.collector.scrape import fetch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that answers late on a busy machine is not down."""
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 60.0)
