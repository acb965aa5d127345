"""The pages as a person meets them, in Chromium: drawn, readable, quiet on the network, usable without a mouse.

Screenshots are left in `artifacts/dashboard/` to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from stagelens.collector.store import Selection, Store
from stagelens.dashboard.serve import Dashboard, DashboardConfig

ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"
NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
PAGES = {
    "overview": "/",
    "service": "/s/vision-api",
    "compare": "/compare?svc=vision-api",
    "slo": "/slo",
    "traces": "/traces",
    "trace": "/traces/<slow>",
    "empty-window": "/s/vision-api?from=1000000000000&to=1000003600000",
    "not-found": "/traces/0123456789abcdef",
}


class Visit:
    """One tab, and everything it complained about or asked others for."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.trouble: list[str] = []
        self.callbacks: list[str] = []
        page.on("console", lambda said: self.trouble.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.trouble.append(f"asked another host: {url}")
        if "/_dash-update-component" in url:
            self.callbacks.append(url)

    def go(self, address: str) -> Page:
        """Open an address cold and wait until its charts stand."""
        self.page.goto(self.base + address)
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait for the page and for every chart in view."""
        self.page.wait_for_selector("#root [data-title]")
        self.page.wait_for_function(
            """() => !document.querySelector('#root[data-dash-is-loading=true]') && [...document.querySelectorAll('[data-chart]')].every(
                 (slot) => slot.dataset.drawn || slot.getBoundingClientRect().top > innerHeight + 400)"""
        )


@pytest.fixture(scope="module")
def slow_trace(filled: Store) -> str:
    """The id of a kept request that its slow preprocess dominates."""
    frame = filled.read.exemplars(
        Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1, dominant="preprocess"
    )
    return str(frame["trace_id"].iloc[0])


@pytest.fixture
def visit(browser: Browser, base: str) -> Iterator[Visit]:
    """A light desktop tab that must have been quiet when it is closed."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    opened = Visit(context.new_page(), base)
    yield opened
    context.close()
    assert opened.trouble == []


def looked_at(page: Page, name: str) -> None:
    """Leave a picture of the whole page."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), 3000)
    size = page.viewport_size or DESKTOP
    page.set_viewport_size({"width": size["width"], "height": max(height, size["height"])})
    page.wait_for_function("[...document.querySelectorAll('[data-chart]')].every((slot) => slot.dataset.drawn)")
    page.screenshot(path=ARTIFACTS / f"{name}.png")
    page.set_viewport_size(size)


def grave(page: Page) -> list[str]:
    """Return what axe calls serious or critical."""
    found: Any = Axe().run(
        page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    )
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", list(PAGES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_quiet_readable_and_fits_phones(
    browser: Browser, base: str, slow_trace: str, name: str, theme: Any
) -> None:
    """No error, no other host, no broken policy, nothing axe minds, no sideways scrolling on a phone."""
    context = browser.new_context(viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce")
    visit = Visit(context.new_page(), base)
    page = visit.go(PAGES[name].replace("<slow>", slow_trace))
    looked_at(page, f"{name}-{theme}")
    complaints = grave(page)
    page.set_viewport_size(PHONE)
    visit.settled()
    if theme == "light":
        looked_at(page, f"{name}-phone")
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    context.close()

    assert visit.trouble == []
    assert complaints == []
    assert width[0] <= width[1]


def test_the_stage_table_names_what_the_tail_adds(visit: Visit) -> None:
    """The guilty stage stands first, with its time at p50 and p99."""
    page = visit.go("/s/vision-api")
    first = page.locator("[data-inspector] tbody tr").first

    assert first.locator("th").inner_text() == "Preprocess"
    assert re.fullmatch(r"[\d.]+\u202fms", first.locator("[data-now]").inner_text())
    expect(page.locator(".card", has_text="What the tail adds").locator(".foot")).to_contain_text("Preprocess explains")


def test_hovering_the_chart_rewrites_the_table(visit: Visit) -> None:
    """Left is the median, right the tail; away from the chart the pinned percentile is back."""
    page = visit.go("/s/vision-api")
    head, total = page.locator("th [data-percentile]"), page.locator("[data-total]")
    before = total.inner_text()
    plot = page.locator("[data-chart=percentile] .nsewdrag").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] * 0.45, plot["y"] + plot["height"] / 2)
    page.mouse.move(plot["x"] + plot["width"] * 0.5, plot["y"] + plot["height"] / 2)
    expect(head).not_to_have_text("p99")
    hovered = total.inner_text()
    page.mouse.move(5, 5)

    expect(head).to_have_text("p99")
    expect(total).to_have_text(before)
    assert hovered != before


def test_a_click_pins_the_percentile_into_the_address(visit: Visit) -> None:
    """And the address opens it cold."""
    page = visit.go("/s/vision-api")
    plot = page.locator("[data-chart=percentile] .nsewdrag").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] * 0.3, plot["y"] + 60)
    page.mouse.move(plot["x"] + plot["width"] * 0.31, plot["y"] + 60)
    # A click belongs to the point under the pointer, which Plotly finds a moment after the move.
    expect(page.locator("th [data-percentile]")).not_to_have_text("p99")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(r"[?&]p=\d"))
    page.mouse.move(5, 5)
    pinned = "p" + page.url.partition("p=")[2]
    expect(page.locator("th [data-percentile]")).to_have_text(pinned)
    visit.go(page.url.removeprefix(visit.base))

    assert page.locator("th [data-percentile]").inner_text() == pinned != "p99"


def test_the_theme_switches_without_the_server(visit: Visit) -> None:
    """Charts are redrawn in the browser from the same figures, and the choice is kept."""
    page = visit.go("/s/vision-api")
    ink = page.evaluate("getComputedStyle(document.body).backgroundColor")
    asked = len(visit.callbacks)
    page.get_by_role("button", name="Switch").click()
    page.wait_for_selector("[data-chart=percentile][data-drawn=dark]")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    switched = len(visit.callbacks)
    visit.go("/")

    assert switched == asked
    assert dark != ink
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_a_control_redraws_one_chart_and_writes_the_address(visit: Visit) -> None:
    """One request; the address then opens the same view cold."""
    page = visit.go("/s/vision-api")
    asked = len(visit.callbacks)
    page.get_by_role("button", name="Share", exact=True).click()
    page.wait_for_url(re.compile("y=share"))
    expect(page.locator("[data-chart=percentile] .ytick").last).to_contain_text("100")
    once = len(visit.callbacks) - asked
    visit.go(page.url.removeprefix(visit.base))

    assert once == 1
    assert page.get_by_role("button", name="Share", exact=True).get_attribute("aria-pressed") == "true"
    expect(page.locator("[data-chart=percentile] .ytick").last).to_contain_text("100")


def test_back_and_forward_walk_through_the_views(visit: Visit) -> None:
    """Overview, service, trace, and back again."""
    page = visit.go("/")
    page.get_by_role("link", name="vision-api", exact=True).first.click()
    page.wait_for_selector("[data-title^='vision-api']")
    visit.settled()
    page.locator("tr[data-href^='/traces/'] a").first.click()
    page.wait_for_selector("[data-title^='Trace']")
    page.go_back()
    page.wait_for_selector("[data-title^='vision-api']")
    page.go_back()
    page.wait_for_selector("[data-title^='Overview']")
    page.go_forward()
    page.wait_for_selector("[data-title^='vision-api']")

    assert page.url == f"{visit.base}/s/vision-api"


def test_a_row_of_exemplars_opens_its_waterfall(visit: Visit, slow_trace: str) -> None:
    """Lanes in time, the rank of each stage, and the median beside it."""
    page = visit.go(f"/traces/{slow_trace[:8]}")
    lane = page.locator("tr[data-stage=preprocess]")

    assert lane.locator("td").last.inner_text().startswith("p9")
    assert lane.locator(".gh").count() == 1
    assert page.locator("table.wf tbody tr").count() >= 8
    expect(page.locator(".verdict")).to_contain_text("Preprocess took")


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    """Pages by g and a letter, the theme by d, a service by name, the help by ?."""
    page = visit.go("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("[data-title^='Traces']")
    page.keyboard.press("d")
    page.wait_for_selector("html[data-theme=dark]")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("fraud")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-title^='fraud-score']")
    page.keyboard.press("j")

    assert page.evaluate("document.activeElement.closest('tr[data-href]') !== null")


def test_the_time_menu_sets_the_window_of_the_page(visit: Visit) -> None:
    """And the window goes along to the next page."""
    page = visit.go("/s/vision-api")
    page.locator(".menu.time summary").click()
    page.get_by_role("button", name="Last 15").click()
    page.wait_for_url(re.compile("from=now-15m"))
    expect(page.locator(".menu.time summary")).to_contain_text("15")
    visit.settled()
    page.get_by_role("link", name="Traces").first.click()
    page.wait_for_url(re.compile(r"/traces\?.*from=now-15m"))
    visit.settled()


def test_dragging_on_a_time_chart_zooms_the_page(visit: Visit) -> None:
    """Back leads to where one was."""
    page = visit.go("/s/vision-api")
    page.locator("[data-chart=over]").scroll_into_view_if_needed()
    visit.settled()
    plot = page.locator("[data-chart=over] .nsewdrag").first.bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + 80, plot["y"] + 60)
    page.mouse.down()
    page.mouse.move(plot["x"] + 300, plot["y"] + 62, steps=6)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    visit.settled()
    page.go_back()
    page.wait_for_url(f"{visit.base}/s/vision-api")
    visit.settled()


def test_new_data_shows_without_a_reload(browser: Browser, tmp_path: Path, traffic: Any) -> None:
    """The first run fills itself: the page waits, the first requests arrive, the service stands there."""
    store = Store.open(f"sqlite:///{tmp_path / 'live.db'}", clock=NOW.timestamp)
    served = Dashboard(DashboardConfig(port=0), store, clock=NOW.timestamp)
    served.start()
    host, port = served.address
    context = browser.new_context(viewport=DESKTOP)
    visit = Visit(context.new_page(), f"http://{host}:{port}")
    page = visit.go("/")
    expect(page.locator(".wait")).to_contain_text("Waiting for the first request")
    complaints = grave(page)
    looked_at(page, "first-run")
    traffic.fill(store, NOW - timedelta(minutes=3), NOW)
    # What the beat does every 15 s.
    page.evaluate("dash_clientside.set_props('tick', {data: {beat: 1, at: Date.now(), search: ''}})")
    expect(page.locator("tbody tr[data-href]").first).to_be_visible()
    page.goto(f"{visit.base}/s/vision-api")
    visit.settled()
    looked_at(page, "young")
    plot = page.locator("[data-chart=percentile] > div").element_handle()
    traffic.fill(store, NOW - timedelta(minutes=6), NOW - timedelta(minutes=3))
    page.evaluate("dash_clientside.set_props('tick', {data: {beat: 2, at: Date.now(), search: ''}})")
    expect(page.locator(".phead .sub")).to_contain_text("6\u202fm")
    kept = page.evaluate("(plot) => plot.isConnected", plot)
    context.close()
    served.stop()
    store.close()

    assert complaints == []
    assert kept, "a refresh must not build its charts anew"
    assert visit.trouble == []


def test_the_beat_is_silent_while_nobody_looks(visit: Visit) -> None:
    """A hidden tab, a pointer on a chart, a frozen window and an answer under way all hold it back."""
    page = visit.go("/s/vision-api")
    beat = "dash_clientside.stagelens.beat(1, {tick}, {seen}) === dash_clientside.no_update"
    free = page.evaluate(beat.format(tick="null", seen="null"))
    due = page.evaluate(beat.format(tick="{beat: 4, at: Date.now()}", seen="{beat: 3}"))
    plot = page.locator("[data-chart=percentile]").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + 40, plot["y"] + 40)
    hovered = page.evaluate(beat.format(tick="null", seen="null"))
    page.mouse.move(2, 2)
    page.evaluate("history.replaceState(null, '', '?refresh=off')")
    frozen = page.evaluate(beat.format(tick="null", seen="null"))

    assert (free, due, hovered, frozen) == (False, True, True, True)
