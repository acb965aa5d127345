"""New data on the page that is being read: what the reader has opened, chosen and focused stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import DESKTOP, Visit

pytestmark = pytest.mark.stacks


def test_a_refresh_preserves_opened_details_and_focus(browser: Browser, tmp_path: Path, traffic: Any) -> None:
    """An open detail, the focus in it, a chart and a row are the same elements after a refresh, with newer numbers."""
    store = Store.open(f"sqlite:///{tmp_path / 'live.db'}", clock=NOW.timestamp)
    traffic.fill(store, NOW - timedelta(minutes=6), NOW)
    served = Dashboard(DashboardConfig(port=0), store, clock=NOW.timestamp)
    served.start()
    visit = Visit(browser.new_page(viewport=DESKTOP), "http://{}:{}".format(*served.address))
    page = visit.go("/s/vision-api/advice")
    option = page.locator("main details summary").first
    option.click()
    before = page.locator("main").text_content() or ""
    elements = page.evaluate_handle("[document.querySelector('main details'), document.activeElement]")
    traffic.fill(store, NOW - timedelta(minutes=20), NOW - timedelta(minutes=6))
    page.evaluate("stagelens.refresh()")
    expect(page.locator("main")).not_to_have_text(before)
    preserved = page.evaluate(
        "([detail, focus]) => [detail.isConnected && detail.open, focus === document.activeElement]", elements
    )
    page.close()
    served.stop()
    store.close()

    assert preserved == [True, True]
    assert visit.trouble == []
