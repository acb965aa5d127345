"""Test modules are not a package: without it they could not import what they share."""

from __future__ import annotations

import pytest

from stagelens.collector.scrape import scraper


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that answers late on a busy machine is not down."""
    monkeypatch.setattr(scraper, "TIMEOUT_SECONDS", 60.0)
