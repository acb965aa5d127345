"""The pages as a person meets them, in Chromium: drawn, readable, quiet on the network, usable without a mouse.

Screenshots are left in `artifacts/dashboard/` to be looked at.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect

from stagelens.store import Selection, Store
from tests.dashboard.goldens import complaint
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import PHONE, SOON, OpenTab, Serve, Visit, hover, screenshot, serious_violations

pytestmark = pytest.mark.stacks

PAGES = {
    "overview": "/",
    "service": "/s/vision-api",
    "compare": "/compare?svc=vision-api",
    "regressions": "/regressions",
    "slo": "/slo",
    "traces": "/traces",
    "trace": "/traces/<slow>",
    "tokens": "/s/chat-llm/tokens",
    "capacity": "/s/vision-api/capacity",
    "service-advice": "/s/vision-api/advice",
    "advice": "/advice",
    "events": "/events",
    "settings": "/settings",
    "engines": "/engines",
    "empty-window": "/s/vision-api?from=1000000000000&to=1000003600000",
    "not-found": "/traces/0123456789abcdef",
}
# Their last columns say what burns: they must not be cut on a small laptop.
WITH_WIDE_TABLES = {"overview", "service", "slo"}
LAPTOP: ViewportSize = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def slow_trace(filled: Store) -> str:
    frame = filled.read.exemplars(
        Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1, dominant="preprocess"
    )
    return str(frame["trace_id"].iloc[0])


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_has_no_errors_and_fits_phones(open_tab: OpenTab, base: str, slow_trace: str, name: str) -> None:
    visit = open_tab(base, color_scheme="light", reduced_motion="reduce")
    page = visit.go(PAGES[name].replace("<slow>", slow_trace))
    looks, complaints, widths = (
        [complaint(screenshot(page, f"{name}-light"), f"{name}-light")],
        serious_violations(page),
        [],
    )
    visit.prefer("dark")
    looks.append(complaint(screenshot(page, f"{name}-dark"), f"{name}-dark"))
    complaints += serious_violations(page)
    cut = []
    if name in WITH_WIDE_TABLES:
        page.set_viewport_size(LAPTOP)
        visit.settled()
        cut = page.locator(".tw").evaluate_all(
            "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText)"
        )
    page.set_viewport_size(PHONE)
    for theme in ("dark", "light"):
        visit.prefer(theme)
        looks.append(complaint(screenshot(page, f"{name}-phone-{theme}"), f"{name}-phone-{theme}"))
        widths.append(page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    assert visit.trouble == []
    assert complaints == []
    assert max(widths) <= 0
    assert cut == []
    assert looks == [""] * 4


def test_hovering_the_chart_rewrites_the_table(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    head, total = page.locator("th [data-percentile]"), page.locator("[data-total]")
    before = total.inner_text()

    def seen() -> None:
        expect(head).not_to_have_text("p99", timeout=SOON)
        expect(total).not_to_have_text(before, timeout=SOON)

    hover(page, "percentile", 0.5, seen)
    page.mouse.move(5, 5)

    expect(head).to_have_text("p99")
    expect(total).to_have_text(before)


def test_a_click_pins_the_percentile_into_the_address(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    head = page.locator("th [data-percentile]")

    def press() -> None:
        # A click belongs to the point under the pointer, which Plotly finds a moment after the move.
        expect(head).not_to_have_text("p99", timeout=SOON)
        page.mouse.down()
        page.mouse.up()
        page.wait_for_url(re.compile(r"[?&]p=\d"), timeout=SOON)

    hover(page, "percentile", 0.31, press)
    page.mouse.move(5, 5)
    pinned = "p" + page.url.partition("p=")[2]
    expect(head).to_have_text(pinned)
    visit.go(page.url.removeprefix(visit.base))

    assert head.inner_text() == pinned != "p99"


def test_the_theme_switches_without_the_server(visit: Visit) -> None:
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
    page = visit.go("/")
    page.get_by_role("link", name="vision-api", exact=True).first.click()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='vision-api']")
    visit.settled()
    page.locator("tr[data-href^='/traces/'] a").first.click()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Trace']")
    page.go_back()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='vision-api']")
    page.go_back()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Overview']")
    page.go_forward()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='vision-api']")

    assert page.url == f"{visit.base}/s/vision-api"


def test_a_row_of_exemplars_opens_its_waterfall(visit: Visit, slow_trace: str) -> None:
    page = visit.go(f"/traces/{slow_trace[:8]}")
    lane = page.locator("tr[data-stage=preprocess]")

    assert lane.locator("td").last.inner_text().startswith("p9")
    assert lane.locator(".gh").count() == 1
    assert page.locator("table.wf tbody tr").count() >= 8
    expect(page.locator(".verdict")).to_contain_text("Preprocess took")


def test_the_keyboard_reaches_pages_services_theme_and_help(visit: Visit) -> None:
    page = visit.go("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Traces']")
    page.keyboard.press("d")
    page.wait_for_selector("html[data-theme=dark]")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("fraud")
    page.keyboard.press("Enter")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='fraud-score']")
    page.keyboard.press("j")

    assert page.evaluate("document.activeElement.closest('tr[data-href]') !== null")


def test_the_time_menu_sets_the_window_of_the_page(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    page.locator(".menu.time summary").click()
    page.get_by_role("button", name="Last 15").click()
    page.wait_for_url(re.compile("from=now-15m"))
    expect(page.locator(".menu.time summary")).to_contain_text("15")
    visit.settled()
    page.get_by_role("link", name="Traces").first.click()
    page.wait_for_url(re.compile(r"/traces\?.*from=now-15m"))
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Traces']")
    visit.settled()


def test_dragging_on_a_time_chart_zooms_the_page(visit: Visit) -> None:
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


def test_new_data_shows_without_a_reload(open_tab: OpenTab, serve: Serve, store: Store, traffic: Any) -> None:
    visit = open_tab(serve(store))
    page = visit.go("/")
    expect(page.locator(".wait")).to_contain_text("Waiting for the first request")
    complaints = serious_violations(page)
    screenshot(page, "first-run")
    traffic.fill(store, NOW - timedelta(minutes=3), NOW)
    # As every 15 s.
    page.evaluate("stagelens.refresh()")
    expect(page.locator("tbody tr[data-href]").first).to_be_visible()
    page.goto(f"{visit.base}/s/vision-api")
    visit.settled()
    screenshot(page, "young")
    plot = page.locator("[data-chart=percentile] > div").element_handle()
    traffic.fill(store, NOW - timedelta(minutes=6), NOW - timedelta(minutes=3))
    page.evaluate("stagelens.refresh()")
    expect(page.locator(".phead .sub")).to_contain_text("6\u202fm")
    connected = page.evaluate("(plot) => plot.isConnected", plot)

    assert complaints == []
    assert connected, "a refresh must not build its charts anew"
    assert visit.trouble == []


def test_the_refresh_pauses_while_the_page_is_not_in_use(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    refresh = "stagelens.dueRefresh(1, {last}, {seen}) === null"
    # Independent of earlier intervals: after new data, every interval has a refresh.
    free = page.evaluate(refresh.format(last="null", seen="{interval: 'another', revision: 'another'}"))
    due = page.evaluate(refresh.format(last="{interval: 4, at: Date.now()}", seen="{interval: 3}"))
    plot = page.locator("[data-chart=percentile]").bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + 40, plot["y"] + 40)
    hovered = page.evaluate(refresh.format(last="null", seen="null"))
    page.mouse.move(2, 2)
    page.evaluate("history.replaceState(null, '', '?refresh=off')")
    frozen = page.evaluate(refresh.format(last="null", seen="null"))

    assert (free, due, hovered, frozen) == (False, True, True, True)
