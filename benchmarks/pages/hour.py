"""An hour of refreshes in minutes: the same beats with new data at each, and what scripts hold after them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from playwright.sync_api import Browser, Page
from storage.tables import table

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store

from .visits import VIEWPORT, heap

_BEATS, _LOOKS = 240, 4
_BEAT = timedelta(seconds=15)
_HISTORY = timedelta(minutes=20)
_SERVICE = "vision-api"
# What the beat of the page does, without its waiting.
_REFRESH = "() => stagelens.refresh()"


def hour_of_refreshes(browser: Browser, drawn: Callable[[Page], None]) -> str:
    """Return the table of the heap over an hour of refreshes of a service's page, each of which brings new data."""
    traffic = _traffic()
    now = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
    clock = [now.timestamp()]
    with TemporaryDirectory() as folder:
        store = Store.open(f"sqlite:///{folder}/hour.db", clock=lambda: clock[0])
        traffic.fill(store, now - _HISTORY, now)
        served = Dashboard(DashboardConfig(port=0), store, clock=lambda: clock[0])
        served.start()
        context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
        page = context.new_page()
        session = context.new_cdp_session(page)
        page.goto(f"http://127.0.0.1:{served.address[1]}/s/{_SERVICE}?from=now-1h")
        drawn(page)
        rows = [("0", f"{heap(session):.1f}", _nodes(page))]
        for beat in range(1, _BEATS + 1):
            last, clock[0] = clock[0], clock[0] + _BEAT.total_seconds()
            traffic.fill(store, datetime.fromtimestamp(last, UTC), datetime.fromtimestamp(clock[0], UTC))
            with page.expect_response(lambda response: "/parts?" in response.url):
                page.evaluate(_REFRESH)
            drawn(page)
            if beat % (_BEATS // _LOOKS) == 0:
                rows.append((str(beat), f"{heap(session):.1f}", _nodes(page)))
        context.close()
        served.stop()
        store.close()
    return table(("refreshes", "heap [MB]", "nodes"), rows)


def _nodes(page: Page) -> str:
    return str(page.evaluate("document.querySelectorAll('*').length"))


def _traffic() -> ModuleType:
    """Return the example that makes up traffic."""
    path = Path(__file__).parents[2] / "examples" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("synthetic_traffic", path)
    assert spec is not None  # noqa: S101 - the file is there
    assert spec.loader is not None  # noqa: S101
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found
