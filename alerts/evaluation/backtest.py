"""Backtest of an SLO over past data, for `stagelens check` and for incidents missed while no process evaluated.

The backtest uses the functions of the evaluator on the same counts. Minutes without an open incident and without a burn rate near
a threshold cannot change the result and are skipped. Missed incidents that have ended are recorded and not notified; the next
evaluation detects those that continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import Connection

from ...analysis.burn_rate import FAST, AlertTier, Counts, burn_rate, find_onset, firing_tiers, needed_windows
from ...analysis.policies import BurnRatePolicy, Severity
from ...store import Reader
from .. import formatting
from ..delivery.message import Burn, Finding
from ..incidents.journal import write_update
from ..incidents.lifecycle import IncidentRecord, Step, next_step
from ..incidents.notification_rules import IncidentUpdate
from ..objectives.slo import Slo
from .alert_rules import cause_of_slo
from .evidence import dashboard_link, filters_of
from .slo_status import MINUTE, History, WindowSeries, load_history, measure_slo, tiers_of

# Margin of the preselection, so that rounding does not hide a firing minute; `is_firing` makes the decision.
_ROUNDING_MARGIN = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class PastIncident:
    opened_at: datetime
    resolved_at: datetime | None
    severity: Severity
    peak: float
    spent: float


@dataclass(frozen=True, slots=True)
class Preview:
    slo: Slo
    since: datetime
    until: datetime
    seen_from: datetime | None
    incidents: tuple[PastIncident, ...]
    budget_left: float | None
    coarse_until: datetime | None


def backtest(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime, length: timedelta) -> Preview:
    longest = max(needed_windows(policy, tiers_of(slo, policy)))
    history = load_history(read, slo, now - length - longest, now)
    since = history.edge_of(now - length)
    measured = measure_slo(read, slo, policy, now)
    counts = measured.counts[slo.window]
    # Budget of the SLO's window at the current traffic: spent and remaining bad requests.
    allowed = counts.bad + measured.budget.bad_left
    seen = np.flatnonzero(np.diff(history.total))
    return Preview(
        slo=slo,
        since=history.at(since),
        until=history.at(history.edges - 1),
        seen_from=history.at(int(seen[0])) if len(seen) else None,
        incidents=tuple(_past_incidents(history, slo, replay(history, slo, policy, since), allowed)),
        budget_left=measured.budget.left if counts.total else None,
        coarse_until=history.coarse_until
        if history.coarse_until and history.coarse_until > history.at(since)
        else None,
    )


def replay(history: History, slo: Slo, policy: BurnRatePolicy, since: int = 0) -> list[IncidentRecord]:
    watched = tiers_of(slo, policy)
    windows = {length: history.windows(length) for length in needed_windows(policy, watched)}
    near = np.flatnonzero(_near(windows, watched, slo.objective, policy.hysteresis.keep))
    records: list[IncidentRecord] = []
    edge = since
    while edge < history.edges:
        record = records[-1] if records else None
        if record is None or not record.is_open:
            # Without an open incident, only a minute near a threshold can open one.
            ahead = near[np.searchsorted(near, edge) :]
            if not len(ahead):
                break
            edge = int(ahead[0])
        step = _step(history.at(edge), record, _counts(windows, edge), slo, policy, seen=history.seen(edge))
        if step is not None and record is not None and step.record.id == record.id:
            records[-1] = step.record
        elif step is not None:
            records.append(step.record)
        edge += 1
    return records


def _near(
    windows: Mapping[timedelta, WindowSeries], watched: Sequence[AlertTier], objective: float, keep: float
) -> np.ndarray:
    rates = {length: window.burn(objective) for length, window in windows.items()}
    either = [
        np.minimum(rates[tier.long], rates[tier.short]) >= tier.burn * keep * _ROUNDING_MARGIN for tier in watched
    ]
    return np.any(either, axis=0) if either else np.zeros(0, bool)


def _counts(windows: Mapping[timedelta, WindowSeries], edge: int) -> dict[timedelta, Counts]:
    return {length: Counts(float(window.total[edge]), float(window.bad[edge])) for length, window in windows.items()}


def _step(
    at: datetime,
    record: IncidentRecord | None,
    counts: Mapping[timedelta, Counts],
    slo: Slo,
    policy: BurnRatePolicy,
    *,
    seen: timedelta,
) -> Step | None:
    already = record is not None and record.is_open
    firing = firing_tiers(tiers_of(slo, policy), counts, slo.objective, policy, already=already, seen=seen)
    return next_step(
        record,
        _finding(at, slo, firing[0], counts) if firing else None,
        cause=slo.name,
        now=at.timestamp(),
        has_data=counts[FAST].total > 0,
        hysteresis=policy.hysteresis,
    )


def _finding(at: datetime, slo: Slo, tier: AlertTier, counts: Mapping[timedelta, Counts]) -> Finding:
    short = counts[tier.short]
    rate = burn_rate(short.bad, short.total, slo.objective)
    long_seconds, short_seconds = tier.long.total_seconds(), tier.short.total_seconds()
    spent = Burn(rate, tier.burn, long_seconds, short_seconds, short.bad, short.total, 0.0, 0.0, 0.0)
    return Finding(slo.name, slo.service, "", slo.kind, tier.severity, at.timestamp(), burn=spent)


def _past_incidents(
    history: History, slo: Slo, records: Iterable[IncidentRecord], allowed: float
) -> Iterator[PastIncident]:
    for record in records:
        opened = datetime.fromtimestamp(record.opened_at, UTC)
        resolved = None if record.resolved_at is None else datetime.fromtimestamp(record.resolved_at, UTC)
        until = resolved or history.at(history.edges - 1)
        # An incident that ends within a maintenance window is not notified.
        notified = slo.maintenance.without(opened, until) if slo.maintenance.at(opened) else [(opened, until)]
        if notified:
            began, ended = _began(history, slo, record, opened), history.edge_of(until)
            window = history.windows(MINUTE * max(1, ended - began))
            spent = float(window.bad[ended]) / allowed if allowed > 0 else 0.0
            yield PastIncident(notified[0][0], resolved, record.finding.severity, record.peak, spent)


def _began(history: History, slo: Slo, record: IncidentRecord, opened: datetime) -> int:
    spent = record.finding.burn
    reach = timedelta(seconds=spent.long_seconds) if spent is not None else timedelta(hours=1)
    low, high = history.edge_of(opened - reach), history.edge_of(opened)
    threshold = spent.threshold / 2 if spent is not None else 1.0
    return history.edge_of(find_onset(history.minutes(low, high), slo.objective, threshold, otherwise=opened).at)


def find_missed_incidents(
    read: Reader, slo: Slo, policy: BurnRatePolicy, since: datetime, now: datetime, *, dashboard_url: str
) -> list[IncidentRecord]:
    longest = max(needed_windows(policy, tiers_of(slo, policy)), default=timedelta(0))
    history = load_history(read, slo, since - longest, now)
    over = [record for record in replay(history, slo, policy, history.edge_of(since)) if not record.is_open]
    return [_missed_record(record, slo, since, now, dashboard_url) for record in over]


def write_missed_incident(connection: Connection, record: IncidentRecord) -> None:
    ended = record.resolved_at or record.seen_at
    opened = replace(record, resolved_at=None, ending="", sequence=1)
    write_update(connection, IncidentUpdate(opened, "opened", note=record.muted), (), record.opened_at)
    write_update(connection, IncidentUpdate(replace(record, sequence=2), "resolved", note=record.muted), (), ended)


def _missed_record(
    record: IncidentRecord, slo: Slo, since: datetime, now: datetime, dashboard_url: str
) -> IncidentRecord:
    began = datetime.fromtimestamp(record.finding.since, UTC)
    ended = datetime.fromtimestamp(record.resolved_at or record.seen_at, UTC)
    finding = replace(
        record.finding,
        promise=slo.in_words(),
        description=slo.description,
        runbook=slo.runbook,
        link=dashboard_link(dashboard_url, slo, began, ended),
        where=filters_of(slo),
    )
    why = f"detected late: no evaluation ran from {formatting.moment(since)} to {formatting.moment(now)}"
    return replace(record, cause=cause_of_slo(slo), finding=finding, muted=why, story=record.id)
