"""Status of an SLO as read from the store, its measurement, stale data, and maintenance windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts.evaluation.slo_status import Measurement, measure_slo, read_slo_status, status_of, tally_over_time
from stagelens.alerts.objectives.maintenance import ActiveMaintenance, MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.burn_rate import FAST, RECENT, AlertTier, Counts, ErrorBudget
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.core.histogram import Histogram
from stagelens.core.names import OPEN_TIME
from stagelens.store import Batch, Point, Series, Store
from tests.alerts.traffic import FAST as GOOD
from tests.alerts.traffic import LATENCY, NOW, SLOW, Traffic

HOUR, MINUTE, MONTH = timedelta(hours=1), timedelta(minutes=1), timedelta(days=30)
PAGE = AlertTier("page", 14.4, HOUR, FAST)
SOME, NONE = Counts(1000, 3), Counts(0, 0)
SINCE = datetime.fromisoformat("2026-11-20T03:04Z")
WORK = ActiveMaintenance("new disks", SINCE + HOUR)
POLICY = default_burn_rate_policy()


def measured(**changes: Any) -> Measurement:
    fine = Measurement(
        slo=LATENCY, counts={FAST: SOME, RECENT: SOME, MONTH: SOME}, tiers=(), firing=(), budget=ErrorBudget(0.7, 7.0)
    )
    return replace(fine, **changes)


def test_every_state_includes_the_known_numbers() -> None:
    fine = status_of(measured(), POLICY.guard)
    held = status_of(measured(work=WORK, stale_since=SINCE, firing=(PAGE,), tiers=(PAGE,)), POLICY.guard)
    empty = status_of(measured(counts={FAST: NONE, RECENT: NONE, MONTH: NONE}), POLICY.guard)

    assert [each.state for each in (fine, held, empty)] == ["healthy", "stale", "no_data"]
    assert status_of(measured(work=WORK), POLICY.guard).state == "maintenance"
    assert (empty.attained, empty.budget_left, empty.burn_1h) == (None, None, None)
    assert (fine.attained, fine.bad) == (0.997, 3)
    assert (held.budget_left, held.bad_left, held.burn_1h) == (fine.budget_left, fine.bad_left, fine.burn_1h)
    assert (held.work, held.stale_since) == (WORK, SINCE)
    assert [rule.fires for rule in held.rules] == [True]


def test_a_stale_slo_has_the_status_at_the_collector_stop(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 2 * HOUR, HOUR, {10: GOOD})
    traffic(NOW - HOUR, HOUR, {1: GOOD, 9: SLOW})
    store.maintain()
    then = read_slo_status(store.read, LATENCY, POLICY, NOW)
    later = read_slo_status(store.read, LATENCY, POLICY, NOW + 3 * HOUR)

    assert then.state == "burning"
    assert measure_slo(store.read, LATENCY, POLICY, NOW + 3 * HOUR).burn(RECENT) == 0
    assert later == replace(then, state="stale", stale_since=NOW)
    assert measure_slo(store.read, LATENCY, POLICY, NOW + MINUTE).stale_since is None


def test_requests_that_hang_burn_the_budget(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, 10 * MINUTE, {1: GOOD})
    waiting = Histogram()
    for seconds, number in ((95.0, 12), (0.1, 5)):
        waiting.record(seconds, number * 10_000_000)
    waiting.sum = 0.0
    at = int((NOW - timedelta(seconds=30)).timestamp()) // 10 * 10
    store.write([Batch("open", [Point(Series("magika-demo", "1"), OPEN_TIME, "open web-1:7", at, waiting)])])
    status = read_slo_status(store.read, LATENCY, POLICY, NOW)

    assert (status.bad, status.state) == (12, "burning")
    assert measure_slo(store.read, replace(LATENCY, threshold=None), POLICY, NOW).counts[FAST].bad == 0


def test_a_maintenance_window_is_reported_with_its_end(store: Store, traffic: Traffic, tmp_path: Path) -> None:
    traffic(NOW - HOUR, HOUR, {1: GOOD, 9: SLOW})
    path = tmp_path / "slo.yaml"
    path.write_text(
        f"""\
