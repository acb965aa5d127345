"""The pages of incidents in a browser: their looks, and their buttons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.store import Store
from tests.dashboard import many_incidents, notified_store
from tests.dashboard.tabs import PHONE, OpenTab, Serve, Visit, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture
def incidents_visit(open_tab: OpenTab, serve: Serve, store: Store) -> Iterator[Visit]:
    notified_store.fill(store)
    opened = open_tab(
        serve(store, AlertsReader(store, LiveSloFile(None, {}))), color_scheme="light", reduced_motion="reduce"
    )
    yield opened
    assert opened.trouble == []


@pytest.mark.parametrize(
    ("name", "path"), [("incidents", "/incidents"), ("incident", f"/incidents/{notified_store.OPEN}")]
)
def test_incident_pages_are_accessible_and_fit(incidents_visit: Visit, name: str, path: str) -> None:
    page = incidents_visit.go(path)
    complaints = serious_violations(page)
    screenshot(page, f"{name}-light")
    incidents_visit.prefer("dark")
    screenshot(page, f"{name}-dark")
    complaints += serious_violations(page)
    page.set_viewport_size(PHONE)
    screenshot(page, f"{name}-phone")

    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_an_incident_is_acknowledged_and_silenced_with_buttons(incidents_visit: Visit) -> None:
    page = incidents_visit.go(f"/incidents/{notified_store.OPEN}")
    page.get_by_role("button", name="Acknowledge", exact=True).focus()
    page.keyboard.press("Enter")
    page.locator("#announcement", has_text="a dashboard user acknowledged checkout-latency").wait_for()
    page.get_by_text("a dashboard user acknowledged it at").first.wait_for()
    expect(page.get_by_role("button", name="Undo acknowledgement")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#announcement", has_text="undid the acknowledgement of checkout-latency").wait_for()
    page.get_by_role("button", name="Acknowledge", exact=True).wait_for()
    with page.expect_response("**/api/v1/silences"):
        page.get_by_role("button", name="Silence 1h").click()
    page.get_by_text("Silenced until").wait_for()
    incidents_visit.go("/incidents")
    silence = page.get_by_role("button", name="End silence now: service checkout")
    silence.wait_for()
    with page.expect_response("**/end"):
        silence.click()
    page.get_by_text("1 silence", exact=True).wait_for()

    assert silence.count() == 0


def test_a_note_is_left_with_the_keyboard(incidents_visit: Visit) -> None:
    page = incidents_visit.go(f"/incidents/{notified_store.OPEN}")
    field = page.get_by_label("Note")
    field.focus()
    page.keyboard.type("rolled back to 1.9.3")
    page.keyboard.press("Enter")
    page.get_by_role("row", name="rolled back to 1.9.3").wait_for()

    expect(field).to_have_value("")
    assert serious_violations(page) == []


def test_a_group_unfolds_with_the_keyboard(open_tab: OpenTab, serve: Serve, store: Store) -> None:
    many_incidents.fill(store)
    visit = open_tab(
        serve(store, AlertsReader(store, LiveSloFile(None, {}))),
        viewport=PHONE,
        color_scheme="dark",
        reduced_motion="reduce",
    )
    page = visit.go("/incidents")
    fold = page.get_by_text("Notified together with 19 more incidents").first
    fold.focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="search-01: search-01-latency").wait_for()
    complaints, width = serious_violations(page), page.evaluate("document.documentElement.scrollWidth")
    fold.click()
    address = page.url

    assert complaints == []
    assert width <= PHONE["width"]
    assert address.endswith("/incidents")
    assert visit.trouble == []
