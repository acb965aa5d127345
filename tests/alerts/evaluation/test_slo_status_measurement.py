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
from tests.alerts.traffic import Traffic

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FAST = {"forward": 0.020, "preprocess": 0.010, "queue": 0.002, "overhead": 0.001}
SLOW = {"forward": 0.020, "preprocess": 0.390, "queue": 0.022, "overhead": 0.001}
MONTH = timedelta(days=30)
LATENCY = Slo("magika-latency", "magika-demo", 0.99, MONTH, timedelta(milliseconds=250))
POLICY = default_burn_rate_policy()


def test_every_window_equals_a_separate_query(store: Store, traffic: Traffic, now: datetime) -> None:
    for start, length in ((5 * 24 * HOUR, MINUTE), (8 * HOUR, MINUTE), (70 * MINUTE, 68 * MINUTE)):
        traffic(now - start, length, {5: FAST, 1: SLOW}, errors=1)
    store.maintain()
    later = now + timedelta(seconds=7)
    measured = measure_slo(store.read, LATENCY, POLICY, later)

    for length, counts in measured.counts.items():
        alone = store.read.slo_counts(LATENCY.select(later - length, later), LATENCY.threshold_seconds)
        assert (counts.total, counts.bad) == (alone.total, pytest.approx(alone.bad))


def test_all_windows_are_consistent(
    store: Store, traffic: Traffic, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(now - 9 * HOUR, 9 * HOUR, {5: FAST})
    before = measure_slo(store.read, LATENCY, POLICY, now)
    read, written = store.points.read, list[datetime]()

    def meanwhile(*question: Any) -> Any:
        if not written:
            written.append(now - 8 * HOUR)
            traffic(written[0], MINUTE, {5: SLOW})
        return read(*question)

    monkeypatch.setattr(store.points, "read", meanwhile)
    measured = measure_slo(store.read, LATENCY, POLICY, now)

    assert written
    assert measured.counts == before.counts


def test_requests_in_a_maintenance_window_do_not_count(store: Store, traffic: Traffic, now: datetime) -> None:
    traffic(now - 3 * HOUR, 2 * HOUR, {10: FAST})
    traffic(now - HOUR, 30 * MINUTE, {10: SLOW})
    traffic(now - 30 * MINUTE, 30 * MINUTE, {10: FAST})
    work = MaintenanceCalendar((OneTimeWindow(now - HOUR, now - 30 * MINUTE),))
    planned = replace(LATENCY, maintenance=work)
    measured = measure_slo(store.read, planned, POLICY, now)

    assert measure_slo(store.read, LATENCY, POLICY, now).budget.left < 0.95
    assert measured.counts[MONTH] == burn_rate.Counts(10 * 360 * 2.5, 0)
    assert (measured.budget.left, measured.firing, measured.work) == (1.0, (), None)
    assert measure_slo(store.read, planned, POLICY, now - 40 * MINUTE).work == ActiveMaintenance("", now - 30 * MINUTE)


def test_requests_before_a_reset_do_not_count(store: Store, traffic: Traffic, now: datetime) -> None:
    traffic(now - 2 * HOUR, HOUR, {10: SLOW})
    traffic(now - HOUR, HOUR, {10: FAST})
    since = replace(LATENCY, reset=now - HOUR)
    measured = measure_slo(store.read, since, POLICY, now)

    assert (measured.budget.left, measured.firing) == (1.0, ())
    assert measured.counts[timedelta(hours=6)] == burn_rate.Counts(3600, 0)
    assert measure_slo(store.read, replace(LATENCY, reset=now + HOUR), POLICY, now).budget.left < 1


@pytest.mark.parametrize(
    "slo",
    [
        LATENCY,
        replace(LATENCY, watched="coverage", threshold=None),
        replace(LATENCY, watched="freshness", threshold=MINUTE),
    ],
)
def test_the_time_series_adds_up_to_the_counts(store: Store, traffic: Traffic, now: datetime, slo: Slo) -> None:
    traffic(now - 3 * HOUR, 3 * HOUR, {5: FAST, 1: SLOW})
    work = MaintenanceCalendar(
        (OneTimeWindow(now - 100 * MINUTE, now - 70 * MINUTE), OneTimeWindow(now - 20 * MINUTE, now - 10 * MINUTE))
    )
    held = replace(slo, maintenance=work, reset=now - 2 * HOUR)
    series = tally_over_time(store.read, held, now - MONTH, now, 5 * MINUTE)
    whole = measure_slo(store.read, held, POLICY, now).counts[MONTH]

    total, bad = series["total"].sum(), series["bad"].sum()

    assert series["requests"].sum() == whole.total
    assert bad / total == pytest.approx(whole.bad / whole.total)
    assert not series["at"].between(now - 100 * MINUTE, now - 70 * MINUTE, inclusive="left").any()
    assert series["at"].min() >= now - 2 * HOUR


def test_an_empty_time_series_has_no_steps(store: Store, now: datetime) -> None:
    planned = replace(LATENCY, maintenance=MaintenanceCalendar((OneTimeWindow(now - HOUR, now),)))

    assert not len(tally_over_time(store.read, planned, now - HOUR, now, MINUTE))
    assert not len(tally_over_time(store.read, LATENCY, now - HOUR, now, MINUTE))


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
def test_each_kind_of_slo_burns_by_its_indicator(
    store: Store, traffic: Traffic, now: datetime, slo: Slo, burning: bool
) -> None:
    traffic(now - 2 * HOUR, 2 * HOUR, {9: FAST, 1: SLOW})
    measured = measure_slo(store.read, slo, POLICY, now)

    assert bool(measured.firing) is burning


def test_unattributed_time_is_counted_in_requests(store: Store, traffic: Traffic, now: datetime) -> None:
    traffic(now - MINUTE, MINUTE, {10: {"forward": 0.02, "overhead": 0.01}})
    slo = replace(LATENCY, watched="coverage", threshold=None)
    counts = measure_slo(store.read, slo, POLICY, now).counts[HOUR]

    assert counts.total == 60
    assert counts.bad == pytest.approx(20)


def test_a_silent_service_violates_only_its_freshness_slo(store: Store, traffic: Traffic, now: datetime) -> None:
    traffic(now - 3 * HOUR, 2 * HOUR + 40 * MINUTE, {10: FAST})
    fresh = measure_slo(store.read, replace(LATENCY, watched="freshness", threshold=5 * MINUTE), POLICY, now)
    latency = measure_slo(store.read, LATENCY, POLICY, now)

    assert [tier.severity for tier in fresh.firing][:1] == ["page"]
    assert fresh.has_data
    assert (latency.firing, latency.has_data) == ((), False)


def test_a_stopped_collector_leaves_incidents_unchanged(store: Store, traffic: Traffic, now: datetime) -> None:
    traffic(now - HOUR, HOUR, {10: FAST})
    store.maintain()
    measured = measure_slo(store.read, LATENCY, POLICY, now + 10 * MINUTE)

    assert measured.stale_since == now
    assert measure_slo(store.read, LATENCY, POLICY, now + MINUTE).stale_since is None
