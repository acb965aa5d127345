"""A service after a rollout in a browser: what its replicas loaded, and the switch that leaves cold requests out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from playwright.sync_api import expect

from stagelens.store import Batch, Store
from tests.dashboard.goldens import complaint
from tests.dashboard.rollout import fleet
from tests.dashboard.tabs import PHONE, OpenTab, Serve, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def address(serve: Serve, store_of: Callable[[Iterable[Batch]], Store]) -> str:
    return serve(store_of(fleet()))


def test_the_replicas_page_has_no_errors_and_fits_phones(open_tab: OpenTab, address: str) -> None:
    for theme in ("light", "dark"):
        visit = open_tab(address, color_scheme=theme, reduced_motion="reduce")
        page = visit.go("/s/shop/replicas?from=now-15m")
        difference = complaint(screenshot(page, f"replicas-{theme}"), f"replicas-{theme}")
        complaints = serious_violations(page)
        page.set_viewport_size(PHONE)
        screenshot(page, f"replicas-phone-{theme}")
        width = page.evaluate("document.documentElement.scrollWidth")

        assert difference == ""
        assert complaints == []
        assert width == PHONE["width"]
        assert visit.trouble == []


def test_cold_requests_are_excluded_and_included_by_a_button(open_tab: OpenTab, address: str) -> None:
    page = open_tab(address).go("/s/shop?from=now-15m")
    percentiles = page.get_by_role("application", name="Stages of the latency by percentile")
    expect(percentiles).to_have_accessible_name(re.compile("Cold start"))
    page.get_by_role("link", name="Exclude 40 cold").click()
    expect(percentiles).not_to_have_accessible_name(re.compile("Cold start"))
    page.get_by_role("navigation", name="Of this service").get_by_role("link", name="Traces").click()
    page.wait_for_url("**/s/shop/traces?*cold=0*")
    page.wait_for_selector("#root:not([aria-busy=true]) [data-title*='Traces']")
    page.get_by_role("link", name="40 cold requests excluded: show all").click()
    page.wait_for_url(lambda url: "cold=" not in url)
