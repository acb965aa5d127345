"""A service after a rollout in a browser: what its replicas loaded, and the switch that leaves cold requests out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from tests.dashboard.goldens import complaint
from tests.dashboard.rollout import NOW, fleet, source_of
from tests.dashboard.tabs import DESKTOP, PHONE, Visit, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard over the service."""
    store = source_of(tmp_path_factory.mktemp("rollout"), "stagelens.db", fleet())
    served = Dashboard(DashboardConfig(port=0), store, None, clock=NOW.timestamp)
    served.start()
    yield "http://{}:{}".format(*served.address)
    served.stop()
    store.close()


def test_the_replicas_page_has_no_errors_and_fits_phones(browser: Browser, address: str) -> None:
    for theme in ("light", "dark"):
        context = browser.new_context(viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce")
        visit = Visit(context.new_page(), address)
        page = visit.go("/s/shop/replicas?from=now-15m")
        difference = complaint(screenshot(page, f"replicas-{theme}"), f"replicas-{theme}")
        complaints = serious_violations(page)
        page.set_viewport_size(PHONE)
        screenshot(page, f"replicas-phone-{theme}")
        width = page.evaluate("document.documentElement.scrollWidth")
        context.close()

        assert difference == ""
        assert complaints == []
        assert width == PHONE["width"]
        assert visit.trouble == []


def test_cold_requests_are_excluded_and_included_by_a_button(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = Visit(context.new_page(), address).go("/s/shop?from=now-15m")
    percentiles = page.get_by_role("application", name="Stages of the latency by percentile")
    expect(percentiles).to_have_accessible_name(re.compile("Cold start"))
    page.get_by_role("link", name="Exclude 40 cold").click()
    expect(percentiles).not_to_have_accessible_name(re.compile("Cold start"))
    page.get_by_role("navigation", name="Of this service").get_by_role("link", name="Traces").click()
    page.wait_for_url("**/s/shop/traces?*cold=0*")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title*='Traces']")
    page.get_by_role("link", name="40 cold requests excluded: show all").click()
    page.wait_for_url(lambda url: "cold=" not in url)
    context.close()
