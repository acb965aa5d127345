"""Acceptance of a regression as the new baseline: its incident ends, and only a further rise is notified.

Accepting a regression of a service includes regressions of its routes, models and versions, and its drift. Accepting a regression of
a route or model includes only incidents grouped with it.

The effects of load and time of day and the scatter do not depend on the latency level, so they are retained from the days
before. Each threshold moves to the same quantile of the accepted requests. So the accepted level does not fire again, and a
further regression fires from the first hour on. After a day the baseline is learnt from the accepted level alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy import Connection

from ...analysis.regression import statistic
from ...analysis.regression.policy import TailPolicy, default_watch_policy
from ...analysis.regression.scoring import total_histograms
from ...analysis.regression.stage_attribution import StageBaseline, rank_suspects
from ...store import Group, Reader, Store
from ...store.schema import storable
from .. import formatting
from ..delivery.message import Finding
from ..incidents.journal import IncidentError, notified_channels, person_name, require_incident, write_update
from ..incidents.lifecycle import IncidentRecord, close_incident, find_open_incidents
from ..incidents.notification_rules import IncidentUpdate, group_lead
from . import series
from .canary import canary_cause
from .series import AcceptedLevel, LearntBaseline, WatchedSeries, longest_window, read_pooled, stage_seconds

# Length of a block in which load and time of day are nearly constant. [minutes]
_BLOCK = 10
MAX_WHY_CHARS = 2000


def rebase_on_accepted(
    read: Reader, policy: TailPolicy, least: float, watched: WatchedSeries, accepted: AcceptedLevel
) -> tuple[LearntBaseline, statistic.TailCounts]:
    group, learnt, at = watched.group, watched.learnt, watched.progress.at
    strata = learnt.reference.strata
    shown = read_pooled(read, group, strata, accepted.since, accepted.at)
    reference = replace(learnt.reference, rows=_moved_thresholds(policy, least, learnt, shown))
    habits = _shifted_baseline(policy, learnt.habits, stage_seconds(read, group, accepted.since, accepted.at))
    recent = statistic.count_beyond(reference.rows, read_pooled(read, group, strata, at - longest_window(policy), at))
    return LearntBaseline(accepted.at, reference, habits), recent


def _moved_thresholds(
    policy: TailPolicy, least: float, learnt: LearntBaseline, shown: statistic.MinuteHistograms
) -> tuple[statistic.Row, ...]:
    now = {(row.stage, row.at): row for row in statistic.rows_of(policy, *total_histograms([shown]))}
    rows = tuple(now.get((row.stage, row.at), row) for row in learnt.reference.rows)
    counted = statistic.count_beyond(rows, shown)
    usual = _requests_at_usual_load(learnt, rows, counted)
    beyond = counted.beyond.sum(axis=1)
    share = np.where(beyond >= least, beyond / np.maximum(usual, 1e-9), 0.0)
    return tuple(replace(row, expected=float(share[number])) for number, row in enumerate(rows))


def _requests_at_usual_load(
    learnt: LearntBaseline, rows: tuple[statistic.Row, ...], counted: statistic.TailCounts
) -> statistic.Floats:
    """Return the requests weighted by the effects of load and time of day, which is the unit of shares; shape (rows,)."""
    asked = statistic.Expectation(learnt.reference.model, rows, range(len(rows)))
    ends = np.arange(len(counted), 0, -_BLOCK)
    lengths = np.minimum(ends, _BLOCK)
    requests, n, _ = statistic.PrefixSums(counted).of(ends, lengths, asked.chosen)
    features = statistic.model_features(asked.load, requests, lengths, counted.start + ends)
    normal = asked.usual_excess(features, counted.start + ends - lengths)
    return (n * np.exp(normal)).sum(axis=1)


def _shifted_baseline(policy: TailPolicy, habits: StageBaseline, shown: statistic.StageSeconds) -> StageBaseline:
    grown = {one.stage: one.seconds for one in rank_suspects(policy, habits, shown, {})}
    stages = tuple(sorted({*habits.stages, *grown}))
    spread = dict(zip(habits.stages, habits.spread, strict=True))
    usual = (dict(zip(habits.stages, hour, strict=True)) for hour in habits.usual)
    return StageBaseline(
        stages,
        tuple(tuple(hour.get(stage, 0.0) + grown.get(stage, 0.0) for stage in stages) for hour in usual),
        tuple(spread.get(stage, 0.0) for stage in stages),
    )


def accept_regression(store: Store, name: str, by: str, now: datetime, why: str = "") -> IncidentRecord:
    who, reason = person_name(by), storable(why.strip())[:MAX_WHY_CHARS]
    with store.transaction() as connection:
        record = require_incident(connection, name)
        if record.ending == "accepted":
            return record
        _require_acceptable(record)
        for related in [record, *_related_incidents(connection, record)]:
            _save_accepted_level(connection, related.finding, related.cause, now)
            _close_accepted(connection, related, who, f"{who}: {reason}" if reason else who, now.timestamp())
        return require_incident(connection, name)


def _require_acceptable(record: IncidentRecord) -> None:
    finding = record.finding
    if record.resolved_at is not None:
        msg = f"{record.id} was resolved at {formatting.moment_of(record.resolved_at)}; it cannot be accepted"
        raise IncidentError(msg)
    silence = f"silence it (`stagelens alerts silence --service {finding.service} --slo {finding.name} --for 8h`)"
    if finding.burn is not None:
        msg = (
            f"{record.id} belongs to the objective {finding.name}, which has no baseline; "
            f"change the objective or threshold in the SLO file, or {silence}"
        )
        raise IncidentError(msg)
    if finding.absence is not None:
        msg = f"{record.id} reports missing traffic; only latency regressions can be accepted; {silence}"
        raise IncidentError(msg)


def _related_incidents(connection: Connection, record: IncidentRecord) -> Iterator[IncidentRecord]:
    if record.finding.name == "drift":
        # A sudden rise at the same time has another cause.
        return
    whole = not set(record.finding.where) - {"environment"}
    for other in find_open_incidents(connection):
        if (
            other.id == record.id
            or other.finding.shift is None
            or _deployment(other.finding) != _deployment(record.finding)
        ):
            continue
        if whole or group_lead(other.muted) == record.id:
            yield other


def _deployment(finding: Finding) -> tuple[str, str]:
    return finding.service, finding.where.get("environment", "")


def _save_accepted_level(connection: Connection, finding: Finding, cause: str, now: datetime) -> None:
    at = int(now.timestamp()) // 60 + 1
    longest = round(default_watch_policy().accepted_over / timedelta(minutes=1))
    accepted = AcceptedLevel(max(int(finding.since) // 60, at - longest), at)
    if finding.shift is not None and finding.shift.against:
        service, environment = _deployment(finding)
        whole = Group(service, environment=environment)
        cause = canary_cause(whole, finding.shift.against, finding.where.get("version", ""))
    series.save_accepted(connection, cause, accepted)


def _close_accepted(connection: Connection, record: IncidentRecord, who: str, note: str, at: float) -> None:
    acknowledged = replace(record, acked_at=at, acked_by=who, sequence=record.sequence + 1)
    notifies = record.heard == "open"
    ended = close_incident(replace(acknowledged, heard="over" if notifies else record.heard), "accepted", at).record
    write_update(
        connection,
        IncidentUpdate(ended, "accepted", notifies=notifies, note=note),
        notified_channels(connection, record.id),
        at,
    )
