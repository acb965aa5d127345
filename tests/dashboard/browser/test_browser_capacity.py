"""Capacity, cost and advice in a real browser: what is drawn, what opens, and what a click on advice leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from tests.dashboard import capacity_store
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import PHONE, OpenTab, Serve, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def address(serve: Serve, traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("capacity")
    (folder / "slo.yaml").write_text(capacity_store.SLO, encoding="utf-8")
    (folder / "prices.yaml").write_text(capacity_store.PRICES, encoding="utf-8")
    store = capacity_store.fill(traffic, folder / "loaded.db", NOW)
    alerts = AlertsReader(store, LiveSloFile(folder / "slo.yaml", {}))
    yield serve(store, alerts, prices=folder / "prices.yaml")
    store.close()


@pytest.mark.parametrize(("name", "size"), [("dark", PHONE)])
def test_capacity_and_advice_in_both_themes(open_tab: OpenTab, address: str, name: str, size: dict[str, int]) -> None:
    tab = open_tab(address, viewport=size, color_scheme=name, reduced_motion="reduce")
    page = tab.go("/s/ocr-api/capacity")
    screenshot(page, f"capacity-{name}-{size['width']}")

    expect(page.locator("[data-chart=load] .main-svg").first).to_be_visible()
    expect(page.locator("[data-chart=batch] .main-svg").first).to_be_visible()
    expect(page.locator(".verdict .big")).to_contain_text("within 250")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious_violations(page) == []

    page = tab.go("/s/ocr-api/advice")
    page.locator(".opt summary").first.click()
    screenshot(page, f"advice-{name}-{size['width']}")

    expect(page.locator(".opt[open] .matrix").first).to_contain_text("Accuracy")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious_violations(page) == []
    assert tab.trouble == []


def test_dismissed_advice_disappears_and_can_be_restored(open_tab: OpenTab, address: str) -> None:
    tab = open_tab(address, color_scheme="light", reduced_motion="reduce")
    page = tab.go("/s/ocr-api/advice")
    cards = page.locator("[data-advice]")
    before = cards.count()
    page.locator("[data-advice='batching:queue'] button", has_text="Dismiss").click()

    expect(cards).to_have_count(before - 1)
    page.get_by_role("link", name="Show", exact=True).click()
    expect(cards).to_have_count(before)
    page.locator("[data-advice='batching:queue'] button", has_text="Show again").click()
    expect(page.locator("[data-advice='batching:queue'] button", has_text="Dismiss")).to_be_visible()
    assert tab.trouble == []
