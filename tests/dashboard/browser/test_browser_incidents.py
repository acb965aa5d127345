"""The pages of incidents in a browser: their looks, and their buttons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard import notified_store
from tests.dashboard.notified_store import NOW
from tests.dashboard.tabs import DESKTOP, PHONE, Visit, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture
def incidents_visit(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """A tab over a store with incidents."""
    store = Store.open(f"sqlite:///{tmp_path / 'told.db'}", clock=NOW.timestamp)
    notified_store.fill(store)
    served = Dashboard(DashboardConfig(port=0), store, AlertsReader(store, LiveSloFile(None, {})), clock=NOW.timestamp)
    served.start()
    host, port = served.address
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    opened = Visit(context.new_page(), f"http://{host}:{port}")
    yield opened
    context.close()
    served.stop()
    store.close()
    assert opened.trouble == []


@pytest.mark.parametrize(
    ("name", "path"), [("incidents", "/incidents"), ("incident", f"/incidents/{notified_store.OPEN}")]
)
def test_incident_pages_are_accessible_and_fit(incidents_visit: Visit, name: str, path: str) -> None:
    """Light, dark and on a phone: nothing that axe minds, nothing wider than the screen."""
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
    """The page shows the person who acknowledged; a silence is in the list until it is ended."""
    page = incidents_visit.go(f"/incidents/{notified_store.OPEN}")
    with page.expect_event("load"):
        page.get_by_role("button", name="Acknowledge").click()
    # A press on the picture that the server sends along, let go on the page that takes its place, is no click.
    incidents_visit.settled()
    page.get_by_text("a dashboard user acknowledged it").first.wait_for()
    # The page shows itself anew once it is silenced.
    with page.expect_response("**/api/v1/silences"), page.expect_event("load"):
        page.get_by_role("button", name="Silence 1h").click()
    incidents_visit.go("/incidents")
    silence = page.get_by_role("button", name="End now: silence of service checkout")
    silence.wait_for()
    with page.expect_response("**/end"):
        silence.click()
    page.get_by_text("1 silence", exact=True).wait_for()

    assert silence.count() == 0
