"""Controls of the header: each page shows a control if, and only if, it has an effect there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from stagelens.alerts.incidents import journal
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.core import names
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import PAGES, SERVICE_PAGES, context_of, page_of
from stagelens.dashboard.web.shell import environment_menu, time_menu
from stagelens.store import Batch, Event, Selection, Store
from stagelens.store.audit import AuditEntry
from tests.dashboard import notified_store
from tests.dashboard.conftest import SLOS
from tests.dashboard.pages.test_engines import CHAT, counted, pair
from tests.dashboard.rendering import context_at, source_of
from tests.dashboard.served_versions import NOW, Served, batches

TOKENS = {"prefill": 90, "decode": 900, "queue": 9, "overhead": 1}
STAGING = (Served("vision-api", "2.0.0", 60, rate=6), Served("chat-llm", "1.0.0", 60, 20, TOKENS, rate=3))
SERVICES = {"tokens": "chat-llm"}
LATEST, PAST, EARLIER = "from=now-15m", NOW - timedelta(minutes=12), NOW - timedelta(minutes=30)
FIXED = f"from={EARLIER.timestamp() * 1000:.0f}&to={PAST.timestamp() * 1000:.0f}"
# Addresses of a page whose content differs if the control has an effect, beside `LATEST`.
CHANGES = {
    "time": ("from=now-5m", FIXED),
    "vs": (f"{LATEST}&vs=off",),
    "env": (f"{LATEST}&env=staging", f"{LATEST}&env=demo"),
}


@pytest.fixture(scope="module")
def source(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("controls")
    store = Store.open(f"sqlite:///{folder / 's.db'}", clock=NOW.timestamp)
    traffic.fill(store, NOW - timedelta(minutes=40), NOW)
    for served in STAGING:
        store.write([_in_staging(batch) for batch in batches(traffic, served)])
    for minutes, environment in ((2, "demo"), (9, "staging"), (40, "demo")):
        series, at = replace(CHAT, environment=environment), int(NOW.timestamp()) - minutes * 60
        found = counted(60.0 * minutes, (0.0, 0.5, 400 * minutes), (0.5, 1.0, 580))
        points = pair(series, names.ENGINE_REQUEST, names.BY_ENGINE, found)
        store.write([Batch(f"engine {minutes}", [replace(point, at=at) for point in points])])
    store.maintain()
    for minutes, environment in ((3, ""), (10, "staging"), (25, "demo")):
        store.add_event(Event(NOW - timedelta(minutes=minutes), "", "note", "", "noted", environment=environment))
        store.add_audit_entry(AuditEntry(NOW - timedelta(minutes=minutes), "ann", "dashboard", "sign in"))
    notified_store.fill(store)
    _open_in_staging(store)
    yield source_of(store, folder, SLOS)
    store.close()


def _in_staging(batch: Batch) -> Batch:
    points: Any = batch.points
    moved = [replace(point, series=replace(point.series, environment="staging")) for point in points]
    return replace(batch, id=f"staging {batch.id}", points=moved)


def _open_in_staging(store: Store) -> None:
    made = notified_store.record("sl-staging", "vision-latency", 31.2, 720, "vision-api")
    made = replace(made, finding=replace(made.finding, where={"environment": "staging"}))
    with store.transaction() as connection:
        update = IncidentUpdate(made, "opened", notifies=True)
        journal.write_update(connection, update, ("slack",), NOW.timestamp() - 720)


def pages(source: Source) -> list[str]:
    exemplars = source.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"))
    of_one = ["/slo/vision-latency", f"/incidents/{notified_store.OPEN}", f"/traces/{exemplars['trace_id'].iloc[0]}"]
    of_services = [f"/s/{SERVICES.get(tab, 'vision-api')}{tab and '/'}{tab}" for tab in SERVICE_PAGES]
    return [*(f"/{path}" for path in PAGES if path != "compare"), "/compare?svc=vision-api", *of_one, *of_services]


def content(source: Source, address: str, query: str) -> str:
    path, _, search = address.partition("?")
    view = source.whole(parse(path, f"{search}&{query}", NOW))
    page = page_of(context_of(view, source))
    assert page is not None
    assert page.status == 200
    charts = page_data(page.body).charts.values()
    numbers = [chart.spoken if chart.frame is None else chart.spoken + chart.frame.to_csv() for chart in charts]
    return " ".join([*(text_of(each) for each in page.body), *numbers])


def test_every_page_shows_the_controls_that_have_an_effect_there(source: Source) -> None:
    wrong: list[str] = []
    for address in pages(source):
        before = content(source, address, LATEST)
        context = context_at(source, f"{address}{'&' if '?' in address else '?'}{LATEST}")
        menu = str(time_menu(context.view))
        offered = {
            "time": "data-window" in menu,
            "vs": "Compare with" in menu,
            "env": environment_menu(context) is not None,
        }
        for control, queries in CHANGES.items():
            has_effect = any(content(source, address, each) != before for each in queries)
            if has_effect != offered[control]:
                wrong.append(f"{address} {control}: {'hidden' if has_effect else 'without effect'}")

    assert wrong == []


def test_a_control_is_not_shown_where_nothing_changes() -> None:
    live, past, trace = (
        parse(path, query, NOW).controls for path, query in (("/", LATEST), ("/", FIXED), ("/traces/1", ""))
    )

    assert "later" in past - live
    assert "refresh" in live - past
    assert not trace
