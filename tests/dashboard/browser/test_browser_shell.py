"""The frame as a person meets it, in Chromium: time, palette, keys, exports, and a server that goes and comes back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import DESKTOP, OVERLAYS, PHONE, OpenTab, Serve, Visit, screenshot, serious_violations
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks

# Those that no other test opens cold.
ADDRESSES = ("/s/vision-api/traces", "/s/vision-api?from=now-15m&vs=off&tz=utc&refresh=off")


def at(text: str) -> str:
    """Return a time of 2026 in UTC as an address has it."""
    return str(int(datetime.fromisoformat(f"2026-{text}Z").timestamp() * 1000))


TYPED = {
    "3h": ("now-3h", ""),
    "last 90 min": ("now-90m", ""),
    "1h30m": ("now-90m", ""),
    "1w": ("now-7d", ""),
    "10:00-11:30": (at("11-20T10:00"), at("11-20T11:30")),
    "14:00\u201315:30": (at("11-19T14:00"), at("11-19T15:30")),
    "23:00 - 01:00": (at("11-19T23:00"), at("11-20T01:00")),
    "yesterday": (at("11-19T00:00"), at("11-20T00:00")),
    "yesterday 14:00 to 16:00": (at("11-19T14:00"), at("11-19T16:00")),
    "today": (at("11-20T00:00"), ""),
    "09:00": (at("11-20T09:00"), ""),
    "19 Nov": (at("11-19T00:00"), at("11-20T00:00")),
    "Nov 19 2026 10:00 - 11:00": (at("11-19T10:00"), at("11-19T11:00")),
    "2026-11-18 - 2026-11-19": (at("11-18T00:00"), at("11-20T00:00")),
    "2026-11-19T10:00:00+01:00/2h": (at("11-19T09:00"), at("11-19T11:00")),
    "2026-11-19 10:00-11:00": (at("11-19T10:00"), at("11-19T11:00")),
    "now-2h - now-1h": (at("11-20T10:00"), at("11-20T11:00")),
}
WRONG = {
    **dict.fromkeys(("", "soon", "14:00-15", "31 Jun", "25:00", "3 months", "-1h"), "Invalid time range. Write 3h"),
    "21 Nov": "future",
    "500d": "At most 400 days",
    "2026-11-19T11:00 - 2026-11-19T10:00": "The end is before",
}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return {
        "services": [
            {"name": f"service-{number}", "path": f"/s/service-{number}", "versions": ["2.0", "1.0"]}
            for number in range(300)
        ]
    }


def test_a_typed_time_range_becomes_the_window(visit: Visit) -> None:
    page = visit.go("/slo")
    read = "([texts, now]) => texts.map((text) => stagelens.windowOf(text, now, true))"
    now = int(NOW.replace(second=0).timestamp() * 1000)
    found = page.evaluate(read, [list(TYPED), now])
    refused = page.evaluate(read, [list(WRONG), now])

    assert {text: (each["from"], each["to"]) for text, each in zip(TYPED, found, strict=True)} == TYPED
    for each, (text, reason) in zip(refused, WRONG.items(), strict=True):
        assert reason in each["wrong"], text


def test_a_typed_range_is_in_the_reader_s_zone_and_remembered(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base, timezone_id="Europe/Berlin")
    page = visit.go("/slo")
    page.keyboard.press("t")
    page.keyboard.type("then")
    page.keyboard.press("Enter")
    expect(page.locator("#understood")).to_contain_text("Invalid time range")
    zone = page.locator(".menu.time .zone").first.inner_text()
    page.get_by_label("Range").fill("12:10-12:40")
    expect(page.locator("#understood")).to_have_text("20 Nov 12:10 to 12:40")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"from={at('11-20T11:10')}&to={at('11-20T11:40')}"))
    expect(page.locator(".menu.time summary")).to_contain_text("20 Nov 12:10 to 12:40")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url(re.compile(r"/traces\?from="))
    visit.settled()
    page.keyboard.press("0")
    page.wait_for_url(f"{base}/traces")
    expect(page.locator(".menu.time summary")).to_contain_text("Last 6")
    page.keyboard.press("t")
    page.get_by_role("button", name="20 Nov 12:10 to 12:40").click()
    page.wait_for_url(re.compile(r"/traces\?from="))
    visit.settled()

    assert zone.startswith("Times are in Europe/Berlin (UTC+01:00).")
    assert visit.trouble == []


def test_the_server_clock_applies_before_the_page_has_loaded(browser: Browser, base: str) -> None:
    page = browser.new_page()
    page.add_init_script("window.stagelens = Object.defineProperty({}, 'settle', { get: () => () => {}, set() {} })")
    page.goto(f"{base}/slo")
    page.wait_for_selector(".menu.time[data-now]")
    now = page.evaluate("stagelens.now()")
    page.close()

    assert abs(now / 1000 - NOW.timestamp()) < timedelta(hours=1).total_seconds()


def test_the_window_moves_by_keys(visit: Visit) -> None:
    page = visit.go("/slo")
    # The window that ends 3 s ago ends with the newest data however slow the test is.
    page.evaluate("(now) => { stagelens.now = () => now; }", NOW.timestamp() * 1000)
    page.keyboard.press("[")
    page.wait_for_url(re.compile(f"from={at('11-20T03:00')}&to={at('11-20T09:00')}"))
    visit.settled()
    expect(page.locator(".menu.time summary")).to_contain_text("03:00 to 09:00")
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"/slo\?from=now-6h$|/slo$"))
    expect(page.locator(".menu.time summary")).to_contain_text("Last 6")
    page.keyboard.press("-")
    page.wait_for_url(re.compile(r"from=now-12h$"))
    expect(page.locator(".menu.time summary")).to_contain_text("Last 12")
    page.keyboard.press("Backspace")
    page.wait_for_url(re.compile(r"/slo(\?from=now-6h)?$"))
    visit.settled()


def test_every_address_opens_directly(visit: Visit) -> None:
    titles: list[str] = []
    for address in ADDRESSES:
        visit.page.goto(visit.base + address, wait_until="commit")
        visit.page.wait_for_selector("#root [data-title]")
        titles.append(visit.page.title())

    assert all(title.endswith("Stagelens") for title in titles)
    assert not any("Not found" in title or title == "Stagelens" for title in titles)


def test_the_palette_finds_one_of_three_hundred(visit: Visit, names: dict[str, Any]) -> None:
    visit.page.route("**/api/v1/names", lambda route: route.fulfill(json=names))
    page = visit.go("/slo?from=now-1h")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    field.fill("sv287")
    expect(page.get_by_role("option").first).to_have_text("service-287Service")
    complaints = serious_violations(page, OVERLAYS)
    field.fill("service-28")
    expect(page.get_by_role("option").first).to_have_text("service-28Service")
    page.keyboard.press("ArrowDown")
    chosen = page.locator(f"#{field.get_attribute('aria-activedescendant')}")
    shown = (chosen.get_attribute("aria-selected"), chosen.inner_text().partition("\n")[0])
    lines = page.get_by_role("option").count()
    page.keyboard.press("Enter")
    page.wait_for_url(f"{visit.base}/s/{shown[1]}?from=now-1h")
    visit.settled()
    page.keyboard.press("Control+k")
    field.fill("compare 2.0 before")
    expect(page.get_by_role("option").first).to_contain_text(f"Compare 2.0 of {shown[1]}")
    field.fill("0123456789abcdef")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/traces/0123456789abcdef"))
    visit.settled()

    assert complaints == []
    assert shown[0] == "true"
    assert lines <= 12


def test_shortcut_keys_are_letters_inside_a_field(visit: Visit) -> None:
    page = visit.go("/slo")
    page.keyboard.press("t")
    page.keyboard.type("gtd?")
    typed = page.get_by_label("Range").input_value()
    page.keyboard.press("Escape")
    on = page.evaluate("document.activeElement.tagName")
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Events']")
    page.wait_for_function("() => document.activeElement.id === 'root'")

    assert (typed, on) == ("gtd?", "SUMMARY")
    assert page.evaluate("document.documentElement.dataset.theme") is None


def test_back_restores_the_scroll_position(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    page.evaluate("scrollTo(0, 500)")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title*='SLO']")
    page.wait_for_function("() => scrollY === 0")
    page.keyboard.press("Backspace")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='vision-api']")
    page.wait_for_function("() => scrollY > 400")
    visit.settled()


def test_a_chart_exports_as_picture_and_numbers(visit: Visit, tmp_path: Path) -> None:
    page = visit.go("/s/vision-api")
    exported: dict[str, bytes] = {}
    files: list[str] = []
    for kind in ("PNG", "SVG", "CSV"):
        page.get_by_role("button", name="Export Where the time goes").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        download.value.save_as(tmp_path / kind)
        exported[kind] = (tmp_path / kind).read_bytes()
        files.append(download.value.suggested_filename)

    assert files == [f"vision-api-percentile_20261120T0600Z-20261120T1200Z.{kind}" for kind in ("png", "svg", "csv")]
    assert exported["PNG"].startswith(b"\x89PNG")
    assert len(exported["PNG"]) > 20_000
    assert b"vision-api \xc2\xb7 Where the time goes, by percentile" in exported["SVG"]
    assert exported["CSV"].startswith(b"percentile,")


@pytest.mark.parametrize("token", [None, "a token of this test, long enough"])
def test_copied_code_reads_the_numbers_of_the_card(
    open_tab: OpenTab, serve: Serve, filled: Store, alerts: AlertsReader, token: str | None
) -> None:
    base = serve(filled, alerts, token=token)
    visit = open_tab(base, permissions=["clipboard-read", "clipboard-write"])
    page = visit.go("/s/vision-api?from=now-1h" + (f"&token={token}" if token else ""))
    printed: dict[str, str] = {}
    for card in ("Breakdown over time", "Slow exemplars"):
        for kind, command in (("Python", [sys.executable, "-c"]), ("curl", ["sh", "-c"])):
            page.get_by_role("button", name=f"Export {card}").press("Enter")
            page.get_by_role("button", name=f"Copy as {kind}").press("Enter")
            expect(page.locator("#announcement")).to_have_text(re.compile(f'^{kind} .*"{card}" copied$'))
            copied = str(page.evaluate("navigator.clipboard.readText()"))
            assert ("Bearer $STAGELENS_DASHBOARD_TOKEN" in copied) == (token is not None and kind == "curl")
            environment = os.environ | {"STAGELENS_DASHBOARD_TOKEN": token or ""}
            ran = subprocess.run([*command, copied], env=environment, capture_output=True, text=True, check=True)
            printed[f"{card} {kind}"] = ran.stdout

    over, slow = (json.loads(printed[f"{card} curl"]) for card in ("Breakdown over time", "Slow exemplars"))
    assert over["from"] == slow["from"] == "2026-11-20T11:00:00Z"
    assert f"[{len(over['rows'])} rows x {len(over['columns'])} columns]" in printed["Breakdown over time Python"]
    assert slow["rows"][0][0] in printed["Slow exemplars Python"]
    assert visit.trouble == []


def test_menus_and_dialogs_are_readable_in_both_themes(visit: Visit) -> None:
    page = visit.go("/slo")
    complaints: list[str] = []
    for theme in ("light", "dark"):
        page.get_by_role("button", name=re.compile("Export .*error budget")).click()
        complaints += serious_violations(page, OVERLAYS)
        page.get_by_role("button", name="View as table").click()
        expect(page.locator("dialog.sheet tbody tr").first).to_contain_text("UTC")
        expect(page.locator("dialog.sheet section > p")).to_contain_text("error budget")
        complaints += serious_violations(page, OVERLAYS)
        screenshot(page, f"table-{theme}")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        complaints += serious_violations(page, OVERLAYS)
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        complaints += serious_violations(page, OVERLAYS)
        screenshot(page, f"time-{theme}")
        page.keyboard.press("Escape")
        page.keyboard.press("d")

    assert complaints == []


def test_a_copied_link_has_a_fixed_or_relative_window(browser: Browser, base: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit = Visit(context.new_page(), base)
    page = visit.go("/slo?from=now-1h")
    copied: list[tuple[str, str]] = []
    for key in ("c", "Shift+C"):
        page.keyboard.press(key)
        expect(page.locator("#announcement")).to_contain_text("fixed window" if key == "c" else "moving")
        copied.append((page.evaluate("navigator.clipboard.readText()"), page.locator("#announcement").inner_text()))
    context.close()

    assert copied[0] == (
        f"{base}/slo?from={at('11-20T11:00')}&to={at('11-20T12:00')}",
        "Link copied: fixed window",
    )
    assert copied[1] == (f"{base}/slo?from=now-1h", "Link copied: moving window, last 1\u202fh")


def test_the_last_of_two_quick_clicks_wins(visit: Visit) -> None:
    page = visit.go("/")
    page.route(re.compile(r"/parts\?.*path=%2Fslo"), lambda _: None)
    side = page.get_by_role("navigation", name="Pages").first
    # The first one is on its way: the refresh, too, would make the page busy.
    with page.expect_request(lambda asked: "path=%2Fslo" in asked.url):
        side.get_by_role("link", name="SLOs").click()
    with page.expect_event("requestfailed", lambda request: "path=%2Fslo" in request.url):
        side.get_by_role("link", name="Events").click()
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Events']")

    assert page.title().startswith("Events")
    assert page.url == f"{visit.base}/events"


@pytest.fixture
def mortal(filled: Store) -> Iterator[list[Dashboard]]:
    served = [Dashboard(DashboardConfig(port=free_port()), filled, clock=NOW.timestamp)]
    served[0].start()
    yield served
    served[-1].stop()


def test_an_unreachable_dashboard_is_shown_and_recovers(
    open_tab: OpenTab, mortal: list[Dashboard], filled: Store
) -> None:
    host, port = mortal[0].address
    visit = open_tab(f"http://{host}:{port}")
    page = visit.go("/slo")
    mortal[0].stop()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.locator("#lost")).to_contain_text(re.compile(r"Offline since \d\d:\d\d, last data shown"))
    title, address = page.title(), page.evaluate("location.pathname")
    complaints = serious_violations(page)
    screenshot(page, "offline")
    page.get_by_role("button", name="Try now").click()
    expect(page.locator("#lost")).to_contain_text("Offline since")
    mortal.append(Dashboard(DashboardConfig(port=port), filled, clock=NOW.timestamp))
    mortal[-1].start()
    page.evaluate("window.dispatchEvent(new Event('online'))")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='Traces']")
    expect(page.locator("#lost")).to_be_empty()

    # The address is that of what is shown, not of what could not be loaded.
    assert address == "/slo"
    assert "SLO" in title
    assert complaints == []


def test_the_refresh_slows_down_without_new_data(visit: Visit) -> None:
    page = visit.go("/slo")
    asked = page.evaluate("""() => {
        const dueRefresh = stagelens.dueRefresh;
        let [lastRefresh, seen, revision, sent] = [null, { interval: 0, revision: 1 }, 1, []];
        for (let count = 1; count <= 24; count += 1) {
            if (count > 17) revision = count;
            const next = dueRefresh(count, lastRefresh, seen);
            if (next === null) continue;
            lastRefresh = next;
            seen = { interval: next.interval, revision };
            sent.push(count);
        }
        return sent;
    }""")

    assert asked[:5] == [1, 3, 7, 11, 15]
    assert asked[-3:] == [22, 23, 24]


def test_the_frame_fits_every_width(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    widths: list[tuple[int, int]] = []
    for width, height in ((1180, 900), (761, 900), (760, 900), (720, 450), (PHONE["width"], PHONE["height"])):
        page.set_viewport_size({"width": width, "height": height})
        visit.settled()
        widths.append(page.evaluate("[document.documentElement.scrollWidth, innerWidth]"))
        rail = page.locator(".side").is_visible()
        assert (rail, page.locator(".mobnav").is_visible()) == (width > 760, width <= 760)
    page.locator(".menu.time summary").click()
    small = page.evaluate("""() => [...document.querySelectorAll('.top :is(button, summary), .mobnav a, .menu[open] button')]
        .filter((each) => each.offsetParent).map((each) => [each.textContent, each.getBoundingClientRect()])
        .filter(([, box]) => box.height < 40 || box.width < 40).map(([text]) => text)""")
    popped = page.locator(".menu.time .pop").bounding_box()
    names = page.locator(".top :is(button, summary):visible").evaluate_all(
        "each => each.map((one) => one.dataset.do || 'time')"
    )

    assert all(there <= available for there, available in widths)
    assert small == []
    assert (names[0], names[-1]) == ("menu", "theme")
    assert popped is not None
    assert popped["y"] + popped["height"] <= PHONE["height"]


@pytest.mark.parametrize(("width", "height"), [(PHONE["width"], PHONE["height"]), (720, 450)], ids=["phone", "zoom"])
def test_a_narrow_screen_reaches_all_of_a_wide_one(visit: Visit, width: int, height: int) -> None:
    page = visit.go("/s/vision-api")
    wide = set(page.locator(".top button, .side a").evaluate_all(_NAMES))
    page.set_viewport_size({"width": width, "height": height})
    visit.settled()
    outside = set(page.locator(":is(.top button, .mobnav a):visible").evaluate_all(_NAMES))
    page.get_by_role("button", name="Menu", exact=True).click()
    inside = set(page.locator(".side :is(a, button):visible").evaluate_all(_NAMES))
    complaints = serious_violations(page, ".side")
    page.get_by_role("link", name="Engines").scroll_into_view_if_needed()
    page.keyboard.press("Escape")
    expect(page.locator(".side")).to_be_hidden()
    expect(page.get_by_role("button", name="Menu", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.locator(".side").get_by_role("button", name="Keys").click()
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Menu", exact=True).click()
    page.get_by_role("link", name="chat-llm").click()
    page.wait_for_url(f"{visit.base}/s/chat-llm")
    expect(page.locator(".side")).to_be_hidden()
    page.set_viewport_size(DESKTOP)
    expect(page.locator(".side")).to_be_visible()

    assert wide - outside - inside == set()
    assert complaints == []


_NAMES = "each => each.map((one) => one.dataset.do || one.pathname).filter(Boolean)"


# Text that its box cuts off, unless an ellipsis says so, and the title of the element or of one around it says the whole.
_CUT = """() => [...document.querySelectorAll('main *, .top *, .side *')].filter((each) => {
    const style = getComputedStyle(each);
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !each.offsetParent || each.closest('.plot, .sr, [aria-hidden], .fl, .lb, .tw')) return false;
    for (let box = each; box && box !== document.body; box = box.parentElement) {
        const { overflowX, textOverflow } = getComputedStyle(box);
        if (overflowX === 'auto' || overflowX === 'scroll') return false;
        if (getComputedStyle(box).clipPath !== 'none') return false;
        if (overflowX === 'visible') continue;
        const range = document.createRange();
        range.selectNodeContents(each);
        if (range.getBoundingClientRect().right <= box.getBoundingClientRect().right + 1) continue;
        return !(textOverflow === 'ellipsis' && box === each && each.closest('[title]'));
    }
    return false;
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("width", [1440, 1000, 720, 390])
def test_no_text_is_cut_without_an_ellipsis(visit: Visit, width: int) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 900})
    found: dict[str, list[str]] = {}
    for address in (
        "/",
        "/s/vision-api",
        "/s/vision-api/capacity",
        "/compare?svc=vision-api",
        "/slo",
        "/traces",
        "/advice",
    ):
        found[address] = visit.go(address).evaluate(_CUT)

    assert {address: cut for address, cut in found.items() if cut} == {}


