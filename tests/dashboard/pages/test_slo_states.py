"""Pages of a stale objective, one in maintenance, one that was removed, and without any objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from dash import html

from stagelens.alerts.delivery.message import Ending
from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.incidents.lifecycle import save_incident
from stagelens.dashboard.pages.events import timeline_events
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.pages.slo import time_to_exhaustion
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import SHAPES, WORDS
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Store
from tests.dashboard import notified_store
from tests.dashboard.rendering import (
    alerts_of,
    all_of,
    check_views,
    client_of,
    context_at,
    data_at,
    page_at,
    plain,
    shown,
    source_of,
)
from tests.dashboard.served_versions import NOW

SLOS = """slos:
  - {name: hot-latency, service: hot, objective: 0.99, threshold: 30ms, window: 30d}
  - {name: calm-latency, service: calm, objective: 0.9, threshold: 1s, window: 7d}
"""
WORK = "maintenance: [{from: 2026-11-20T11:50Z, to: 2026-11-20T13:30Z, why: new disks, services: [hot]}]\n"
# Longer than the collector may do nothing, and too short for any window to forget what it last counted.
DEAD = timedelta(minutes=10)


@pytest.fixture
def stale(burning_store: Store, tmp_path: Path) -> Source:
    return source_of(burning_store, tmp_path, SLOS, now=NOW + DEAD)


@pytest.fixture
def in_maintenance(burning_store: Store, tmp_path: Path) -> Source:
    return source_of(burning_store, tmp_path, SLOS + WORK)


def beside(source: Source) -> str:
    return text_of(side(context_at(source, "/", source.now()), "/", source.state()))


def status_of(source: Source, name: str) -> SloStatus:
    return next(slo for slo in source.slos() if slo.slo.name == name)


def test_states_are_distinguishable_without_colour(in_maintenance: Source) -> None:
    pills = [
        each
        for each in all_of(page_at(in_maintenance, "/").body, html.Span)
        if "paused" in str(getattr(each, "className", ""))
    ]

    assert SHAPES.keys() == WORDS.keys()
    assert len(set(SHAPES.values())) == len(set(WORDS.values())) == len(SHAPES)
    assert [text_of(pill) for pill in pills] == ["In maintenance"]
    assert any("dot paused" in str(getattr(pill, "className", "")) for pill in all_of(pills, html.I))


def test_a_dead_collector_is_shown_on_every_page(stale: Source) -> None:
    check_views("slo_stale", stale, now=stale.now())
    texts = [beside(stale), *(shown(stale, path) for path in ("/slo/calm-latency", "/", "/s/calm"))]

    assert "2 stale" in texts[0]
    assert [text for text in texts if "Healthy" in text or "Burning" in text] == []


def test_a_stale_objective_has_no_forecast(stale: Source) -> None:
    found = status_of(stale, "hot-latency")

    assert (found.burn_1h or 0) > 1
    assert time_to_exhaustion(replace(found, exhausted_in=timedelta(hours=3))) is None


def test_maintenance_is_not_burning_and_shows_its_numbers(in_maintenance: Source) -> None:
    check_views("slo_maintenance", in_maintenance)
    series = data_at(in_maintenance, "/slo/hot-latency").charts["budget"].frame
    left = status_of(in_maintenance, "hot-latency").budget_left
    assert series is not None
    assert left is not None

    assert series["budget left (%)"].iloc[-1] == pytest.approx(100 * left, abs=0.02)
    assert "Burning" not in shown(in_maintenance, "/slo/hot-latency") + shown(in_maintenance, "/") + beside(
        in_maintenance
    )


def test_states_that_need_action_come_first(burning_store: Store, tmp_path: Path) -> None:
    slos = SLOS + "  - {name: failing-up, service: failing, objective: 0.99, window: 30d}\n" + WORK
    source = source_of(burning_store, tmp_path, slos)

    assert [slo.state for slo in source.slos()] == ["burning", "healthy", "maintenance"]
    assert [row.service for row in urgent_first(context_at(source, "/"))] == ["failing", "calm", "hot"]
    assert "failing-up has" in shown(source, "/slo") or "failing-up is" in shown(source, "/slo")


def test_the_overview_counts_only_healthy_objectives_as_healthy(burning_store: Store, tmp_path: Path) -> None:
    for slos, text in (
        (SLOS, "The service with an objective meets it."),
        (SLOS + WORK.replace("hot", "calm"), "0 of 1 services with an objective meet it; 1 in maintenance."),
    ):
        assert text in plain(shown(source_of(burning_store, tmp_path, slos), "/?q=calm"))


def test_the_api_returns_state_maintenance_and_start_time(burning_store: Store, tmp_path: Path) -> None:
    alerts = alerts_of(burning_store, tmp_path, SLOS + WORK)
    hot, calm = (
        client_of(burning_store, alerts, now).get(f"/api/v1/query/slo?name={name}").get_json()["objectives"][0]
        for name, now in (("hot-latency", NOW), ("calm-latency", NOW + DEAD))
    )

    assert (hot["state"], hot["work"]) == ("maintenance", {"why": "new disks", "until": "2026-11-20T13:30:00Z"})
    assert hot["stale_since"] is None
    assert (calm["state"], calm["stale_since"], calm["work"]) == ("stale", "2026-11-20T12:00:00Z", None)


@pytest.mark.parametrize(
    ("slos", "why"), [("", "there is no slo.yaml"), ("slos: [{name: a}]", "slo.yaml cannot be read")]
)
def test_missing_objectives_are_reported_with_the_fix(
    burning_store: Store, tmp_path: Path, slos: str, why: str
) -> None:
    source = source_of(burning_store, tmp_path, slos)
    overview, page = plain(shown(source, "/")), plain(shown(source, "/slo"))

    assert "No SLO is evaluated" in overview
    assert why in overview
    assert why in page
    assert "- name: checkout-latency" in page
    assert "inside" not in overview


def test_an_objective_or_disabled_alerts_remove_the_warning(burning_store: Store, in_maintenance: Source) -> None:
    for source in (in_maintenance, source_of(burning_store)):
        assert "No SLO is evaluated" not in shown(source, "/")


ENDINGS: Mapping[Ending, tuple[str, str]] = {
    "recovered": ("Resolved", "over"),
    "removed": ("Closed", "SLO removed"),
    "no_data": ("Closed", "no more data"),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_an_incident_with_an_unknown_end_is_closed_not_resolved(store: Store, tmp_path: Path, ending: Ending) -> None:
    ended = NOW - timedelta(minutes=1)
    gone = replace(notified_store.record("sl-gone", "gone", 9.0, 720), resolved_at=ended.timestamp(), ending=ending)
    with store.transaction() as connection:
        save_incident(connection, gone)
    source = source_of(store, tmp_path, SLOS)
    over = next(event for event in timeline_events(context_at(source, "/events")) if event.at == ended)
    badge, title = ENDINGS[ending]

    assert data_at(source, "/incidents").tables[0].rows[0][0] == badge
    assert (over.badge, over.title) == (badge, f"gone: {title}")
    assert over.href.startswith("/incidents/" if ending == "removed" else "/slo/gone")
    removed, never = ("This objective was removed" in shown(source, f"/slo/{name}") for name in ("gone", "never-was"))
    assert (removed, never) == (True, False)
