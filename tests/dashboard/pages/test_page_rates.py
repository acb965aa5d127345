"""A rate is divided by the time it is of: of services that are young, of those that stopped, and of a window before."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import UNKNOWN
from stagelens.store import Store
from tests.dashboard.rendering import shown
from tests.dashboard.served_versions import NOW, Served, write

PRICES = 'currency: "$"\nprices:\n' + "".join(f"  - service: {name}\n    per_hour: 3.6\n" for name in ("old", "young"))
OLD = Served("old", "1.0.0", 90)
Serve = Callable[..., Source]


@pytest.fixture
def serve(traffic: ModuleType, store: Store, tmp_path: Path) -> Serve:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)

    def serve(*served: Served) -> Source:
        write(store, traffic, *served)
        return Source(store, None, NOW.timestamp, config=DashboardConfig(prices=prices))

    return serve


def test_a_young_service_has_the_rate_and_cost_of_its_own_page(serve: Serve) -> None:
    source = serve(OLD, Served("young", "1.0.0", 10))
    fleet, own = (shown(source, address) for address in ("/", "/s/young"))

    assert "Requests 20/s" in own
    assert re.search(r"young .*? 20/s", fleet)
    assert "$50.0" in own
    assert fleet.count("$50.0") >= 2


def test_a_stopped_service_shows_its_last_request_time(serve: Serve) -> None:
    source = serve(OLD, Served("gone", "1.0.0", 60, 20))

    assert "No data since 11:40, for 20 m" in shown(source, "/s/gone?from=now-1h&tz=UTC")
    assert "no request for 20 m" in shown(source, "/s/gone/advice?from=now-1h")
    assert "Serving now 0/s" in shown(source, "/s/gone/capacity?from=now-1h")
    assert "no request for" not in shown(source, "/s/old?from=now-1h")


def test_a_previous_window_with_half_history_has_its_full_rate(serve: Serve) -> None:
    page = shown(serve(OLD), "/?from=now-1h")

    assert re.search(r"Requests 20/s ± 0 % vs prev\.", page)


def test_the_price_of_a_service_is_not_applied_to_one_version(serve: Serve) -> None:
    source = serve(OLD, replace(OLD, version="2.0.0", begins=10))
    whole, part = (shown(source, f"/s/old/capacity{query}") for query in ("", "?v=2.0.0"))

    assert "Cost per 1 M $" in whole
    assert f"Cost per 1 M {UNKNOWN} unknown with a filter" in part
    assert "No price is set" not in part
