"""A slow replica in a browser: the pages that name it, in both themes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from tests.dashboard.slow_replica import SERVICE, store_of, traffic
from tests.dashboard.tabs import PHONE, OpenTab, Serve, screenshot, serious_violations

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def address(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = store_of(tmp_path_factory.mktemp("slow"), traffic())
    alerts = AlertsReader(store, LiveSloFile(None, {}))
    yield serve(store, alerts)
    store.close()


@pytest.mark.parametrize("tab", ["", "/replicas", "/advice"])
def test_pages_with_a_slow_replica_have_no_errors_and_fit_phones(open_tab: OpenTab, address: str, tab: str) -> None:
    for theme in ("light", "dark"):
        visit = open_tab(address, color_scheme=theme, reduced_motion="reduce")
        page = visit.go(f"/s/{SERVICE}{tab}?from=now-45m")
        name = f"slow-replica{tab.replace('/', '-')}"
        screenshot(page, f"{name}-{theme}")
        complaints = serious_violations(page)
        page.set_viewport_size(PHONE)
        screenshot(page, f"{name}-phone-{theme}")
        width = page.evaluate("document.documentElement.scrollWidth")

        assert complaints == []
        assert width == PHONE["width"]
        assert visit.trouble == []
