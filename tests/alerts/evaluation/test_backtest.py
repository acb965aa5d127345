"""Backtest: its result for past data equals that of the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.alerts import check
from stagelens.alerts.delivery.message import Burn, Finding
from stagelens.alerts.evaluation.backtest import backtest, replay
from stagelens.alerts.evaluation.slo_status import History, load_history, measure_slo, tiers_of
from stagelens.alerts.incidents import lifecycle
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.objectives.maintenance import MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import read_slo_file
from stagelens.analysis import burn_rate
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.core.errors import StoreError
from stagelens.store import Store
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Traffic
from tests.support import command_line

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
MONTH = timedelta(days=30)
POLICY = default_burn_rate_policy()

Notifications = list[tuple[datetime, datetime | None, str]]


def notified(records: Sequence[IncidentRecord]) -> Notifications:
    return [
        (
            datetime.fromtimestamp(each.opened_at, UTC),
            None if each.resolved_at is None else datetime.fromtimestamp(each.resolved_at, UTC),
            each.finding.severity,
        )
        for each in records
    ]


# Returns what fires, while an incident is open or not, and whether there are data.
Look = Callable[[bool], tuple[Sequence[burn_rate.AlertTier], bool]]


def incidents_of(slo: Slo, looks: Iterable[tuple[datetime, Look]]) -> list[IncidentRecord]:
    records: dict[str, IncidentRecord] = {}
    record: IncidentRecord | None = None
    for at, look in looks:
        firing, has_data = look(record is not None and record.is_open)
        found = _finding(slo, firing[0], at) if firing else None
        hysteresis = POLICY.hysteresis
        step = lifecycle.next_step(
            record, found, cause="slo", now=at.timestamp(), has_data=has_data, hysteresis=hysteresis
        )
        record = step.record if step else record
        if record is not None:
            records[record.id] = record
    return list(records.values())


def evaluated(store: Store, slo: Slo, start: datetime, end: datetime) -> list[IncidentRecord]:
    def look(at: datetime, already: bool) -> tuple[Sequence[burn_rate.AlertTier], bool]:
        measured = measure_slo(store.read, slo, POLICY, at, already=already)
        return measured.firing, measured.has_data

    moments = (start + number * MINUTE for number in range((end - start) // MINUTE + 1))
    return incidents_of(slo, ((at, partial(look, at)) for at in moments))


def _finding(slo: Slo, tier: burn_rate.AlertTier, at: datetime) -> Finding:
    spent = Burn(20.0, tier.burn, tier.long.total_seconds(), tier.short.total_seconds(), 1, 1, 0, 0, 0)
    return Finding(slo.name, slo.service, "", slo.kind, tier.severity, at.timestamp(), burn=spent)


def test_the_backtest_equals_the_evaluator(store: Store, traffic: Traffic) -> None:
    begin = NOW.replace(second=0) - 4 * HOUR
    courses = [(10, {2: FAST}), (6, {2: SLOW}), (52, {2: FAST}), (12, {2: SLOW}), (4, {2: FAST})]
    at = begin
    for minutes, mix in courses:
        traffic(at, minutes * MINUTE, mix)
        at += minutes * MINUTE
    end = at + 10 * MINUTE
    # The second outage starts within a maintenance window and continues after it.
    slo = replace(LATENCY, maintenance=MaintenanceCalendar((OneTimeWindow(begin + 65 * MINUTE, begin + 72 * MINUTE),)))
    history = load_history(store.read, slo, begin - 4 * 24 * HOUR, end)
    before = evaluated(store, slo, begin, end)

    assert notified(replay(history, slo, POLICY, history.edge_of(begin))) == notified(before)
    assert len(before) == 2


@pytest.mark.parametrize(("outage", "notified_at"), [(20 * SECOND, []), (8 * MINUTE, [1])])
def test_the_backtest_of_a_new_service_equals_the_evaluator(
    store: Store, traffic: Traffic, outage: timedelta, notified_at: list[int]
) -> None:
    begin = NOW.replace(second=0) - HOUR
    traffic(begin, outage, {5: SLOW})
    traffic(begin + outage, 30 * MINUTE, {5: FAST})
    history = load_history(store.read, LATENCY, begin - 4 * 24 * HOUR, begin + 20 * MINUTE)
    before = evaluated(store, LATENCY, begin, begin + 20 * MINUTE)

    assert notified(replay(history, LATENCY, POLICY, history.edge_of(begin))) == notified(before)
    assert [each.opened_at for each in before] == [(begin + each * MINUTE).timestamp() for each in notified_at]


@settings(max_examples=25, deadline=None)
@given(
    bad=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.2, 1.0]), st.integers(1, 60)), min_size=1, max_size=12),
    rate=st.sampled_from([0.2, 3.0, 600.0]),
    objective=st.sampled_from([0.9, 0.99, 0.999]),
)
def test_skipped_minutes_do_not_change_the_backtest(
    bad: list[tuple[float, int]], rate: float, objective: float
) -> None:
    shares = np.concatenate([np.full(minutes, share) for share, minutes in bad])
    history, slo = _history(rate, shares), replace(LATENCY, objective=objective)
    tiers = tiers_of(slo, POLICY)
    windows = {length: history.windows(length) for length in burn_rate.needed_windows(POLICY, tiers)}

    def look(edge: int, already: bool) -> tuple[Sequence[burn_rate.AlertTier], bool]:
        counts = {
            length: burn_rate.Counts(float(each.total[edge]), float(each.bad[edge])) for length, each in windows.items()
        }
        firing = burn_rate.firing_tiers(tiers, counts, objective, POLICY, already=already)
        return firing, counts[burn_rate.FAST].total > 0

    expected = incidents_of(slo, ((history.at(edge), partial(look, edge)) for edge in range(history.edges)))

    assert notified(replay(history, slo, POLICY)) == notified(expected)


def _history(rate: float, shares: np.ndarray) -> History:
    total = np.concatenate(([0.0], np.cumsum(np.full(len(shares), rate))))
    return History(1_795_000_020, total, total, np.concatenate(([0.0], np.cumsum(rate * shares))))


def test_an_incident_within_a_maintenance_window_is_notified_at_its_end(store: Store, traffic: Traffic) -> None:
    begin = NOW.replace(second=0) - 4 * HOUR
    for start, length, mix in ((0, 60, FAST), (60, 12, SLOW), (72, 108, FAST)):
        traffic(begin + start * MINUTE, length * MINUTE, {2: mix})
    planned = replace(
        LATENCY, maintenance=MaintenanceCalendar((OneTimeWindow(begin + 64 * MINUTE, begin + 67 * MINUTE),))
    )
    plain, after = (
        [incident.opened_at for incident in backtest(store.read, slo, POLICY, begin + 3 * HOUR, MONTH).incidents]
        for slo in (LATENCY, planned)
    )

    assert (plain, after) == ([begin + 64 * MINUTE], [begin + 67 * MINUTE])


def test_hourly_data_are_spread_over_their_minutes(store: Store, traffic: Traffic) -> None:
    start = NOW.replace(minute=0) - timedelta(days=16)
    traffic(start, HOUR, {10: FAST})
    # Data after a gap delete nothing until they have arrived for a day.
    for days in (2, 1, 0):
        traffic(NOW - timedelta(days=days) - HOUR, HOUR, {10: FAST})
    store.maintain()
    history = load_history(store.read, LATENCY, start - HOUR, NOW)
    hour = np.diff(history.total)[60:120]

    assert hour.tolist() == [60.0] * 60
    assert history.coarse_until is not None
    assert start < history.coarse_until < start + timedelta(days=1, hours=1)
    assert history.total[-1] == 4 * 3600


def test_a_preview_has_time_duration_and_budget_share(store: Store, traffic: Traffic) -> None:
    begin = NOW.replace(second=0) - 6 * HOUR
    traffic(begin, 2 * HOUR, {10: FAST})
    traffic(begin + 2 * HOUR, 10 * MINUTE, {10: SLOW})
    traffic(begin + 2 * HOUR + 10 * MINUTE, 2 * HOUR, {10: FAST})
    found = backtest(store.read, LATENCY, POLICY, begin + 4 * HOUR + 10 * MINUTE, MONTH)
    past = found.incidents[0]
    bad, known = 600.0, 250 * 60.0

    assert (found.seen_from, len(found.incidents), past.severity) == (begin, 1, "page")
    assert begin + 2 * HOUR < past.opened_at < begin + 2 * HOUR + 10 * MINUTE
    assert past.resolved_at is not None
    assert past.resolved_at - past.opened_at < 45 * MINUTE
    assert past.peak == pytest.approx(100)
    # Budget of a month at the known traffic.
    assert past.spent == pytest.approx(bad / (0.01 * known * (30 * 24 * 60 / 250)))
    assert found.budget_left == pytest.approx(1 - past.spent)


def test_check_lists_past_alerts_of_the_store(
    tmp_path: Path, traffic: Traffic, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(NOW - 3 * HOUR, 2 * HOUR, {10: FAST})
    traffic(NOW - HOUR, 10 * MINUTE, {10: SLOW})
    traffic(NOW - 50 * MINUTE, 50 * MINUTE, {10: FAST})
    path = tmp_path / "slo.yaml"
    lines = [
        f"  - {{name: {service}, service: {service}, objective: 0.99, threshold: 250ms, window: 30d}}"
        for service in ("magika-demo", "magika-dmo")
    ]
    path.write_text("\n".join(["slos:", *lines]), encoding="utf-8")
    monkeypatch.setattr("stagelens.alerts.check._now", lambda: NOW)
    printed: list[str] = []
    printed.extend(check.summary(path, read_slo_file(path, {}), store, printed.append))
    text, note = "\n".join(printed), printed.index("  replaying the last 30 days …")

    assert (
        "In the 3 hours of available data this SLO would have paged once; 97.7 % of the budget of 30 days remains."
        in text
    )
    assert printed[note - 1].startswith("  ticket if the burn rate is at least")
    assert "page   20 Nov 02:" in text
    assert "The store has no data of service 'magika-dmo'; did you mean magika-demo?" in text


def test_check_without_a_store_explains_the_missing_preview(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(
        "slos: [{name: a, service: a, objective: 0.99, threshold: 1s, window: 30d}]", encoding="utf-8"
    )
    status = command_line.run("check")
    with pytest.raises(StoreError, match="there is no store in"):
        command_line.run("check", "--store", "sqlite:///none.db")

    assert status == 0
    assert "Past alerts are not shown: there is no store in" in capsys.readouterr().out
