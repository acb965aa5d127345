"""How a service stands: the worst of what is known of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.reader import Incident
from stagelens.analysis.burn_rate import AlertTier
from stagelens.analysis.policies import Severity
from stagelens.analysis.slo_status import RuleStatus, SloState
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.pages.regressions import Release, regressions
from stagelens.dashboard.pages.service_status import service_status
from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.store import Store
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import context_at, shown, source_of
from tests.dashboard.served_versions import NOW

VIEW = parse("/", "", NOW)
PENDING = RuleStatus(
    AlertTier("page", 14.4, timedelta(hours=1), timedelta(minutes=5)), 3.0, 20.0, fires=False, pending=True
)


@pytest.fixture
def slo(burning_store: Store, tmp_path: Path) -> SloStatus:
    found = source_of(burning_store, tmp_path, SLO).slos()[0]
    return SloStatus(found.slo, 1000, 0, 1.0, 1.0, 10, 0.0, 0.0, "healthy", None)


@pytest.fixture
def release(burning_store: Store) -> Release:
    """Version 2 of hot, which is slower."""
    (found,) = regressions(context_at(source_of(burning_store), "/"))
    return found


def incident(severity: Severity, name: str = "tail") -> Incident:
    began = NOW - timedelta(minutes=12)
    return Incident(
        *("i1", name, "hot", severity, "open", began, began, None, "hot is slower", "+50 %", (), "", "", ())
    )


@pytest.mark.parametrize(
    ("states", "severities", "pending", "slower", "state", "word"),
    [
        ((), (), False, False, "", "No SLO"),
        (("healthy",), (), False, True, "at_risk", "Slower"),
        (("healthy",), (), True, True, "at_risk", "At risk"),
        (("healthy",), ("ticket", "page"), True, True, "burning", "Incident"),
        (("healthy", "at_risk"), ("ticket",), False, True, "at_risk", "At risk"),
        (("stale", "healthy"), (), False, False, "stale", "Stale"),
        (("maintenance",), (), True, True, "maintenance", "In maintenance"),
    ],
)
def test_the_status_is_the_worst_of_its_sources(  # noqa: PLR0917 - the columns of the table
    slo: SloStatus,
    release: Release,
    states: tuple[SloState, ...],
    severities: tuple[Severity, ...],
    pending: bool,
    slower: bool,
    state: str,
    word: str,
) -> None:
    rules = (PENDING,) if pending else ()
    slos = tuple(replace(slo, state=each, rules=rules) for each in states)

    found = service_status(VIEW, slos, tuple(map(incident, severities)), release if slower else None)

    assert (found.state, found.word) == (state, word)
    assert bool(found.href) == bool(state)


def test_an_incident_during_maintenance_needs_no_action(slo: SloStatus) -> None:
    planned = (replace(slo, state="maintenance"),)

    assert service_status(VIEW, planned, (incident("page", slo.slo.name),), None).state == "maintenance"
    assert service_status(VIEW, planned, (incident("page"),), None).state == "burning"


class OneIncident:
    def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - as it is asked
        return []

    def incidents(self) -> list[Incident]:
        return [incident("page")]

    def problems(self) -> list[str]:
        return []


def test_all_places_show_the_same_status(burning_store: Store) -> None:
    source = Source(burning_store, OneIncident(), NOW.timestamp)
    (row,) = (each for each in urgent_first(context_at(source, "/")) if each.service == "hot")
    overview = shown(source, "/")

    assert (row.state, row.status.word, row.status.note) == ("burning", "Incident", "since 11:48")
    assert "Incident since 11:48" in overview
    assert "hot is slower" in overview
    assert "Incident" in shown(source, "/s/hot").partition("Breakdown")[0]