def test_the_palette_finds_what_is_meant(visit: Visit) -> None:
    page = visit.go("/")
    page.keyboard.press("Control+k")
    for typed, meant in {
        "tokens chat": "chat-llm: Tokens",
        "visoin api": "vision-api",
        "latency vision": "vision-latency of vision-api",
        "preproces vision": "vision-api: requests that are mostly Preprocess",
        "2.0.0 vision": "vision-api 2.0.0",
        "dark": "Light or dark theme",
        "overvw": "Overview",
    }.items():
        page.get_by_role("combobox").fill(typed)
        expect(page.get_by_role("option").first.locator("span")).to_have_text(meant)


def test_tab_follows_the_reading_order(visit: Visit) -> None:
    page = visit.go("/slo")
    page.evaluate("document.activeElement.blur()")
    order: list[str] = []
    for _ in range(30):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate("""() => {
                const here = document.activeElement;
                return here.className === 'skip' ? 'skip' : ['side', 'top'].find((name) => here.closest('.' + name)) || 'page';
            }""")
        )

    assert order[0] == "skip"
    assert [name for place, name in enumerate(order) if place == 0 or name != order[place - 1]][:4] == [
        "skip",
        "side",
        "top",
        "page",
    ]


def test_a_link_to_a_place_on_the_page_requests_nothing(visit: Visit) -> None:
    page = visit.go("/slo")
    before = len(visit.callbacks)
    page.evaluate(
        "() => new Promise((done) => { addEventListener('popstate', () => done()); location.hash = 'root'; })"
    )

    assert len(visit.callbacks) == before


def test_display_preferences_stay_in_the_browser(visit: Visit) -> None:
    page = visit.go("/s/vision-api")
    asked = len(visit.callbacks)
    page.keyboard.press("?")
    for name in ("Patterns on stages", "Compact rows"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-chart=percentile] pattern").first).to_be_attached()
    page.keyboard.press("Escape")
    after, address = len(visit.callbacks), page.url
    page.goto(f"{visit.base}/slo", wait_until="commit")
    expect(page.locator("html")).to_have_attribute("data-density", "compact")
    visit.settled()

    assert (after, address) == (asked, f"{visit.base}/s/vision-api")
    assert page.evaluate("document.documentElement.dataset.patterns") == "on"


def test_an_empty_store_is_polled_at_every_refresh(open_tab: OpenTab, serve: Serve, store: Store) -> None:
    page = open_tab(serve(store)).go("/")
    sent = page.evaluate("""() => [1, 2, 3, 4].map((count) => stagelens.dueRefresh(
        count, { interval: count - 1, at: Date.now() }, { interval: count - 1, revision: 0 }) !== null)""")

    assert sent == [True] * 4
