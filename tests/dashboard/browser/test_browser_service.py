"""The page of a service in Chromium: what its table does to the charts, patterns, and states that are hard to draw."""

from __future__ import annotations

import re
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import FloatRect, Page, ViewportSize, expect

from stagelens.dashboard.pages import service
from tests.dashboard.tabs import DESKTOP, PHONE, SOON, OpenTab, Visit, hover, screenshot, serious_violations

pytestmark = pytest.mark.stacks

ADDRESS = "/s/vision-api"


def fills(page: Page, chart: str) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        """(name) => Object.fromEntries(document.querySelector(`[data-chart=${name}] .own`).data
             .filter((trace) => trace.stackgroup).map((trace) => [trace.name, trace.fillcolor]))""",
        chart,
    )
    return found


def test_a_row_highlights_its_stage_in_all_charts(visit: Visit) -> None:
    page = visit.go(ADDRESS)
    before, asked = fills(page, "percentile"), len(visit.callbacks)
    row = page.get_by_role("button", name="Preprocess", exact=True)
    row.click()
    expect(row).to_have_attribute("aria-pressed", "true")
    lit, over = fills(page, "percentile"), fills(page, "over")
    row.press("Enter")
    expect(row).to_have_attribute("aria-pressed", "false")

    assert lit["Preprocess"] == over["Preprocess"] == before["Preprocess"]
    assert lit["Forward"] == over["Forward"] != before["Forward"]
    assert fills(page, "percentile") == before
    assert len(visit.callbacks) == asked


def test_a_stage_left_out_is_an_address(visit: Visit) -> None:
    page = visit.go(ADDRESS)
    page.get_by_role("button", name="Forward", exact=True).click(modifiers=["Alt"])
    page.wait_for_url(re.compile(r"hide=forward"))
    expect(page.locator("tr.off")).to_have_count(1)
    queue = page.get_by_role("button", name="Queue", exact=True)
    queue.focus()
    page.keyboard.press("Alt+Enter")
    page.wait_for_url(re.compile(r"hide=forward(,|%2C)queue"))
    expect(page.locator("tr.off")).to_have_count(2)
    visit.go(page.url.removeprefix(visit.base))
    shown = set(fills(page, "percentile"))
    page.get_by_role("link", name="Show all").click()
    page.wait_for_url(re.compile(r"/s/vision-api$"))
    expect(page.locator("tr.off")).to_have_count(0)

    assert "Preprocess" in shown
    assert not shown & {"Forward", "Queue"}


def test_stage_patterns_are_drawn_and_persist(visit: Visit) -> None:
    page = visit.go(ADDRESS)
    patterns = page.locator("[data-chart=percentile] pattern")
    plain, asked = patterns.count(), len(visit.callbacks)
    page.evaluate("stagelens.patterns(true)")
    expect(patterns).not_to_have_count(plain)
    switched = len(visit.callbacks)
    visit.go(ADDRESS)
    expect(patterns).not_to_have_count(plain)
    page.evaluate("stagelens.patterns(false)")
    expect(patterns).to_have_count(plain)

    assert switched == asked


def test_a_chart_that_fails_to_refresh_stays(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base)
    page = visit.go(ADDRESS)
    page.route("**/figures/**", lambda route: route.fulfill(status=500))
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.locator("#announcement")).to_contain_text("could not be rendered")
    drawn = fills(page, "percentile")
    page.unroute("**/figures/**")
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.locator("[data-chart=percentile] .ytick").last).to_contain_text("100")

    assert drawn


def test_combined_page_states_are_accessible(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base, color_scheme="dark", reduced_motion="reduce")
    page = visit.go(f"{ADDRESS}?p=95&hide=forward")
    page.evaluate("stagelens.patterns(true)")
    screenshot(page, "service-pinned-dark")
    page.get_by_label("How to read this chart").click()
    expect(page.locator(".says")).to_be_visible()
    complaints = serious_violations(page)
    page.set_viewport_size(PHONE)
    visit.settled()
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")

    assert complaints == []
    assert width[0] <= width[1]
    assert visit.trouble == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_route_is_chosen_with_the_keyboard_and_ended_by_its_chip(
    open_tab: OpenTab, base: str, size: ViewportSize
) -> None:
    visit = open_tab(base, viewport=size, color_scheme="light", reduced_motion="reduce", has_touch=size is PHONE)
    page = visit.go(ADDRESS)
    menu = page.get_by_title("Route: any")
    menu.focus()
    page.keyboard.press("Enter")
    listed = page.locator(".phead .menu[open] .pop")
    expect(listed.get_by_role("link")).to_have_text(["Any route", "/v1/classify", "/v1/detect"])
    box = listed.bounding_box()
    page.keyboard.press("Escape")
    expect(listed).to_have_count(0)
    expect(menu).to_be_focused()
    page.keyboard.press("Enter")
    listed.get_by_role("link", name="/v1/detect").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"\?r=/v1/detect$"))
    chip = page.get_by_role("link", name="Route /v1/detect: show all routes")
    expect(chip).to_be_visible()
    visit.settled()
    screenshot(page, f"service-route-{size['width']}")
    complaints, wide = serious_violations(page), page.evaluate("document.documentElement.scrollWidth - innerWidth")
    expect(page.get_by_role("navigation", name="Of this service").get_by_role("link", name="Traces")).to_have_attribute(
        "href", re.compile(r"r=/v1/detect")
    )
    chip.click()
    page.wait_for_url(re.compile(f"{ADDRESS}$"))
    expect(chip).to_have_count(0)

    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    assert complaints == []
    assert wide <= 0
    assert visit.trouble == []


