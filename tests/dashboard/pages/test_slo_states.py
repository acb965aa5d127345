"""Pages of a stale objective, one in maintenance, one that was removed, and without any objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dash import html

from stagelens.alerts.delivery.message import Ending
from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.incidents.lifecycle import save_incident
from stagelens.alerts.objectives.maintenance import MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.events import timeline_events
from stagelens.dashboard.pages.incidents import rules_card
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.pages.slo import time_to_exhaustion
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import SHAPES, WORDS
from stagelens.dashboard.ui.page_export import page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.routing import context_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Store
from tests.dashboard import notified_store
from tests.dashboard.burning_slos import ENV, NOW
from tests.dashboard.rendering import page_at, shown

SLOS = """slos:
  - {name: hot-latency, service: hot, objective: 0.99, threshold: 30ms, window: 30d}
  - {name: calm-latency, service: calm, objective: 0.9, threshold: 1s, window: 7d}
"""
WORK = "maintenance: [{from: 2026-11-20T11:50Z, to: 2026-11-20T13:30Z, why: new disks, services: [hot]}]\n"
# Longer than the collector may do nothing, and too short for any window to forget what it last counted.
DEAD = timedelta(minutes=10)


def source_of(store: Store, folder: Path, slos: str, later: timedelta = timedelta(0)) -> Source:
    path = folder / "slo.yaml"
    path.write_text(slos, encoding="utf-8")
    return Source(store, AlertsReader(store, LiveSloFile(path, ENV)), (NOW + later).timestamp)


@pytest.fixture
def stale(burning_store: Store, tmp_path: Path) -> Source:
    return source_of(burning_store, tmp_path, SLOS, DEAD)


@pytest.fixture
def in_maintenance(burning_store: Store, tmp_path: Path) -> Source:
    return source_of(burning_store, tmp_path, SLOS + WORK)


def page_text_at(source: Source, address: str) -> str:
    return shown(source, address).replace("\u202f", " ").replace("\xa0", " ")


def beside(source: Source) -> str:
    return text_of(side(context_of(parse("/", "", source.now()), source), "/", source.state()))


def status_of(source: Source, name: str) -> SloStatus:
    return next(each for each in source.slos() if each.slo.name == name)


def test_states_are_distinguishable_without_colour() -> None:
    assert SHAPES.keys() == WORDS.keys()
    assert len(set(SHAPES.values())) == len(set(WORDS.values())) == len(SHAPES)


def test_a_dead_collector_is_shown_on_every_page(stale: Source) -> None:
    pages = {path: page_text_at(stale, path) for path in ("/slo/calm-latency", "/", "/s/calm")}

    assert (
        "calm-latency is not evaluated: the collector has not ingested or aggregated data since 12:00. Last known state: 100 %"
        in (pages["/slo/calm-latency"])
    )
    assert "2 objectives · 2 stale" in pages["/slo/calm-latency"]
    assert "No SLO is evaluated: the collector is not working" in pages["/"]
    assert "0of 2 2 stale" in pages["/"]
    assert "Stale since 12:00" in pages["/s/calm"]
    assert "2 stale" in beside(stale)
    for text in (*pages.values(), beside(stale)):
        assert "Healthy" not in text
        assert "Burning" not in text


def test_a_stale_objective_has_no_forecast(stale: Source) -> None:
    found = status_of(stale, "hot-latency")
    rules = page_data([rules_card(found)]).tables[0].rows
    text = page_text_at(stale, "/slo/hot-latency")

    assert (found.burn_1h or 0) > 1
    assert {row[0] for row in rules} == {"Not evaluated"}
    assert time_to_exhaustion(replace(found, exhausted_in=timedelta(hours=3))) is None
    assert "– not evaluated since 12:00" in text  # noqa: RUF001 - an en dash stands for unknown
    assert "gone in" not in text


def test_maintenance_is_not_burning_and_shows_its_numbers(in_maintenance: Source) -> None:
    text, overview = page_text_at(in_maintenance, "/slo/hot-latency"), page_text_at(in_maintenance, "/")
    rules = page_data([rules_card(status_of(in_maintenance, "hot-latency"))]).tables[0].rows

    assert "2 objectives · 1 in maintenance" in text
    assert (
        "target 99 %). Maintenance window until 13:30 (new disks): its requests do not count, and notifications are paused."
        in text
    )
    assert "paused maintenance window until 13:30" in text
    assert {row[0] for row in rules} == {"Paused"}
    assert "In maintenance until 13:30 (new disks)" in page_text_at(in_maintenance, "/s/hot")
    assert "In maintenance until 13:30 (new disks)" in overview
    assert "1of 2 1 in maintenance" in overview
    assert "Burning" not in text + overview + beside(in_maintenance)


def test_the_list_names_each_state(in_maintenance: Source) -> None:
    found = page_at(in_maintenance, "/slo")
    rows = {row[0].split()[0]: row[0] for row in page_data(found.body).tables[0].rows}

    assert rows["calm-latency"].endswith("Healthy")
    assert rows["hot-latency"].replace("\u202f", " ").endswith("In maintenance until 13:30 (new disks)")


def test_the_budget_series_excludes_maintenance(in_maintenance: Source) -> None:
    found = page_at(in_maintenance, "/slo/hot-latency")
    series = page_data(found.body).charts["budget"].frame
    left = status_of(in_maintenance, "hot-latency").budget_left
    assert series is not None
    assert left is not None

    assert series["budget left (%)"].iloc[-1] == pytest.approx(100 * left, abs=0.02)
    assert "Requests during maintenance windows are shown" in shown(in_maintenance, "/slo/hot-latency?from=now-1h")


def test_states_that_need_action_come_first(burning_store: Store, tmp_path: Path) -> None:
    slos = SLOS + "  - {name: failing-up, service: failing, objective: 0.99, window: 30d}\n" + WORK
    source = source_of(burning_store, tmp_path, slos)
    context = context_of(parse("/", "", NOW), source)

    assert [each.state for each in source.slos()] == ["burning", "healthy", "maintenance"]
    assert [row.service for row in urgent_first(context)] == ["failing", "calm", "hot"]
    assert "failing-up has" in shown(source, "/slo") or "failing-up is" in shown(source, "/slo")


def test_the_overview_counts_only_healthy_objectives_as_healthy(burning_store: Store, tmp_path: Path) -> None:
    before = page_text_at(source_of(burning_store, tmp_path, SLOS), "/?q=calm")
    during = page_text_at(source_of(burning_store, tmp_path, SLOS + WORK.replace("hot", "calm")), "/?q=calm")

    assert "The service with an objective meets it." in before
    assert "0 of 1 services with an objective meet it; 1 in maintenance." in during


def test_the_api_returns_state_maintenance_and_start_time(
    burning_store: Store, in_maintenance: Source, tmp_path: Path
) -> None:
    planned_alerts = AlertsReader(burning_store, LiveSloFile(tmp_path / "slo.yaml", ENV))
    client = Dashboard(DashboardConfig(), burning_store, planned_alerts, clock=NOW.timestamp).server.test_client()
    during = client.get("/api/v1/query/slo?name=hot-latency").json
    late = Dashboard(DashboardConfig(), burning_store, planned_alerts, clock=(NOW + DEAD).timestamp)
    dead = late.server.test_client().get("/api/v1/query/slo?name=calm-latency").json
    assert during is not None
    assert dead is not None
    hot, calm = during["objectives"][0], dead["objectives"][0]

    assert (hot["state"], hot["work"]) == ("maintenance", {"why": "new disks", "until": "2026-11-20T13:30:00Z"})
    assert hot["stale_since"] is None
    assert (calm["state"], calm["stale_since"], calm["work"]) == ("stale", "2026-11-20T12:00:00Z", None)
    assert status_of(in_maintenance, "hot-latency").slo.maintenance == MaintenanceCalendar(
        (
            OneTimeWindow(
                NOW.replace(hour=11, minute=50, second=0), NOW.replace(hour=13, minute=30, second=0), "new disks"
            ),
        )
    )


@pytest.mark.parametrize(
    ("text_of_file", "why"),
    [(None, "there is no slo.yaml"), ("slos: [{name: a}]", "slo.yaml cannot be read")],
)
def test_missing_objectives_are_reported_with_the_fix(
    burning_store: Store, tmp_path: Path, text_of_file: str | None, why: str
) -> None:
    path = tmp_path / "slo.yaml"
    if text_of_file is not None:
        path.write_text(text_of_file, encoding="utf-8")
    alerts = AlertsReader(burning_store, LiveSloFile(path if text_of_file else None, ENV))
    source = Source(burning_store, alerts, NOW.timestamp)
    overview, page = page_text_at(source, "/"), page_text_at(source, "/slo")

    assert "No SLO is evaluated" in overview
    assert why in overview
    assert f"{why}" in page
    assert "- name: checkout-latency" in page
    assert "inside" not in overview


def test_an_objective_or_disabled_alerts_remove_the_warning(burning_store: Store, in_maintenance: Source) -> None:
    for source in (in_maintenance, Source(burning_store, None, NOW.timestamp)):
        assert "No SLO is evaluated" not in shown(source, "/")


ENDINGS: Mapping[Ending, tuple[str, str]] = {
    "recovered": ("Resolved", "over"),
    "removed": ("Closed", "SLO removed"),
    "no_data": ("Closed", "no more data"),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_an_incident_with_an_unknown_end_is_closed_not_resolved(tmp_path: Path, ending: Ending) -> None:
    (tmp_path / "slo.yaml").write_text(SLOS, encoding="utf-8")
    store, ended = Store.open(f"sqlite:///{tmp_path / 'own.db'}", clock=NOW.timestamp), NOW - timedelta(minutes=1)
    gone = replace(notified_store.record("sl-gone", "gone", 9.0, 720), resolved_at=ended.timestamp(), ending=ending)
    with store.transaction() as connection:
        save_incident(connection, gone)
    source = Source(store, AlertsReader(store, LiveSloFile(tmp_path / "slo.yaml", ENV)), NOW.timestamp)
    page = page_at(source, "/incidents")
    row = page_data(page.body).tables[0].rows[0]
    over = next(each for each in timeline_events(context_of(parse("/events", "", NOW), source)) if each.at == ended)
    removed, never = (shown(source, f"/slo/{name}") for name in ("gone", "never-was"))
    store.close()
    badge, title = ENDINGS[ending]

    assert row[0] == badge
    assert (over.badge, over.title) == (badge, f"gone: {title}")
    assert over.href.startswith("/incidents/" if ending == "removed" else "/slo/gone")
    assert "This objective was removed from the SLO file." in removed
    assert "This objective was removed from the SLO file" not in never


def test_every_state_word_has_a_shape(in_maintenance: Source) -> None:
    found = page_at(in_maintenance, "/")
    pills = [each for each in _all(found.body, html.Span) if "paused" in str(getattr(each, "className", ""))]

    assert [text_of(each) for each in pills] == ["In maintenance"]
    assert any("dot paused" in str(getattr(each, "className", "")) for each in _all(pills, html.I))


def _all(node: Any, kind: type) -> list[Any]:
    if isinstance(node, list | tuple):
        return [found for each in node for found in _all(each, kind)]
    inside = _all(getattr(node, "children", None), kind) if node is not None and not isinstance(node, str) else []
    return [node, *inside] if isinstance(node, kind) else inside
