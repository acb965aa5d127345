"""The overview in Chromium: hundreds of services, the field that narrows them, links in heads and cells, and nearly nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.many_services import NOW, crowd_at
from tests.dashboard.tabs import DESKTOP, OpenTab, Serve, Visit, screenshot, serious_violations

pytestmark = pytest.mark.stacks

SLOS = "slos: [{name: one, service: service-250, objective: 0.99, threshold: 10ms, window: 30d}]"


@pytest.fixture(scope="module")
def crowded(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard of 300 services, one of which burns its budget."""
    folder = tmp_path_factory.mktemp("crowded")
    slos = folder / "slo.yaml"
    slos.write_text(SLOS)
    store = crowd_at(folder / "crowd.db")
    yield serve(store, AlertsReader(store, LiveSloFile(slos, {})))
    store.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "dark")])
def test_hundreds_of_services_have_no_errors_and_fit(
    open_tab: OpenTab, crowded: str, size: dict[str, int], scheme: str
) -> None:
    visit = open_tab(crowded, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visit.go("/")
    screenshot(page, f"overview-300-{size['width']}-{scheme}")

    assert page.locator(".fleet tbody tr[data-href]").count() == 50
    assert page.locator(".fleet tbody a.n").first.inner_text() == "service-250"
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    assert page.evaluate("document.querySelectorAll('*').length") < 2500
    assert serious_violations(page) == []
    assert visit.trouble == []


def test_the_list_is_narrowed_sorted_and_paged_by_its_address(open_tab: OpenTab, crowded: str) -> None:
    visit = open_tab(crowded, reduced_motion="reduce")
    page = visit.go("/")
    names = page.locator(".fleet tbody a.n")
    page.keyboard.press("/")
    # At once: a pause between two letters is a step of the history.
    page.keyboard.insert_text("service-01")
    expect(page).to_have_url(re.compile(r"/\?q=service-01$"))
    expect(names).to_have_count(10)
    page.locator(".fleet th a", has_text="p99").first.click()
    expect(page.locator(".fleet th[aria-sort=descending]")).to_have_text("p99")
    expect(names.first).to_have_text("service-019")
    page.locator(".fleet th a", has_text="p99").first.click()
    expect(names.first).to_have_text("service-010")
    typed = page.locator(".service-filter input").input_value()
    page.go_back()
    page.go_back()
    page.go_back()
    expect(names).to_have_count(50)
    left = page.locator(".service-filter input").input_value()
    page.locator("[aria-label=Page] a", has_text="6").click()
    expect(page).to_have_url(re.compile(r"/\?n=6$"))
    expect(names.last).to_have_text("service-299")

    assert (typed, left) == ("service-01", "")
    assert visit.trouble == []


def test_a_stage_bar_leads_to_its_percentile(visit: Visit) -> None:
    page = visit.go("/")
    page.locator("tr", has_text="vision-api").locator(".where").click()
    expect(page).to_have_url(re.compile(r"/s/vision-api\?p=99$"))
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title^='vision-api']")
    visit.settled()

    assert page.locator("h1").inner_text().startswith("vision-api")


def test_the_page_of_one_request_has_no_empty_cards(open_tab: OpenTab, serve: Serve, store: Store) -> None:
    histogram = Histogram()
    histogram.record(0.2)
    point = Point(Series("lonely"), REQUEST_DURATION, "forward", int(NOW.timestamp()) - 60, histogram)
    store.write([Batch("one", [point])])
    visit = open_tab(serve(store), reduced_motion="reduce")
    page = visit.go("/")
    screenshot(page, "overview-one-request")
    found = serious_violations(page)
    text = page.locator("#root").inner_text()

    assert "p99 needs" in text
    assert "could not be rendered" not in text
    assert found == []
    assert visit.trouble == []
