"""Incidents: one for each cause, opened, updated, resolved with hysteresis, reopened when it comes back soon.

`decide` is the state machine, values in and values out. `apply` writes what it decided: the incident, the transition and the
outbox rows, in the caller's one transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from . import outbox
from .message import Ending, Finding, Message, Transition
from .policy_file import Patience
from .schema import incidents, transitions
from .schema import outbox as deliveries


@dataclass(frozen=True, slots=True)
class Record:
    """An incident as it is kept. Times are Unix seconds.

    Args:
        id: Its name everywhere.
        cause: What it is about; one open incident for each.
        finding: What was found last; its severity is the highest the incident has had, its `since` never moves.
        opened_at: When it was first opened.
        seen_at: When there was last data to judge it by.
        told_at: When the last transition was.
        quiet_since: Since when nothing fires, while it is still open.
        resolved_at: When it ended.
        ending: How.
        sequence: The number of its last transition.
        peak_burn: The highest burn rate.
    """

    id: str
    cause: str
    finding: Finding
    opened_at: float
    seen_at: float
    told_at: float
    quiet_since: float | None = None
    resolved_at: float | None = None
    ending: Ending = ""
    sequence: int = 0
    peak_burn: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of an incident.

    Args:
        record: How it stands from now on.
        transition: What is to be told, or None.
    """

    record: Record
    transition: Transition | None = None


def decide(
    record: Record | None, finding: Finding | None, *, cause: str, now: float, has_data: bool, patience: Patience
) -> Step | None:
    """Return the next step of a cause, or None when there is nothing to do.

    Args:
        record: Its last incident, if it ever had one.
        finding: What fires now, or None when nothing does.
        cause: The cause.
        now: The time. [Unix seconds]
        has_data: Whether there were requests to judge by; without them nothing is good and nothing is bad.
        patience: How long things must hold.
    """
    if record is None or record.resolved_at is not None:
        return None if finding is None else _begin(record, finding, cause, now, patience)
    if finding is not None:
        return _go_on(record, finding, now, patience)
    if not has_data:
        return close(record, "no_data", now) if now - record.seen_at >= patience.abandon.total_seconds() else None
    quiet_since = record.quiet_since if record.quiet_since is not None else now
    if now - quiet_since >= patience.quiet.total_seconds():
        return close(record, "recovered", now)
    return Step(replace(record, quiet_since=quiet_since, seen_at=now))


def close(record: Record, ending: Ending, now: float) -> Step:
    """Return the step that ends an incident."""
    ended = replace(record, resolved_at=now, ending=ending, quiet_since=None, told_at=now, sequence=record.sequence + 1)
    return Step(ended, "resolved")


def find(connection: Connection, cause: str) -> Record | None:
    """Return the last incident of *cause*, open or not."""
    row = connection.execute(
        select(incidents).where(incidents.c.cause == cause).order_by(incidents.c.opened_at.desc()).limit(1)
    ).first()
    return None if row is None else _from_row(row)


def find_open(connection: Connection) -> list[Record]:
    """Return every open incident."""
    return [_from_row(row) for row in connection.execute(select(incidents).where(incidents.c.resolved_at.is_(None)))]


def newest(connection: Connection, limit: int, *, open_only: bool) -> list[Record]:
    """Return the last *limit* incidents, newest first."""
    query = select(incidents).order_by(incidents.c.opened_at.desc()).limit(limit)
    if open_only:
        query = query.where(incidents.c.resolved_at.is_(None))
    return [_from_row(row) for row in connection.execute(query)]


def apply(connection: Connection, step: Step, channels: Sequence[str], now: float) -> None:
    """Write *step* within the caller's transaction: the incident, and what is to be told to *channels*."""
    record = step.record
    values = _to_row(record)
    known = connection.execute(update(incidents).where(incidents.c.id == record.id).values(**values))
    if not known.rowcount:
        connection.execute(insert(incidents).values(**values))
    if step.transition is not None:
        outbox.record(connection, message_of(record, step.transition, now), channels)


