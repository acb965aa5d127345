"""An incident as it is kept: one row, read and written whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Connection, Row, delete, insert, select, update

from ...store.schema import storable
from ..delivery.message import Ending, Finding
from ..schema import incidents, transitions
from ..schema import outbox as deliveries

# What channels know of an incident: nothing, that it is open, or that it is over.
ChannelState = Literal["", "open", "over"]


@dataclass(frozen=True, slots=True)
class IncidentRecord:
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
        peak: The largest `Finding.size` it has had.
        acked_at: Since when somebody looks after it; None while nobody does.
        acked_by: Who; of one that was accepted, who accepted it.
        muted: Why nobody is told; empty when people are.
        heard: What channels know of it.
        story: The incident that began the story it belongs to; its own id when it did.
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
    peak: float = 0.0
    acked_at: float | None = None
    acked_by: str = ""
    muted: str = ""
    heard: ChannelState = ""
    story: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is not over."""
        return self.resolved_at is None


def find_last_incident(connection: Connection, cause: str) -> IncidentRecord | None:
    """Return the last incident of *cause*, open or not."""
    last = select(incidents).where(incidents.c.cause == cause).order_by(incidents.c.opened_at.desc()).limit(1)
    return _first(connection.execute(last).first())


def get_incident(connection: Connection, name: str) -> IncidentRecord | None:
    """Return the incident with the id *name*."""
    return _first(connection.execute(select(incidents).where(incidents.c.id == storable(name))).first())


def find_open_incidents(connection: Connection) -> list[IncidentRecord]:
    """Return every open incident, the oldest first."""
    still = select(incidents).where(incidents.c.resolved_at.is_(None)).order_by(incidents.c.opened_at, incidents.c.id)
    return [_from_row(row) for row in connection.execute(still)]


def newest_incidents(connection: Connection, limit: int, *, open_only: bool = False) -> list[IncidentRecord]:
    """Return the last *limit* incidents, newest first."""
    query = select(incidents).order_by(incidents.c.opened_at.desc(), incidents.c.id).limit(limit)
    if open_only:
        query = query.where(incidents.c.resolved_at.is_(None))
    return [_from_row(row) for row in connection.execute(query)]


def save_incident(connection: Connection, record: IncidentRecord) -> None:
    """Write *record* over what was kept of it, or as a new one."""
    values = _to_row(record)
    known = connection.execute(update(incidents).where(incidents.c.id == record.id).values(**values))
    if not known.rowcount:
        connection.execute(insert(incidents).values(**values))


def delete_old_incidents(connection: Connection, before: float) -> None:
    """Delete the incidents that ended before *before*, and what was told of them; *before* is in Unix seconds."""
    over = select(incidents.c.id).where(incidents.c.resolved_at < before)
    for table in (deliveries, transitions):
        connection.execute(delete(table).where(table.c.incident.in_(over)))
    connection.execute(delete(incidents).where(incidents.c.resolved_at < before))


def by_cause(records: Iterable[IncidentRecord]) -> dict[str, IncidentRecord]:
    """Return *records* by their causes."""
    return {record.cause: record for record in records}


# Of a record, what is a column of the same name; the finding is one too, and two of its fields are columns to look by.
_COLUMNS = tuple(each.name for each in fields(IncidentRecord) if each.name != "finding")


def _to_row(record: IncidentRecord) -> dict[str, Any]:
    finding = record.finding
    looked_by = {"service": finding.service, "severity": finding.severity, "since": finding.since}
    return {name: getattr(record, name) for name in _COLUMNS} | looked_by | {"finding": finding.to_json()}


def _from_row(row: Row[Any]) -> IncidentRecord:
    return IncidentRecord(finding=Finding.from_json(row.finding), **{name: getattr(row, name) for name in _COLUMNS})


def _first(row: Row[Any] | None) -> IncidentRecord | None:
    return None if row is None else _from_row(row)