def test_every_filter_opens_on_the_screen_of_a_phone(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base, viewport=PHONE, reduced_motion="reduce", has_touch=True)
    page = visit.go("/traces?svc=vision-api&r=/v1/detect")
    boxes: list[FloatRect | None] = []
    for menu in page.locator(".filters .menu").all():
        menu.locator("summary").click()
        boxes.append(menu.locator(".pop").bounding_box())

    assert len(boxes) >= 5
    assert all(each is not None and each["x"] >= 0 and each["x"] + each["width"] <= PHONE["width"] for each in boxes)
    assert visit.trouble == []


def test_attributes_are_typed_one_after_the_other(visit: Visit) -> None:
    page = visit.go("/traces?svc=vision-api&n=2")
    for text in ("http.route:/v1/detect", "http.response.status_code"):
        page.locator("summary", has_text="attribute").click()
        field = page.get_by_label("Attribute, such as")
        assert page.locator(f"#{field.get_attribute('list')} option[value='{text}']").count() == 1
        field.fill(text)
        field.press("Enter")
        expect(page.locator(".filters").nth(1)).to_contain_text(text.partition(":")[0], timeout=SOON)

    assert parse_qs(urlsplit(page.url).query)["at"] == ["http.route:/v1/detect,http.response.status_code"]
    assert "n=2" not in page.url


def test_charts_work_with_the_keyboard(visit: Visit) -> None:
    page, said = visit.go(ADDRESS), visit.page.get_by_role("status").and_(visit.page.locator("#announcement"))
    chart = page.locator("[data-chart=percentile][data-drawn]")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text(re.compile(r"^p98\.\d+: .* of which \w+ "))
    expect(page.locator("[data-inspector] th [data-percentile]")).not_to_have_text("p99")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"p=98\."))
    expect(page.get_by_role("heading", name="Exemplars around p98.")).to_be_attached()
    expect(chart).to_be_focused()
    heat = page.locator("[data-chart=heat][data-drawn]")
    heat.focus()
    for key in ("ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowUp"):
        page.keyboard.press(key)
        expect(said).to_contain_text(re.compile(r"\d+:\d+.* (request|no requests)"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("sel="))
    expect(page.get_by_role("link", name="Selection")).to_be_attached()
    complaints = serious_violations(page)
    page.keyboard.press("Escape")
    page.wait_for_url(lambda address: "sel=" not in address)
    expect(heat).to_be_focused()

    assert complaints == []


def test_a_chart_works_with_the_keyboard_if_its_table_arrives_later(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ready, inspector = threading.Event(), service.inspector
    monkeypatch.setattr(
        service, "inspector", lambda *args, **options: is_ready.wait(60) and inspector(*args, **options)
    )
    page = visit.page
    page.goto(visit.base + ADDRESS, wait_until="commit")
    page.wait_for_selector("[data-chart=percentile][data-drawn]")
    is_ready.set()
    visit.settled()
    page.locator("[data-chart=percentile]").focus()
    page.keyboard.press("ArrowLeft")

    expect(page.locator("#announcement")).to_contain_text("of which")


_SHIFT = """() => { window.shift = 0; new PerformanceObserver((list) => list.getEntries()
    .forEach((each) => (window.shift += each.value))).observe({ type: 'layout-shift', buffered: true }); }"""


def test_charts_are_drawn_before_the_last_card_arrives(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    is_ready = threading.Event()
    monkeypatch.setattr(service, "top_advice", lambda *_: is_ready.wait(60) and None)
    page = visit.page
    page.add_init_script(f"({_SHIFT})()")
    page.goto(f"{visit.base}/s/vision-api", wait_until="commit")
    page.wait_for_selector("[data-chart=percentile][data-drawn]")
    expect(page.locator(".pending")).to_be_visible()
    titles = page.title(), page.locator(".card h2").all_inner_texts()
    services = page.get_by_role("navigation", name="Services")
    before = services.count()
    is_ready.set()
    visit.settled()

    assert titles[0] == "vision-api · Stagelens"
    assert "Slow exemplars" not in titles[1]
    expect(page.get_by_role("heading", name="Slow exemplars")).to_be_attached()
    expect(page.locator(".pending")).to_be_hidden()
    assert (before, services.count()) == (0, 1)
    assert page.evaluate("window.shift") < 0.01


def test_hovering_shows_the_stages_before_the_first_token(visit: Visit) -> None:
    page = visit.go("/s/chat-llm/tokens")
    box = page.locator("[data-chart=first-token] .hovertext").first
    pattern = re.compile(r"p9[\d.]+ \d.*n \d.*(Queue|Prefill)", re.DOTALL)
    hover(page, "first-token", 0.65, lambda: expect(box).to_contain_text(pattern, timeout=SOON))

    assert page.locator(".cursor:not([hidden])").count() == 0


def test_the_breakdown_percentile_control_redraws_the_chart(visit: Visit) -> None:
    page = visit.go("/s/chat-llm/tokens")
    page.locator("[data-chart=over]").scroll_into_view_if_needed()
    page.get_by_role("group", name="Percentile", exact=True).get_by_role("button", name="p50").click()
    page.wait_for_url(re.compile(r"[?&]t=50"))

    expect(page.locator(".card", has_text="Breakdown over time").locator(".sub").first).to_contain_text("p50 of each")
