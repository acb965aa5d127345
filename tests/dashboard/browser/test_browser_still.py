"""What a reader does to a part of a page changes that part only: nothing moves, and the page is not built anew."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.tabs import SOON, Visit, hover, retry

pytestmark = pytest.mark.stacks

SERVICE = "/s/vision-api"
_WATCH = """() => { window.shifts = []; new PerformanceObserver((list) => list.getEntries().forEach((each) => window.shifts.push(
    [each.value, ...each.sources.map(({ node }) => node && (node.className || node.nodeName))])))
    .observe({ type: 'layout-shift' }); }"""
_DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
_PLACES = """() => JSON.stringify([...document.querySelectorAll('.card, .ch > :not(.grow)')].map((each) => {
    const box = each.getBoundingClientRect(); return [each.className, box.x, box.y + scrollY, each.matches('.card') ? box.height : 0]; }))"""
# What the page says, without the drawings and what the browser has set.
_SAYS = """() => { const ours = ['open', 'data-drawn', 'data-narrow', 'data-new', 'style'];
    const keyed = ['role', 'tabindex', 'aria-keyshortcuts', 'aria-roledescription'];
    const says = (node) => node.nodeType !== 1 ? [node.data] : [node.nodeName, [...node.attributes]
        .filter(({ name, value }) => value && !(name === 'title' && node.matches('.dv')) && !ours.includes(name) && !(node.dataset.chart && keyed.includes(name))).map(({ name, value }) => `${name}=${name === 'href' ? decodeURIComponent(value) : value}`).sort().join(' '),
        ...(node.dataset.chart ? [] : [...node.childNodes].flatMap(says))];
    return says(document.querySelector('#root > .page')); }"""


def steady(page: Page, act: str) -> None:
    page.evaluate(_DRAWN)
    found = page.evaluate("window.shifts.splice(0)")
    assert not found, f"{act}: {found}"


@pytest.mark.parametrize(
    "address",
    [
        *("/", "/slo", "/traces", SERVICE, f"{SERVICE}?p=95", f"{SERVICE}/capacity", f"{SERVICE}/replicas"),
        *(f"/compare?svc={SERVICE[3:]}", "/s/chat-llm", "/s/chat-llm/tokens", "/s/fraud-score", "/slo/vision-latency"),
    ],
)
def test_pointing_at_a_chart_moves_nothing(visit: Visit, address: str) -> None:
    page = visit.go(address)
    page.set_viewport_size({"width": 1440, "height": min(page.evaluate("document.documentElement.scrollHeight"), 4000)})
    visit.settled()
    # The foot of the side bar follows the window at the next frame.
    page.evaluate(_DRAWN)
    page.evaluate(_WATCH)
    charts = page.locator("[data-chart]:has(.nsewdrag)")
    for chart in charts.all():
        box = chart.locator(".nsewdrag").first.bounding_box()
        assert box is not None
        for step in range(0, 101, 5):
            page.mouse.move(box["x"] + 1 + (box["width"] - 2) * step / 100, box["y"] + box["height"] / 2)
            steady(page, f"{chart.get_attribute('data-chart')} at {step} %")
        page.mouse.move(1, 1)
        steady(page, "beside the chart")

    assert charts.count() or address.endswith("/replicas")


@pytest.mark.parametrize("width", [1440, 720, 390])
def test_a_control_of_a_chart_moves_nothing(visit: Visit, width: int) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 4000})
    visit.go(SERVICE)
    for button in page.locator("main button[data-redraw]:visible").all():
        before = page.evaluate(_PLACES)
        with page.expect_response("**/figures/**"):
            button.click()
        page.evaluate(_DRAWN)

        assert page.evaluate(_PLACES) == before, button.text_content()


def test_selecting_a_percentile_updates_only_what_shows_it(visit: Visit) -> None:
    page = visit.go(SERVICE)
    page.evaluate("scrollTo(0, 120)")
    page.evaluate("""() => { window.same = [...document.querySelectorAll('.own, h1, .kpis, .tabs')];
        document.querySelector('#root').addEventListener('click', () => 0); window.steps = history.length; }""")
    hover(
        page,
        "percentile",
        0.6,
        lambda: expect(page.locator("[data-inspector] th [data-percentile]")).not_to_have_text("p99"),
    )
    before, scrolled = len(visit.callbacks), page.evaluate("scrollY")
    page.evaluate(_WATCH)

    def press() -> None:
        page.mouse.down()
        page.mouse.up()
        page.wait_for_url(re.compile(r"p="), timeout=SOON)

    # A chart that is being drawn does not take a click.
    retry(press)
    [percentile] = parse_qs(urlsplit(page.url).query)["p"]
    shown = f"p{percentile}"
    expect(page.get_by_role("heading", name=f"Exemplars around {shown}")).to_be_attached()
    page.mouse.move(1, 1)
    expect(page.locator("[data-inspector] th [data-percentile]")).to_have_text(shown)
    [asked] = visit.callbacks[before:]

    assert "Every request" not in parse_qs(urlsplit(asked).query)["only"]
    assert page.evaluate("[window.same.every((each) => each.isConnected), scrollY, history.length - window.steps]") == [
        True,
        scrolled,
        0,
    ]
    updated = page.evaluate(_SAYS)
    fresh = visit.go(urlsplit(page.url)._replace(scheme="", netloc="").geturl()).evaluate(_SAYS)
    assert updated == fresh


@pytest.mark.parametrize(
    ("address", "changes"),
    [
        (SERVICE, {"p": "95"}),
        (f"{SERVICE}?p=95", {"p": "", "hide": "queue"}),
        (f"{SERVICE}?hide=queue", {"hide": "queue,forward"}),
        (SERVICE, {"sel": "0.05:10:1763636000:1763640000"}),
        ("/s/chat-llm/tokens", {"hide": "queue"}),
        ("/", {"sort": "p99"}),
    ],
)
def test_an_updated_page_is_the_page_of_its_address(visit: Visit, address: str, changes: dict[str, str]) -> None:
    page = visit.go(address)
    with page.expect_response(re.compile(r"/parts\?.*only=")) as answer:
        page.evaluate(f"stagelens.go(stagelens.address({json.dumps(changes)}))")
    answer.value.finished()
    page.evaluate(_DRAWN)
    updated = page.evaluate(_SAYS)
    fresh = visit.go(urlsplit(page.url)._replace(scheme="", netloc="").geturl()).evaluate(_SAYS)

    assert updated == fresh
    page.go_back()
