"""One filled store and one dashboard for all tests of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser, ViewportSize

from examples import synthetic
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Store
from tests.dashboard import burning_slos
from tests.dashboard.rendering import alerts_of
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import DESKTOP, OpenTab, Serve, Visit

ROOT = Path(__file__).parents[2]
HISTORY = timedelta(minutes=40)
SLOS = """slos:
  - name: vision-latency
    service: vision-api
    objective: 0.99
    threshold: 120ms
    window: 30d
  - name: chat-latency
    service: chat-llm
    objective: 0.95
    threshold: 6s
    window: 30d
"""


@pytest.fixture(scope="session")
def traffic() -> ModuleType:
    """The example that makes up traffic."""
    return synthetic


@pytest.fixture(scope="session")
def filled(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with three services, the first in two versions of which the second has a slow preprocess."""
    path = tmp_path_factory.mktemp("dashboard") / "filled.db"
    store = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    traffic.fill(store, NOW - HISTORY, NOW)
    yield store
    store.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    """An empty store at `NOW`."""
    return open_store(clock=NOW.timestamp)


@pytest.fixture(scope="module")
def open_module_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Store]]:
    """Opens empty stores at `NOW` that are closed with the module."""
    with ExitStack() as stores:

        def open_() -> Store:
            path = tmp_path_factory.mktemp("stores") / "stagelens.db"
            return stores.enter_context(closing(Store.open(f"sqlite:///{path}", clock=NOW.timestamp)))

        yield open_


@pytest.fixture(scope="module")
def store_of(open_module_store: Callable[[], Store]) -> Callable[[Iterable[Batch]], Store]:
    """Opens stores with batches that are closed with the module."""

    def store_of_(batches: Iterable[Batch]) -> Store:
        store = open_module_store()
        store.write(list(batches))
        store.maintain()
        return store

    return store_of_


@pytest.fixture(scope="session")
def burning_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store with burning objectives and its SLO file are."""
    return tmp_path_factory.mktemp("burning")


@pytest.fixture(scope="session")
def burning_store(burning_folder: Path, traffic: ModuleType) -> Iterator[Store]:
    """A store with objectives that burn for different reasons, with incidents and events."""
    store = burning_slos.fill(burning_folder, traffic)
    yield store
    store.close()


@pytest.fixture(scope="session")
def alerts(filled: Store, tmp_path_factory: pytest.TempPathFactory) -> AlertsReader:
    """The objectives of two of the services."""
    return alerts_of(filled, tmp_path_factory.mktemp("slo"), SLOS)


@pytest.fixture(scope="session")
def dashboard(filled: Store, alerts: AlertsReader) -> Iterator[Dashboard]:
    """The dashboard over the filled store, on a free port."""
    served = Dashboard(DashboardConfig(port=0), filled, alerts, clock=NOW.timestamp)
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(dashboard: Dashboard) -> FlaskClient:
    return dashboard.server.test_client()


@pytest.fixture(scope="session")
def source(filled: Store, alerts: AlertsReader) -> Source:
    """The filled store with its objectives."""
    return Source(filled, alerts, NOW.timestamp)


@pytest.fixture(scope="session")
def base(dashboard: Dashboard) -> str:
    """The address of the dashboard."""
    return "http://{}:{}".format(*dashboard.address)


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts dashboards that stop with the module, and returns their addresses."""
    with ExitStack() as started:

        def serve_(
            store: Store,
            alerts: AlertsReader | None = None,
            *,
            clock: Callable[[], float] = NOW.timestamp,
            **config: Any,
        ) -> str:
            dashboard = Dashboard(DashboardConfig(port=0, **config), store, alerts, clock=clock)
            dashboard.start()
            started.callback(dashboard.stop)
            return "http://{}:{}".format(*dashboard.address)

        yield serve_


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Opens tabs of their own that are closed with the test."""
    with ExitStack() as opened:

        def open_(address: str, viewport: ViewportSize = DESKTOP, **options: Any) -> Visit:
            context = browser.new_context(viewport=viewport, **options)
            opened.callback(context.close)
            return Visit(context.new_page(), address)

        yield open_


@pytest.fixture
def visit(open_tab: OpenTab, base: str) -> Iterator[Visit]:
    """A light desktop tab that must have been quiet when it is closed."""
    opened = open_tab(base, color_scheme="light", reduced_motion="reduce")
    yield opened
    assert opened.trouble == []