slos:
  - {{name: fast, service: magika-demo, objective: 0.99, threshold: 250ms, window: 30d}}
  - {{name: also-fast, service: magika-demo, objective: 0.99, threshold: 250ms, window: 30d}}
maintenance:
  - {{from: {NOW - MINUTE:%Y-%m-%dT%H:%MZ}, to: {NOW + MINUTE:%Y-%m-%dT%H:%MZ}, why: new disks, slos: [fast]}}
""",
        encoding="utf-8",
    )
    reader = AlertsReader(store, LiveSloFile(path, {}))
    during, after = (reader.slos(at) for at in (NOW, NOW + 2 * MINUTE))

    assert [(each.slo.name, each.state) for each in during] == [("also-fast", "burning"), ("fast", "maintenance")]
    assert during[1].work == ActiveMaintenance("new disks", NOW + MINUTE)
    assert (during[1].burn_1h or 0) > 1
    assert {each.state for each in after} == {"burning"}


def test_every_window_equals_a_separate_query(store: Store, traffic: Traffic) -> None:
    for start, length in ((5 * 24 * HOUR, MINUTE), (8 * HOUR, MINUTE), (70 * MINUTE, 68 * MINUTE)):
        traffic(NOW - start, length, {5: GOOD, 1: SLOW}, errors=1)
    store.maintain()
    later = NOW + timedelta(seconds=7)
    measured = measure_slo(store.read, LATENCY, POLICY, later)

    for length, counts in measured.counts.items():
        alone = store.read.tally(LATENCY.select(later - length, later), LATENCY.indicator)
        assert (counts.total, counts.bad) == (alone.total, pytest.approx(alone.bad))


def test_all_windows_are_consistent(store: Store, traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic(NOW - 9 * HOUR, 9 * HOUR, {5: GOOD})
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
    traffic(NOW - 3 * HOUR, 2 * HOUR, {10: GOOD})
    traffic(NOW - HOUR, 30 * MINUTE, {10: SLOW})
    traffic(NOW - 30 * MINUTE, 30 * MINUTE, {10: GOOD})
    work = MaintenanceCalendar((OneTimeWindow(NOW - HOUR, NOW - 30 * MINUTE),))
    planned = replace(LATENCY, maintenance=work)
    measured = measure_slo(store.read, planned, POLICY, NOW)

    assert measure_slo(store.read, LATENCY, POLICY, NOW).budget.left < 0.95
    assert measured.counts[MONTH] == Counts(10 * 360 * 2.5, 0)
    assert (measured.budget.left, measured.firing, measured.work) == (1.0, (), None)
    assert measure_slo(store.read, planned, POLICY, NOW - 40 * MINUTE).work == ActiveMaintenance("", NOW - 30 * MINUTE)


def test_requests_before_a_reset_do_not_count(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 2 * HOUR, HOUR, {10: SLOW})
    traffic(NOW - HOUR, HOUR, {10: GOOD})
    since = replace(LATENCY, reset=NOW - HOUR)
    measured = measure_slo(store.read, since, POLICY, NOW)

    assert (measured.budget.left, measured.firing) == (1.0, ())
    assert measured.counts[timedelta(hours=6)] == Counts(3600, 0)
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
    traffic(NOW - 3 * HOUR, 3 * HOUR, {5: GOOD, 1: SLOW})
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


def test_unattributed_time_is_counted_in_requests(store: Store, traffic: Traffic) -> None:
    traffic(NOW - MINUTE, MINUTE, {10: {"forward": 0.02, "overhead": 0.01}})
    slo = replace(LATENCY, watched="coverage", threshold=None)
    counts = measure_slo(store.read, slo, POLICY, NOW).counts[HOUR]

    assert counts.total == 60
    assert counts.bad == pytest.approx(20)


def test_a_silent_service_violates_only_its_freshness_slo(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 3 * HOUR, 2 * HOUR + 40 * MINUTE, {10: GOOD})
    fresh = measure_slo(store.read, replace(LATENCY, watched="freshness", threshold=5 * MINUTE), POLICY, NOW)
    latency = measure_slo(store.read, LATENCY, POLICY, NOW)

    assert [tier.severity for tier in fresh.firing][:1] == ["page"]
    assert fresh.has_data
    assert (latency.firing, latency.has_data) == ((), False)
