"""Fixtures for scraping; without this file the test modules could not import shared modules."""

from __future__ import annotations

import pytest

from stagelens.collector.scrape import fetch


@pytest.fixture(autouse=True)
def _long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 60.0)
