"""Database tables of the alerts: incidents, their history, the outbox and baselines. Times are Unix seconds."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text, false

metadata = MetaData()

# Incidents. `finding` is the result of the last evaluation; a `cause` has at most one open incident.
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
    Column("notified_at", Float, nullable=False),
    Column("quiet_since", Float),
    Column("resolved_at", Float),
    Column("ending", String(16), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("peak", Float, nullable=False),
    Column("finding", JSON, nullable=False),
    # Acknowledgement; not acknowledged while `acked_at` is null.
    Column("acked_at", Float),
    Column("acked_by", String(200), nullable=False, server_default=""),
    # Reason for muting (a silence, maintenance, another incident of the group); empty if the incident is not muted.
    Column("muted", Text, nullable=False, server_default=""),
    # Last event that was sent to channels: "" none, "open" the opening, "over" the end.
    Column("heard", String(8), nullable=False, server_default=""),
    # Id of the first incident of the group; a group is notified as one.
    Column("story", String(32), nullable=False, server_default=""),
    Index("incidents_by_time", "opened_at"),
)
_still_open = incidents.c.resolved_at.is_(None)
Index("incidents_one_open", incidents.c.cause, unique=True, sqlite_where=_still_open, postgresql_where=_still_open)

# Transitions, with the message at that time, which later attempts send unchanged. `note` is the person who acknowledged, or
# the reason for muting.
transitions = Table(
    "incident_transitions",
    metadata,
    Column("incident", String(32), ForeignKey("incidents.id"), primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("transition", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("message", JSON, nullable=False),
    Column("note", Text, nullable=False, server_default=""),
)

# One row per transition and channel: waiting, sending (leased), sent, dead (failed for good), superseded (by a newer one).
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
    # Reference that the channel needs for the next message of the incident, such as a Slack thread.
    Column("reference", Text, nullable=False, server_default=""),
    Index("outbox_once", "incident", "channel", "sequence", unique=True),
    Index("outbox_to_do", "channel", "state"),
)

# Silences. `matchers` is a JSON object of incident dimensions and their values.
silences = Table(
    "silences",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("matchers", JSON, nullable=False),
    Column("starts_at", Float, nullable=False),
    Column("ends_at", Float, nullable=False),
    Column("author", String(200), nullable=False),
    Column("comment", Text, nullable=False),
    Index("silences_by_end", "ends_at"),
)

# Learnt baseline of each watched series as JSON; `learnt_at` is in minutes since the epoch.
tail_references = Table(
    "tail_references",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("learnt_at", Integer, nullable=False),
    Column("reference", Text, nullable=False),
    Column("habits", Text, nullable=False),
)

# Alarm state of each series and version pair; `at` is the last evaluated minute. A separate table, because it is written every
# minute.
tail_progress = Table(
    "tail_progress",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("at", Integer, nullable=False),
    Column("progress", Text, nullable=False),
)

# Accepted latency levels of series and version pairs: the level starts at minute `since`; `at` is the first minute after the
# acceptance.
tail_accepted = Table(
    "tail_accepted",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("since", Integer, nullable=False),
    Column("at", Integer, nullable=False),
)

# Random keys in hexadecimal digits, shared by all processes on this database.
keys = Table(
    "keys", metadata, Column("name", String(64), primary_key=True), Column("value", String(64), nullable=False)
)

# Name of the lease of the process that evaluates.
EVALUATION_LEASE = "evaluate"