def forget(connection: Connection, before: float) -> None:
    """Delete the incidents that ended before *before*, and what was told of them; *before* is in Unix seconds."""
    over = select(incidents.c.id).where(incidents.c.resolved_at < before)
    for table in (deliveries, transitions):
        connection.execute(delete(table).where(table.c.incident.in_(over)))
    connection.execute(delete(incidents).where(incidents.c.resolved_at < before))


def message_of(record: Record, transition: Transition, now: float) -> Message:
    """Return what is to be told; of an incident that is over, its worst burn rate."""
    finding = record.finding
    if transition == "resolved":
        finding = replace(finding, burn=record.peak_burn)
    return Message(
        incident=record.id,
        sequence=record.sequence,
        transition=transition,
        at=now,
        opened_at=record.opened_at,
        finding=finding,
        ending=record.ending,
    )


def _begin(last: Record | None, finding: Finding, cause: str, now: float, patience: Patience) -> Step:
    reopen_seconds = patience.reopen.total_seconds()
    if last is not None and last.resolved_at is not None and now - last.resolved_at <= reopen_seconds:
        return Step(_reopened(last, finding, now), "reopened")
    fresh = Record(
        id=f"sl-{secrets.token_hex(10)}",
        cause=cause,
        finding=finding,
        opened_at=now,
        seen_at=now,
        told_at=now,
        sequence=1,
        peak_burn=finding.burn,
    )
    return Step(fresh, "opened")


def _reopened(last: Record, finding: Finding, now: float) -> Record:
    return replace(
        last,
        finding=finding,
        seen_at=now,
        told_at=now,
        quiet_since=None,
        resolved_at=None,
        ending="",
        sequence=last.sequence + 1,
        peak_burn=max(last.peak_burn, finding.burn),
    )


def _go_on(record: Record, finding: Finding, now: float, patience: Patience) -> Step:
    before = record.finding
    escalated = before.severity == "ticket" and finding.severity == "page"
    # A page that calms down to a ticket stays the page it was until it is over.
    severity = "page" if "page" in (before.severity, finding.severity) else "ticket"
    blames_another = finding.blamed is not None and (
        before.blamed is None or finding.blamed.stage != before.blamed.stage
    )
    tell = escalated or (blames_another and now - record.told_at >= patience.update.total_seconds())
    # The stage in the record is the one people were told of, until they are told of another.
    growth = finding if tell or not blames_another else before
    merged = replace(
        finding,
        severity=severity,
        since=before.since,
        growth=growth.growth,
        version=growth.version,
        quantile=growth.quantile,
    )
    record = replace(
        record, finding=merged, seen_at=now, quiet_since=None, peak_burn=max(record.peak_burn, finding.burn)
    )
    if not tell:
        return Step(record)
    return Step(replace(record, told_at=now, sequence=record.sequence + 1), "updated")


def _to_row(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "cause": record.cause,
        "service": record.finding.service,
        "severity": record.finding.severity,
        "opened_at": record.opened_at,
        "since": record.finding.since,
        "seen_at": record.seen_at,
        "told_at": record.told_at,
        "quiet_since": record.quiet_since,
        "resolved_at": record.resolved_at,
        "ending": record.ending,
        "sequence": record.sequence,
        "peak_burn": record.peak_burn,
        "finding": record.finding.to_json(),
    }


def _from_row(row: Row[Any]) -> Record:
    return Record(
        id=row.id,
        cause=row.cause,
        finding=Finding.from_json(row.finding),
        opened_at=row.opened_at,
        seen_at=row.seen_at,
        told_at=row.told_at,
        quiet_since=row.quiet_since,
        resolved_at=row.resolved_at,
        ending=row.ending,
        sequence=row.sequence,
        peak_burn=row.peak_burn,
    )
