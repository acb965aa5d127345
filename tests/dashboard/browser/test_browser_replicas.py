"""A slow replica in a browser: the pages that name it, in both themes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from tests.dashboard.slow_replica import NOW, SERVICE, store_of, traffic
from tests.dashboard.tabs import DESKTOP, PHONE, Visit, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard over the service."""
    store = store_of(tmp_path_factory.mktemp("slow"), traffic())
    alerts = AlertsReader(store, LiveSloFile(None, {}))
    served = Dashboard(DashboardConfig(port=0), store, alerts, clock=NOW.timestamp)
    served.start()
    yield "http://{}:{}".format(*served.address)
    served.stop()
    store.close()


@pytest.mark.parametrize("tab", ["", "/replicas", "/advice"])
def test_pages_with_a_slow_replica_have_no_errors_and_fit_phones(browser: Browser, address: str, tab: str) -> None:
    for theme in ("light", "dark"):
        context = browser.new_context(viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce")
        visit = Visit(context.new_page(), address)
        page = visit.go(f"/s/{SERVICE}{tab}?from=now-45m")
        name = f"slow-replica{tab.replace('/', '-')}"
        screenshot(page, f"{name}-{theme}")
        complaints = serious_violations(page)
        page.set_viewport_size(PHONE)
        screenshot(page, f"{name}-phone-{theme}")
        width = page.evaluate("document.documentElement.scrollWidth")
        context.close()

        assert complaints == []
        assert width == PHONE["width"]
        assert visit.trouble == []
