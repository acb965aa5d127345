"""Audit log: who did what, from where, and with which outcome. Rows are only added, and deleted after `AUDIT_RETENTION`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import Connection, delete, insert, select

from . import schema
from .schema import storable

Origin = Literal["dashboard", "api", "slack", "pagerduty", "command line"]
Outcome = Literal["done", "refused", "failed"]
# As long as incidents and silences.
AUDIT_RETENTION = timedelta(days=395)
MAX_CHARS = 500
_COLUMNS = ("person", "origin", "action", "subject", "service", "environment", "outcome", "reason")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    person: str
    origin: Origin
    action: str  # The action, such as `acknowledge` or `sign in`
    subject: str = ""
    service: str = ""
    environment: str = ""
    outcome: Outcome = "done"  # `done`, `refused` (role or credentials are missing) or `failed`
    reason: str = ""  # Reason of the outcome; "" for `done`


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """Write *entry*; long texts are cut to `MAX_CHARS`."""
    texts = {name: storable(getattr(entry, name))[:MAX_CHARS] for name in _COLUMNS}
    connection.execute(insert(schema.audit).values(at=int(entry.at.timestamp() * 1000), **texts))


def read_entries(connection: Connection, start: datetime, end: datetime, limit: int) -> list[AuditEntry]:
    table = schema.audit
    statement = (
        select(table)
        .where(table.c.at >= int(start.timestamp() * 1000), table.c.at < int(end.timestamp() * 1000))
        .order_by(table.c.at.desc(), table.c.id.desc())
        .limit(limit)
    )
    return [
        AuditEntry(datetime.fromtimestamp(row.at / 1000, UTC), *(getattr(row, name) for name in _COLUMNS))
        for row in connection.execute(statement)
    ]


def forget_entries(connection: Connection, now: int) -> None:
    """Delete the entries older than `AUDIT_RETENTION` at *now*, in Unix seconds."""
    table = schema.audit
    connection.execute(delete(table).where(table.c.at < (now - int(AUDIT_RETENTION.total_seconds())) * 1000))
