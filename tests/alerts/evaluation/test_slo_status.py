"""Status of an SLO as read from the store, with stale data and maintenance windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts.evaluation.slo_status import Measurement, measure_slo, read_slo_status, status_of
from stagelens.alerts.objectives.maintenance import ActiveMaintenance
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.burn_rate import FAST, RECENT, AlertTier, Counts, ErrorBudget
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.core.histogram import Histogram
from stagelens.core.names import OPEN_TIME
from stagelens.store import Batch, Point, Series, Store
from tests.alerts.traffic import LATENCY, NOW, Traffic

HOUR, MINUTE, MONTH = timedelta(hours=1), timedelta(minutes=1), timedelta(days=30)
GOOD = {"forward": 0.020, "preprocess": 0.010}
SLOW = {"forward": 0.020, "preprocess": 0.390}
PAGE = AlertTier("page", 14.4, HOUR, FAST)
SOME, NONE = Counts(1000, 3), Counts(0, 0)
SINCE = datetime.fromisoformat("2026-11-20T03:04Z")
WORK = ActiveMaintenance("new disks", SINCE + HOUR)
GUARD = default_burn_rate_policy().guard


def measured(**changes: Any) -> Measurement:
    fine = Measurement(
        slo=LATENCY,
        counts={FAST: SOME, RECENT: SOME, MONTH: SOME},
        tiers=(),
        firing=(),
        budget=ErrorBudget(0.7, 7.0),
    )
    return replace(fine, **changes)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "healthy"),
        ({"firing": (PAGE,)}, "burning"),
        ({"budget": ErrorBudget(0.0, 0.0)}, "at_risk"),
        ({"counts": {FAST: SOME, RECENT: SOME, MONTH: Counts(1000, 11)}}, "at_risk"),
        ({"counts": {FAST: NONE, RECENT: NONE, MONTH: SOME}}, "no_data"),
        ({"work": WORK}, "maintenance"),
        ({"work": WORK, "stale_since": SINCE}, "stale"),
    ],
)
def test_the_state_follows_from_what_was_measured(changes: dict[str, Any], state: str) -> None:
    assert status_of(measured(**changes), GUARD).state == state


def test_every_state_includes_the_known_numbers() -> None:
    fine = status_of(measured(), GUARD)
    held = status_of(measured(work=WORK, stale_since=SINCE, firing=(PAGE,), tiers=(PAGE,)), GUARD)

    assert (held.budget_left, held.bad_left, held.burn_1h) == (fine.budget_left, fine.bad_left, fine.burn_1h)
    assert (held.work, held.stale_since) == (WORK, SINCE)
    assert [rule.fires for rule in held.rules] == [True]


def test_a_stale_slo_has_the_status_at_the_collector_stop(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 2 * HOUR, HOUR, {10: GOOD})
    traffic(NOW - HOUR, HOUR, {1: GOOD, 9: SLOW})
    store.maintain()
    policy = default_burn_rate_policy()
    then = read_slo_status(store.read, LATENCY, policy, NOW)
    later = read_slo_status(store.read, LATENCY, policy, NOW + 3 * HOUR)

    assert then.state == "burning"
    assert measure_slo(store.read, LATENCY, policy, NOW + 3 * HOUR).burn(RECENT) == 0
    assert later == replace(then, state="stale", stale_since=NOW)


def test_requests_that_hang_burn_the_budget(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, 10 * MINUTE, {1: GOOD})
    waiting = Histogram()
    for seconds, number in ((95.0, 12), (0.1, 5)):
        waiting.record(seconds, number * 10_000_000)
    waiting.sum = 0.0
    at = int((NOW - timedelta(seconds=30)).timestamp()) // 10 * 10
    store.write([Batch("open", [Point(Series("magika-demo", "1"), OPEN_TIME, "open web-1:7", at, waiting)])])
    status = read_slo_status(store.read, LATENCY, default_burn_rate_policy(), NOW)

    assert (status.bad, status.state) == (12, "burning")
    assert (
        measure_slo(store.read, replace(LATENCY, threshold=None), default_burn_rate_policy(), NOW).counts[FAST].bad == 0
    )


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
