"""Objectives and events in a real browser: what is drawn, and where clicks lead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.store import Store
from tests.dashboard.burning_slos import ENV
from tests.dashboard.tabs import PHONE, SOON, OpenTab, Serve, retry, screenshot, serious_violations

pytestmark = pytest.mark.stacks

# The middle of the highest bar of a chart, in pixels of the page.
HIGHEST = """() => {
  const plot = document.querySelector('[data-chart=spent] .js-plotly-plot');
  const bars = [...plot.querySelectorAll('.barlayer .point path')].map((each) => each.getBoundingClientRect());
  const box = bars.reduce((most, each) => (each.height > most.height ? each : most));
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""

# Every name as long as people make them; then the tables that are wider than their cards.
CUT = """() => {
  for (const each of document.querySelectorAll('.svc .n, .fits .n')) each.textContent = 'recommendation-embedder-'.repeat(3);
  return [...document.querySelectorAll('.tw')].filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel);
}"""


@pytest.fixture(scope="module")
def address(serve: Serve, burning_folder: Path, burning_store: Store) -> str:
    alerts = AlertsReader(burning_store, LiveSloFile(burning_folder / "slo.yaml", ENV))
    return serve(burning_store, alerts)


@pytest.mark.parametrize(("theme", "size"), [("dark", PHONE)])
def test_objectives_and_events_fit_and_are_readable(open_tab: OpenTab, address: str, theme: Any, size: Any) -> None:
    visit = open_tab(address, viewport=size, color_scheme=theme, reduced_motion="reduce")
    complaints: list[str] = []
    pages = {"objectives": "/slo/hot-latency?from=now-1h", "incidents": "/incidents", "happened": "/events?from=now-7d"}
    for name, path in pages.items():
        page = visit.go(path)
        screenshot(page, f"{name}-{theme}")
        complaints += [*serious_violations(page), *page.evaluate(CUT)]
        width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]

    assert (visit.trouble, complaints) == ([], [])


def test_clicks_lead_from_the_budget_to_the_cause(open_tab: OpenTab, address: str) -> None:
    visit = open_tab(address, reduced_motion="reduce")
    page = visit.go("/slo/hot-latency?from=now-1h")
    day = page.get_by_role("group", name="Shown part of the budget").get_by_text("1\u202fd")
    day.click()
    expect(day).to_have_attribute("aria-current", "true")
    assert page.url.endswith("w=1d&from=now-1h")
    visit.settled()
    page.evaluate("document.querySelector('[data-chart=spent]').scrollIntoView({block: 'center'})")
    page.wait_for_selector("[data-chart=spent][data-drawn] .barlayer .point path", state="attached")

    def press() -> None:
        # Where the answer was only late there is no bar any more.
        if not page.url.partition("?")[0].endswith("/traces"):
            page.mouse.click(*page.evaluate(HIGHEST))
        expect(page).to_have_url(re.compile(r"/traces\?svc=hot&dom=queue&from="), timeout=SOON)

    retry(press)
    page.go_back()
    page.get_by_role("region", name="Alert history").get_by_role("link", name="hot: latency SLO").click()
    expect(page).to_have_url(re.compile(r"/incidents/sl-"))
    page.get_by_role("link", name="Show the requests").click()
    expect(page).to_have_url(re.compile(r"/s/hot/traces\?min=30ms&from="))

    assert visit.trouble == []
