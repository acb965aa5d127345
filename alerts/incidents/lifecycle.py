"""Incident records and their life cycle: opened, resolved with hysteresis, reopened after a short pause.

The transitions are pure functions; `notification_rules` selects the transitions that are notified. Each record is one table row.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, not_, or_, select, update

from ...analysis.policies import Hysteresis
from ...store.schema import storable
from ..delivery.message import Ending, Finding
from ..schema import incidents, transitions
from ..schema import outbox as deliveries

# Last event that was sent to channels: none, the opening, or the end.
ChannelState = Literal["", "open", "over"]
IncidentStatus = Literal["open", "acknowledged", "recovering", "no_data", "resolved", "accepted", "closed"]
# Services without new data are evaluated once a minute, and slow growth once a day. [seconds]
_NO_DATA_SECONDS = 300.0
_DAILY = "drift"


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """Stored state of an incident, as `alerts.schema` describes it. Times are Unix seconds.

    `finding` has the highest severity so far and the onset of the first finding; `quiet_since` is None while the rule fires.
    """

    id: str
    cause: str
    finding: Finding
    opened_at: float
    seen_at: float
    notified_at: float
    quiet_since: float | None = None
    resolved_at: float | None = None
    ending: Ending = ""
    sequence: int = 0
    peak: float = 0.0
    acked_at: float | None = None
    acked_by: str = ""
    muted: str = ""
    heard: ChannelState = ""
    story: str = ""

    @property
    def is_open(self) -> bool:
        return self.resolved_at is None

    def status(self, evaluated_at: float | None) -> IncidentStatus:
        if self.resolved_at is not None:
            return "accepted" if self.ending == "accepted" else "resolved" if self.ending == "recovered" else "closed"
        is_daily = self.finding.name == _DAILY
        is_unseen = evaluated_at is not None and evaluated_at - self.seen_at > _NO_DATA_SECONDS and not is_daily
        if is_unseen or self.finding.silent_since is not None:
            return "no_data"
        if self.quiet_since is not None:
            return "recovering"
        return "open" if self.acked_at is None else "acknowledged"


def find_last_incident(connection: Connection, cause: str) -> IncidentRecord | None:
    last = select(incidents).where(incidents.c.cause == cause).order_by(incidents.c.opened_at.desc()).limit(1)
    return _first(connection.execute(last).first())


def get_incident(connection: Connection, name: str) -> IncidentRecord | None:
    return _first(connection.execute(select(incidents).where(incidents.c.id == storable(name))).first())


def find_open_incidents(connection: Connection) -> list[IncidentRecord]:
    still = select(incidents).where(incidents.c.resolved_at.is_(None)).order_by(incidents.c.opened_at, incidents.c.id)
    return [_from_row(row) for row in connection.execute(still)]


def newest_incidents(connection: Connection, limit: int, *, open_only: bool = False) -> list[IncidentRecord]:
    query = select(incidents).order_by(incidents.c.opened_at.desc(), incidents.c.id).limit(limit)
    if open_only:
        query = query.where(incidents.c.resolved_at.is_(None))
    return [_from_row(row) for row in connection.execute(query)]


def incidents_between(
    connection: Connection, start: float, end: float | None, limit: int, cause: str = ""
) -> list[IncidentRecord]:
    query = (
        select(incidents)
        .where(_is_between(start, end))
        .order_by(
            incidents.c.resolved_at.is_not(None), incidents.c.since.desc(), incidents.c.opened_at.desc(), incidents.c.id
        )
    )
    query = query.where(incidents.c.cause == cause) if cause else query
    return [_from_row(row) for row in connection.execute(query.limit(limit))]


def count_outside(connection: Connection, start: float, end: float | None) -> list[tuple[str, str, bool, int]]:
    """Return the numbers of all other incidents by service, environment ("" for all), and whether they are open."""
    where = incidents.c.finding["where", "environment"].as_string()
    by = incidents.c.service, where, incidents.c.resolved_at.is_(None)
    query = select(*by, func.count()).where(not_(_is_between(start, end))).group_by(*by)
    return [
        (service, environment or "", bool(is_open), n) for service, environment, is_open, n in connection.execute(query)
    ]


def _is_between(start: float, end: float | None) -> ColumnElement[bool]:
    ended = or_(incidents.c.resolved_at.is_(None), incidents.c.resolved_at > start)
    return ended if end is None else and_(ended, incidents.c.since < end)


def find_incidents_of(connection: Connection, kinds: Sequence[str], since: float) -> list[IncidentRecord]:
    """Return the incidents opened from *since* (Unix seconds) on whose cause starts with one of *kinds*, oldest first."""
    mine = or_(*(incidents.c.cause.startswith(kind, autoescape=True) for kind in kinds))
    query = select(incidents).where(mine, incidents.c.opened_at >= since)
    return [_from_row(row) for row in connection.execute(query.order_by(incidents.c.opened_at, incidents.c.id))]


def save_incident(connection: Connection, record: IncidentRecord) -> None:
    values = _to_row(record)
    updated = connection.execute(update(incidents).where(incidents.c.id == record.id).values(**values))
    if not updated.rowcount:
        connection.execute(insert(incidents).values(**values))


def delete_old_incidents(connection: Connection, before: float) -> None:
    """Delete the incidents that ended before *before* (Unix seconds), with their history and messages."""
    over = select(incidents.c.id).where(incidents.c.resolved_at < before)
    for table in (deliveries, transitions):
        connection.execute(delete(table).where(table.c.incident.in_(over)))
    connection.execute(delete(incidents).where(incidents.c.resolved_at < before))


def by_cause(records: Iterable[IncidentRecord]) -> dict[str, IncidentRecord]:
    return {record.cause: record for record in records}


# Fields stored in a column of the same name. The finding is one column, and three of its fields also have columns for queries.
_COLUMNS = tuple(field.name for field in fields(IncidentRecord) if field.name != "finding")


def _to_row(record: IncidentRecord) -> dict[str, Any]:
    finding = record.finding
    looked_by = {"service": finding.service, "severity": finding.severity, "since": finding.since}
    return {name: getattr(record, name) for name in _COLUMNS} | looked_by | {"finding": finding.to_json()}


def _from_row(row: Row[Any]) -> IncidentRecord:
    return IncidentRecord(finding=Finding.from_json(row.finding), **{name: getattr(row, name) for name in _COLUMNS})


def _first(row: Row[Any] | None) -> IncidentRecord | None:
    return None if row is None else _from_row(row)


LifecycleEvent = Literal["", "opened", "updated", "resolved", "reopened"]


@dataclass(frozen=True, slots=True)
class Step:
    record: IncidentRecord
    happening: LifecycleEvent = ""


def next_step(
    record: IncidentRecord | None,
    finding: Finding | None,
    *,
    cause: str,
    now: float,
    has_data: bool,
    hysteresis: Hysteresis,
    silent_since: float | None = None,
) -> Step | None:
    if record is None or not record.is_open:
        return None if finding is None else _open(record, finding, cause, now, hysteresis)
    if finding is not None:
        return _continue_open(record, finding, now, hysteresis)
    if not has_data:
        if now - record.seen_at >= hysteresis.abandon.total_seconds():
            return close_incident(record, "no_data", now)
        # Without requests, nothing recovers: the time without a finding starts again with the next request.
        silent_from = record.finding.silent_since or silent_since or record.seen_at
        silent = replace(record, finding=replace(record.finding, silent_since=silent_from), quiet_since=None)
        return None if silent == record else Step(silent)
    record = replace(record, finding=replace(record.finding, silent_since=None))
    quiet_since = record.quiet_since if record.quiet_since is not None else now
    if now - quiet_since >= hysteresis.quiet.total_seconds():
        return close_incident(record, "recovered", now)
    return Step(replace(record, quiet_since=quiet_since, seen_at=now))


def close_incident(record: IncidentRecord, ending: Ending, now: float) -> Step:
    return Step(replace(record, resolved_at=now, ending=ending, quiet_since=None), "resolved")


def _open(last: IncidentRecord | None, finding: Finding, cause: str, now: float, hysteresis: Hysteresis) -> Step:
    reopen_seconds = hysteresis.reopen.total_seconds()
    # An accepted incident is the new baseline, so it is never reopened.
    ended_at = None if last is None or last.ending == "accepted" else last.resolved_at
    if last is not None and ended_at is not None and abs(now - ended_at) <= reopen_seconds:
        return Step(_reopen(last, finding, now), "reopened")
    fresh = IncidentRecord(
        id=f"sl-{secrets.token_hex(10)}",
        cause=cause,
        finding=finding,
        opened_at=now,
        seen_at=now,
        notified_at=now,
        peak=finding.size,
    )
    return Step(fresh, "opened")


def _reopen(last: IncidentRecord, finding: Finding, now: float) -> IncidentRecord:
    return replace(
        last,
        finding=finding,
        seen_at=now,
        quiet_since=None,
        resolved_at=None,
        ending="",
        peak=max(last.peak, finding.size),
        # Acknowledgement, muting and group ended with the previous opening.
        acked_at=None,
        acked_by="",
        muted="",
        story="",
    )


def _continue_open(record: IncidentRecord, finding: Finding, now: float, hysteresis: Hysteresis) -> Step:
    before = record.finding
    escalated = before.severity == "ticket" and finding.severity == "page"
    # An incident with the severity page retains it until the end, even if only a ticket fires.
    severity = "page" if "page" in (before.severity, finding.severity) else "ticket"
    blames_another = finding.blames not in ("", before.blames)
    # After an acknowledgement only an escalation is notified.
    is_early = record.acked_at is not None or now - record.notified_at < hysteresis.update.total_seconds()
    # The first requests of a release are too few for a comparison, so its name is notified as soon as it is known.
    names_release = bool(finding.version) and not before.version and record.acked_at is None
    # The samples of the first minutes are too few to name a function.
    names_function = bool(finding.blamed_function) and not before.blamed_function and record.acked_at is None
    names_function &= not blames_another
    notify = escalated or names_release or names_function or (blames_another and not is_early)
    # The record retains the cause and release of the last notification until others are notified.
    forgets_release = bool(before.version) and not finding.version
    growth = finding if notify or not (blames_another or forgets_release) else before
    cause = finding if notify or not blames_another else before
    forgets_function = bool(before.blamed_function) and not finding.blamed_function and not blames_another
    merged = replace(
        finding,
        severity=severity,
        since=before.since,
        between=before.between,
        cause=cause.cause,
        failures=cause.failures,
        growth=growth.growth,
        functions=(before if forgets_function else growth).functions,
        version=growth.version,
    )
    record = replace(record, finding=merged, seen_at=now, quiet_since=None, peak=max(record.peak, finding.size))
    return Step(record, "updated" if notify else "")
