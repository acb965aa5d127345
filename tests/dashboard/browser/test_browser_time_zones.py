"""In Chromium: the times of charts are those of the reader, in every zone and in the nights in which clocks change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from stagelens.store import Batch, Series, Store
from tests.dashboard.tabs import DESKTOP, SOON, Serve, Visit, hover

pytestmark = pytest.mark.stacks

# Zone of the browser, zone that the address asks for, and the first and the last instant of the window. From midnight to eight
# these nights have seven, eight and nine hours.
CASES = {
    "utc": ("UTC", "", "2026-10-25T00:00", "2026-10-25T08:00"),
    "berlin-winter": ("Europe/Berlin", "", "2026-10-24T22:00", "2026-10-25T07:00"),
    "berlin-summer": ("Europe/Berlin", "", "2026-03-28T23:00", "2026-03-29T06:00"),
    "berlin-shows-utc": ("Europe/Berlin", "utc", "2026-10-24T22:00", "2026-10-25T07:00"),
    "kolkata": ("Asia/Kolkata", "", "2026-10-24T18:30", "2026-10-25T02:30"),
    "kathmandu": ("Asia/Kathmandu", "", "2026-10-24T18:15", "2026-10-25T02:15"),
    "st-johns-winter": ("America/St_Johns", "", "2026-11-01T02:30", "2026-11-01T11:30"),
    "st-johns-summer": ("America/St_Johns", "", "2026-03-08T03:30", "2026-03-08T10:30"),
}


@dataclass
class Night:
    visit: Visit
    zone: ZoneInfo
    start: datetime
    end: datetime
    address: str

    def at(self, page: Page, chart: str, x: float) -> datetime:
        box = page.locator(f"[data-chart={chart}] .nsewdrag").first.bounding_box()
        assert box is not None
        return self.start + (self.end - self.start) * ((x - box["x"]) / box["width"])

    def drag(self, page: Page, chart: str, start: float, end: float) -> tuple[datetime, datetime]:
        """Drag from *start* to *end* [0..1], and return the instants dragged over."""
        page.locator(f"[data-chart={chart}]").scroll_into_view_if_needed()
        box = page.locator(f"[data-chart={chart}] .nsewdrag").first.bounding_box()
        assert box is not None
        first, last = (box["x"] + box["width"] * each for each in (start, end))
        page.mouse.move(first, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(last, box["y"] + box["height"] - 20, steps=6)
        page.mouse.up()
        return self.at(page, chart, first), self.at(page, chart, last)


@pytest.fixture(scope="module", params=list(CASES))
def night(
    request: pytest.FixtureRequest,
    browser: Browser,
    serve: Serve,
    traffic: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Night]:
    zone, chosen, *ends = CASES[request.param]
    start, end = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in ends)
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('night')}/night.db", clock=end.timestamp)
    shapes, random = {"forward": traffic.Shape(10), "queue": traffic.Shape(2)}, np.random.default_rng(7)
    series = Series("night", "1", "demo", "m", "1", "/", "cuda:0", "ok")
    for at in range(int(start.timestamp()), int(end.timestamp()), 300):
        store.write([Batch(f"{at}", [*traffic.points(series, at, traffic.draw(shapes, 40, random))], [], 0, "night")])
    store.maintain()
    context = browser.new_context(viewport=DESKTOP, timezone_id=zone, reduced_motion="reduce")
    visit = Visit(context.new_page(), serve(store, clock=end.timestamp))
    window = "&".join(f"{key}={int(at.timestamp() * 1000)}" for key, at in (("from", start), ("to", end)))
    address = f"/s/night?t=50&{window}" + (f"&tz={chosen}" if chosen else "")
    visit.go(address)
    yield Night(visit, ZoneInfo(chosen.upper() or zone), start, end, address)
    context.close()
    store.close()
    assert visit.trouble == []


def labels(page: Page, chart: str) -> list[tuple[str, float]]:
    found = page.locator(f"[data-chart={chart}] .xtick text")
    boxes = [found.nth(number).bounding_box() for number in range(found.count())]
    pairs = zip(found.all_text_contents(), boxes, strict=True)
    return [(text, box["x"] + box["width"] / 2) for text, box in pairs if box is not None and box["width"]]


def clock(at: datetime) -> str:
    return f"{at:%H:%M}" if at.hour or at.minute else f"{at.day} {at:%b}"


@pytest.mark.parametrize("chart", ["over", "heat"])
def test_an_axis_and_its_hover_show_the_reader_s_clock(night: Night, chart: str) -> None:
    page = night.visit.go(night.address)
    page.locator(f"[data-chart={chart}]").scroll_into_view_if_needed()
    shown = labels(page, chart)
    instants = [night.at(page, chart, x) for _, x in shown]
    # The step under the pointer, or its neighbour.
    pointed = night.start + (night.end - night.start) * 0.4
    near = {f"{pointed.astimezone(night.zone) + timedelta(minutes=index):%H:%M}" for index in range(-8, 9)}
    seen = page.locator(f"[data-chart={chart}] .hoverlayer").first
    hover(page, chart, 0.4, lambda: expect(seen).to_contain_text(re.compile("|".join(near)), timeout=SOON))

    assert len(shown) >= 3
    for (text, _), at in zip(shown, instants, strict=True):
        nearest = datetime.fromtimestamp(round(at.timestamp() / 900) * 900, night.zone)
        assert abs(nearest - at) < timedelta(minutes=4)
        # The first one after a change has the name of its clock, too.
        assert re.sub(" [A-Z]{3,4}$", "", text) == clock(nearest)


def test_dragging_opens_the_instants_dragged_over(night: Night) -> None:
    page = night.visit.go(night.address)
    dragged = night.drag(page, "over", 0.3, 0.6)
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    page.wait_for_url(lambda url: night.address not in url)
    opened = [datetime.fromtimestamp(int(each) / 1000, UTC) for each in re.findall(r"(?:from|to)=(\d+)", page.url)]
    night.visit.settled()

    assert abs(opened[0] - dragged[0]) < timedelta(minutes=3)
    assert abs(opened[1] - dragged[1]) < timedelta(minutes=3)


def test_a_box_in_the_heat_map_selects_the_instants_in_it(night: Night) -> None:
    page = night.visit.go(f"{night.address}&d=select")
    dragged = night.drag(page, "heat", 0.3, 0.6)
    page.wait_for_url(re.compile(r"sel="))
    start, end = re.findall(r"sel=[^&]*?:(\d{10}):(\d{10})", page.url.replace("%3A", ":"))[0]
    night.visit.settled()

    assert abs(datetime.fromtimestamp(int(start), UTC) - dragged[0]) < timedelta(minutes=3)
    assert abs(datetime.fromtimestamp(int(end), UTC) - dragged[1]) < timedelta(minutes=3)


def test_a_saved_file_shows_the_same_times_elsewhere(night: Night, browser: Browser, tmp_path: Path) -> None:
    page = night.visit.go(night.address)
    page.locator("[data-chart=over]").scroll_into_view_if_needed()
    wanted = [text for text, _ in labels(page, "over")]
    with page.expect_download() as download:
        page.locator(".top [data-do=save]").click()
    download.value.save_as(tmp_path / "saved.html")
    context = browser.new_context(viewport=DESKTOP, timezone_id="Pacific/Auckland")
    opened = context.new_page()
    opened.goto((tmp_path / "saved.html").as_uri())
    opened.wait_for_selector("[data-chart=over][data-drawn]")
    opened.locator("[data-chart=over]").scroll_into_view_if_needed()
    head, saved = opened.locator("header.made").inner_text(), [text for text, _ in labels(opened, "over")]
    first, last = night.drag(opened, "over", 0.6, 0.85)
    expect(opened.locator("[data-chart=over] .xtick text").first).not_to_have_text(saved[0], timeout=SOON)
    zoomed = labels(opened, "over")
    box = opened.locator("[data-chart=over] .nsewdrag").first.bounding_box()
    assert box is not None
    shares = [(x - box["x"]) / box["width"] for _, x in zoomed]
    context.close()

    assert saved == wanted
    assert f"times in {night.zone.key}" in head.replace("Calcutta", "Kolkata").replace("Katmandu", "Kathmandu")
    assert len(zoomed) >= 3
    for (text, _), share in zip(zoomed, shares, strict=True):
        at = first + (last - first) * share
        near = {clock((at + timedelta(minutes=index)).astimezone(night.zone)) for index in range(-4, 5)}
        assert text in near
