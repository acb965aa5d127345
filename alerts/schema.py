"""The alert tables: incidents, what happened to them, what is to be sent, and who may act. Times are Unix seconds."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text, false

metadata = MetaData()

# One row for each cause of trouble. `finding` is what the last evaluation found; `cause` has one open incident at most.
incidents = Table(
    "incidents",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("cause", String(255), nullable=False),
    Column("service", String(255), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("since", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("told_at", Float, nullable=False),
    Column("quiet_since", Float),
    Column("resolved_at", Float),
    Column("ending", String(16), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("peak_burn", Float, nullable=False),
    Column("finding", JSON, nullable=False),
    Index("incidents_by_time", "opened_at"),
)
_still_open = incidents.c.resolved_at.is_(None)
Index("incidents_one_open", incidents.c.cause, unique=True, sqlite_where=_still_open, postgresql_where=_still_open)

# Every transition, with the message made at that moment: what is sent later is what was true then.
transitions = Table(
    "incident_transitions",
    metadata,
    Column("incident", String(32), ForeignKey("incidents.id"), primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("transition", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("message", JSON, nullable=False),
)

# One row for each transition and channel: waiting, sending (leased), sent, dead (given up), superseded (overtaken).
outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident", String(32), ForeignKey("incidents.id"), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("channel", String(64), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("transition", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Float, nullable=False),
    Column("leased_by", String(64), nullable=False),
    Column("leased_until", Float, nullable=False),
    Column("unknown", Boolean, nullable=False, server_default=false()),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    Column("error", Text, nullable=False),
    Index("outbox_once", "incident", "channel", "sequence", unique=True),
    Index("outbox_to_do", "channel", "state"),
)

# Who evaluates: one process at a time.
leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("until", Float, nullable=False),
)
