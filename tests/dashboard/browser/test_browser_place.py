"""The parts of a page arrive one by one, and new data on a page leave what the reader has opened, chosen and focused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from dash import html
from playwright.sync_api import Browser, expect

from stagelens.dashboard.pages import overview_table
from stagelens.store import Store
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import DESKTOP, Serve, Visit

pytestmark = pytest.mark.stacks


def test_a_refresh_preserves_opened_details_and_focus(
    browser: Browser, serve: Serve, store: Store, traffic: Any
) -> None:
    traffic.fill(store, NOW - timedelta(minutes=6), NOW)
    visit = Visit(browser.new_page(viewport=DESKTOP), serve(store))
    page = visit.go("/s/vision-api/advice")
    option = page.locator("main details summary").first
    option.click()
    before = page.locator("main").text_content() or ""
    elements = page.evaluate_handle("[document.querySelector('main details'), document.activeElement]")
    traffic.fill(store, NOW - timedelta(minutes=20), NOW - timedelta(minutes=6))
    page.evaluate("stagelens.refresh()")
    expect(page.locator("main")).not_to_have_text(before)
    preserved = page.evaluate(
        "([detail, focus]) => [detail.isConnected && detail.open, focus === document.activeElement]", elements
    )
    page.close()

    assert preserved == [True, True]
    assert visit.trouble == []


@pytest.fixture
def last_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    is_ready = threading.Event()

    def card(*_: object) -> html.P:
        assert is_ready.wait(60)
        return html.P("ready", id="last")

    monkeypatch.setattr(overview_table, "events_card", card)
    yield is_ready
    is_ready.set()


@pytest.mark.parametrize("start", ["/slo", "/?from=now-1h"])
def test_the_parts_of_a_page_are_shown_as_they_arrive(visit: Visit, last_card: threading.Event, start: str) -> None:
    last_card.set()
    page = visit.go(start)
    last_card.clear()
    page.evaluate("stagelens.go('/')")
    page.wait_for_selector("[data-title^='Overview'] [data-new] [data-chart=fleet][data-drawn]")
    is_busy = page.locator("#root").get_attribute("aria-busy")
    last_card.set()
    visit.settled()
    page.wait_for_selector("#last")

    assert is_busy == "true"
    assert page.locator("[data-new]").count() == 0
    assert page.locator("#side [aria-current=page]").inner_text().startswith("Overview")
    assert visit.trouble == []


def test_the_page_of_a_broken_connection_is_completed_by_the_next_refresh(
    visit: Visit, last_card: threading.Event
) -> None:
    last_card.set()
    page = visit.go("/slo")
    page.evaluate("""() => {
        const read = ReadableStreamDefaultReader.prototype.read;
        window.breaks = true;
        ReadableStreamDefaultReader.prototype.read = function () {
          return document.querySelector("[data-title^=Overview]") && window.breaks ? Promise.reject(new TypeError("network error")) : read.call(this);
        };
    }""")
    page.evaluate("stagelens.go('/')")
    page.wait_for_selector("html:not([data-loading]) [data-title^='Overview']")
    page.evaluate("window.breaks = false; stagelens.refresh()")
    page.wait_for_selector("#last")
    visit.settled()

    assert page.url == f"{visit.base}/"
    assert page.locator("#side [aria-current=page]").inner_text().startswith("Overview")
    assert visit.trouble == []


def test_an_element_beside_a_replaced_one_stays(visit: Visit) -> None:
    page = visit.go("/events")
    shown = page.evaluate("""() => {
        const put = (html) => stagelens.arrival(true).take(`<div class="page"><p>${html}</p></div>`, true);
        put("<b>1</b><i>2</i><i>3</i>");
        put("<u>4</u><i>5</i>");
        return document.querySelector("#root .page").innerHTML;
    }""")

    assert shown == '<p data-new=""><u>4</u><i>5</i></p>'
