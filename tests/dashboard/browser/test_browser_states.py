"""Objectives that are stale, in maintenance or over their stage budgets, in a real browser: drawn, readable, on phones too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Literal

import pytest
from playwright.sync_api import ViewportSize, expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.store import Store
from tests.dashboard.burning_slos import ENV, NOW
from tests.dashboard.goldens import complaint
from tests.dashboard.tabs import DESKTOP, PHONE, UNDIMMED, OpenTab, Serve, screenshot, serious_violations

pytestmark = pytest.mark.stacks

SLOS = """slos:
  - name: hot-latency
    service: hot
    objective: 0.99
    threshold: 60ms
    window: 30d
    budgets: {queue: 5ms, forward: 40ms, decode: 1ms}
  - {name: calm-latency, service: calm, objective: 0.9, threshold: 1s, window: 7d}
  - {name: failing-up, service: failing, objective: 0.99, window: 30d}
maintenance:
  - {from: 2026-11-20T11:50Z, to: 2026-11-20T13:30Z, why: new disks, services: [failing]}
"""
# Longer than the collector may do nothing.
DEAD = timedelta(minutes=10)
# What is looked at: an address, and how long after the last request. Without objectives there is no file.
VIEWS = {
    "slo-stages": ("/slo/hot-latency?from=now-1h", timedelta(0), SLOS),
    "slo-maintenance": ("/slo/failing-up?from=now-1h", timedelta(0), SLOS),
    "slo-stale": ("/slo/hot-latency?from=now-1h", DEAD, SLOS),
    "overview-stale": ("/?from=now-1h", DEAD, SLOS),
    "overview-maintenance": ("/?from=now-1h", timedelta(0), SLOS),
    "overview-unwatched": ("/?from=now-1h", timedelta(0), ""),
    "slo-unwatched": ("/slo", timedelta(0), ""),
}
# What is on no other picture, and the part of the page that it is: what stands around it has pictures of its own.
GOLDENS = {"slo-stages": ".card:has([aria-label='Stage budgets'])", "overview-stale": "#root"}
LOOKS: Sequence[tuple[ViewportSize, Literal["light", "dark"]]] = (
    *((DESKTOP, "light"), (PHONE, "dark")),
    *((DESKTOP, "dark"), (PHONE, "light")),
)

State = Callable[[timedelta, str], str]


@pytest.fixture(scope="module")
def state(serve: Serve, burning_store: Store, tmp_path_factory: pytest.TempPathFactory) -> State:
    path = tmp_path_factory.mktemp("states") / "slo.yaml"
    path.write_text(SLOS, encoding="utf-8")

    @cache
    def served(later: timedelta, slos: str) -> str:
        alerts = AlertsReader(burning_store, LiveSloFile(path if slos else None, ENV))
        return serve(burning_store, alerts, clock=(NOW + later).timestamp)

    return served


@pytest.mark.parametrize("name", list(VIEWS))
def test_each_state_is_readable_and_fits(open_tab: OpenTab, state: State, name: str) -> None:
    """In both themes and on phones: no complaint, nothing axe minds, nothing wider than the screen, and it looks as it did.

    What has a picture is seen in each theme on each screen, the others in each once. The page is opened once, and follows.
    """
    path, later, slos = VIEWS[name]
    visit = open_tab(state(later, slos), color_scheme="light", reduced_motion="reduce")
    page = visit.go(path)
    complaints: list[str] = []
    for size, theme in LOOKS if name in GOLDENS else LOOKS[:2]:
        page.set_viewport_size(size)
        visit.prefer(theme)
        picture = f"{name}{'-phone' if size is PHONE else ''}-{theme}"
        screenshot(page, picture)
        if name in GOLDENS:
            shown = page.locator(GOLDENS[name]).screenshot(animations="disabled", caret="hide", style=UNDIMMED)
            complaints.append(complaint(shown, picture))
        complaints += serious_violations(page)
        width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        complaints += [f"{picture} is {width} pixels too wide"] if width > 0 else []

    assert [each for each in (*complaints, *visit.trouble) if each] == []


def test_the_budget_is_marked_on_the_bar_and_the_table_has_keyboard_access(open_tab: OpenTab, state: State) -> None:
    visit = open_tab(state(timedelta(0), SLOS), reduced_motion="reduce")
    page = visit.go("/slo/hot-latency?from=now-1h")
    table = page.get_by_role("region", name="Stage budgets")
    ends = {
        row.locator("th").inner_text(): row.evaluate(
            "(row) => [row.querySelector('.dv i').getBoundingClientRect().right, row.querySelector('.lim').getBoundingClientRect().left]"
        )
        for row in table.locator("tbody tr").all()
    }
    table.focus()
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    first = page.get_by_role("group", name="Version of the stage budgets").get_by_role("link", name="1", exact=True)
    first.focus()
    page.keyboard.press("Enter")
    expect(first).to_have_attribute("aria-current", "true")
    expect(page.locator(".card", has=table).locator(".foot")).to_contain_text("Every stage stayed within its budget")
    address = page.url

    assert ends["Queue"][0] > ends["Queue"][1]
    assert ends["Forward"][0] < ends["Forward"][1]
    assert focused == "Stage budgets"
    assert address.endswith("/slo/hot-latency?v=1&from=now-1h")
    assert visit.trouble == []
