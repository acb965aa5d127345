"""Measurement of an SLO: all windows from one query, maintenance windows, budget reset, and stale data."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stagelens.alerts.evaluation.slo_status import measure_slo, tally_over_time
from stagelens.alerts.objectives.maintenance import ActiveMaintenance, MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo import Slo
from stagelens.analysis import burn_rate
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.store import Store
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Traffic

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MONTH = timedelta(days=30)
POLICY = default_burn_rate_policy()


def test_every_window_equals_a_separate_query(store: Store, traffic: Traffic) -> None:
    for start, length in ((5 * 24 * HOUR, MINUTE), (8 * HOUR, MINUTE), (70 * MINUTE, 68 * MINUTE)):
        traffic(NOW - start, length, {5: FAST, 1: SLOW}, errors=1)
    store.maintain()
    later = NOW + timedelta(seconds=7)
    measured = measure_slo(store.read, LATENCY, POLICY, later)

    for length, counts in measured.counts.items():
        alone = store.read.tally(LATENCY.select(later - length, later), LATENCY.indicator)
        assert (counts.total, counts.bad) == (alone.total, pytest.approx(alone.bad))


def test_all_windows_are_consistent(store: Store, traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic(NOW - 9 * HOUR, 9 * HOUR, {5: FAST})
    before = measure_slo(store.read, LATENCY, POLICY, NOW)
    read, written = store.points.read, list[datetime]()

    def meanwhile(*question: Any) -> Any:
        if not written:
            written.append(NOW - 8 * HOUR)
            traffic(written[0], MINUTE, {5: SLOW})
        return read(*question)

    monkeypatch.setattr(store.points, "read", meanwhile)
    measured = measure_slo(store.read, LATENCY, POLICY, NOW)

    assert written
    assert measured.counts == before.counts


def test_requests_in_a_maintenance_window_do_not_count(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 3 * HOUR, 2 * HOUR, {10: FAST})
    traffic(NOW - HOUR, 30 * MINUTE, {10: SLOW})
    traffic(NOW - 30 * MINUTE, 30 * MINUTE, {10: FAST})
    work = MaintenanceCalendar((OneTimeWindow(NOW - HOUR, NOW - 30 * MINUTE),))
    planned = replace(LATENCY, maintenance=work)
    measured = measure_slo(store.read, planned, POLICY, NOW)

    assert measure_slo(store.read, LATENCY, POLICY, NOW).budget.left < 0.95
    assert measured.counts[MONTH] == burn_rate.Counts(10 * 360 * 2.5, 0)
    assert (measured.budget.left, measured.firing, measured.work) == (1.0, (), None)
    assert measure_slo(store.read, planned, POLICY, NOW - 40 * MINUTE).work == ActiveMaintenance("", NOW - 30 * MINUTE)


def test_requests_before_a_reset_do_not_count(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 2 * HOUR, HOUR, {10: SLOW})
    traffic(NOW - HOUR, HOUR, {10: FAST})
    since = replace(LATENCY, reset=NOW - HOUR)
    measured = measure_slo(store.read, since, POLICY, NOW)

    assert (measured.budget.left, measured.firing) == (1.0, ())
    assert measured.counts[timedelta(hours=6)] == burn_rate.Counts(3600, 0)
    assert measure_slo(store.read, replace(LATENCY, reset=NOW + HOUR), POLICY, NOW).budget.left < 1


@pytest.mark.parametrize(
    "slo",
    [
        LATENCY,
        replace(LATENCY, watched="coverage", threshold=None),
        replace(LATENCY, watched="freshness", threshold=MINUTE),
    ],
)
def test_the_time_series_adds_up_to_the_counts(store: Store, traffic: Traffic, slo: Slo) -> None:
    traffic(NOW - 3 * HOUR, 3 * HOUR, {5: FAST, 1: SLOW})
    work = MaintenanceCalendar(
        (OneTimeWindow(NOW - 100 * MINUTE, NOW - 70 * MINUTE), OneTimeWindow(NOW - 20 * MINUTE, NOW - 10 * MINUTE))
    )
    held = replace(slo, maintenance=work, reset=NOW - 2 * HOUR)
    series = tally_over_time(store.read, held, NOW - MONTH, NOW, 5 * MINUTE)
    whole = measure_slo(store.read, held, POLICY, NOW).counts[MONTH]

    total, bad = series["total"].sum(), series["bad"].sum()

    assert series["requests"].sum() == whole.total
    assert bad / total == pytest.approx(whole.bad / whole.total)
    assert not series["at"].between(NOW - 100 * MINUTE, NOW - 70 * MINUTE, inclusive="left").any()
    assert series["at"].min() >= NOW - 2 * HOUR


def test_an_empty_time_series_has_no_steps(store: Store) -> None:
    planned = replace(LATENCY, maintenance=MaintenanceCalendar((OneTimeWindow(NOW - HOUR, NOW),)))

    assert not len(tally_over_time(store.read, planned, NOW - HOUR, NOW, MINUTE))
    assert not len(tally_over_time(store.read, LATENCY, NOW - HOUR, NOW, MINUTE))


@pytest.mark.parametrize(
    ("slo", "burning"),
    [
        (replace(LATENCY, watched="stage", stage="preprocess", threshold=timedelta(milliseconds=50)), True),
        (replace(LATENCY, watched="stage", stage="forward", threshold=timedelta(milliseconds=50)), False),
        (replace(LATENCY, watched="coverage", threshold=None, objective=0.95), False),
        (replace(LATENCY, watched="coverage", threshold=None, objective=0.999), True),
        (replace(LATENCY, watched="ttft"), False),
        (replace(LATENCY, watched="freshness", threshold=5 * MINUTE), False),
    ],
)
def test_each_kind_of_slo_burns_by_its_indicator(store: Store, traffic: Traffic, slo: Slo, burning: bool) -> None:
    traffic(NOW - 2 * HOUR, 2 * HOUR, {9: FAST, 1: SLOW})
    measured = measure_slo(store.read, slo, POLICY, NOW)

    assert bool(measured.firing) is burning


def test_unattributed_time_is_counted_in_requests(store: Store, traffic: Traffic) -> None:
    traffic(NOW - MINUTE, MINUTE, {10: {"forward": 0.02, "overhead": 0.01}})
    slo = replace(LATENCY, watched="coverage", threshold=None)
    counts = measure_slo(store.read, slo, POLICY, NOW).counts[HOUR]

    assert counts.total == 60
    assert counts.bad == pytest.approx(20)


def test_a_silent_service_violates_only_its_freshness_slo(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 3 * HOUR, 2 * HOUR + 40 * MINUTE, {10: FAST})
    fresh = measure_slo(store.read, replace(LATENCY, watched="freshness", threshold=5 * MINUTE), POLICY, NOW)
    latency = measure_slo(store.read, LATENCY, POLICY, NOW)

    assert [tier.severity for tier in fresh.firing][:1] == ["page"]
    assert fresh.has_data
    assert (latency.firing, latency.has_data) == ((), False)


def test_a_stopped_collector_leaves_incidents_unchanged(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {10: FAST})
    store.maintain()
    measured = measure_slo(store.read, LATENCY, POLICY, NOW + 10 * MINUTE)

    assert measured.stale_since == NOW
    assert measure_slo(store.read, LATENCY, POLICY, NOW + MINUTE).stale_since is None
