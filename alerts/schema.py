"""Tables of the alerts: incidents, their history, the outbox, baselines and leases. Times are Unix seconds."""

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
    Column("peak", Float, nullable=False),
    Column("finding", JSON, nullable=False),
    # Who looks after it since when; nobody while `acked_at` is null.
    Column("acked_at", Float),
    Column("acked_by", String(200), nullable=False, server_default=""),
    # Why nobody is told (a silence, maintenance, an incident above it); empty when people are.
    Column("muted", Text, nullable=False, server_default=""),
    # What channels know of it: nothing, that it is open, or that it is over.
    Column("heard", String(8), nullable=False, server_default=""),
    # The incident that began the story it belongs to: what is told as one.
    Column("story", String(32), nullable=False, server_default=""),
    Index("incidents_by_time", "opened_at"),
)
_still_open = incidents.c.resolved_at.is_(None)
Index("incidents_one_open", incidents.c.cause, unique=True, sqlite_where=_still_open, postgresql_where=_still_open)

# Every transition, with the message made at that moment: what is sent later is what was true then. `note` says who
# acknowledged it, or why nobody is told of it.
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
    # What the channel wants to be told with the next message of the incident, such as Slack's thread.
    Column("reference", Text, nullable=False, server_default=""),
    Index("outbox_once", "incident", "channel", "sequence", unique=True),
    Index("outbox_to_do", "channel", "state"),
)

# What people do not want to be told for a while. `matchers` is a JSON object of an incident's dimensions to their values.
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

# What is normal for each series whose tail is watched, learnt from its last days, as JSON; `learnt_at` is a minute since the epoch.
tail_references = Table(
    "tail_references",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("learnt_at", Integer, nullable=False),
    Column("reference", Text, nullable=False),
    Column("habits", Text, nullable=False),
)

# Where each of them, and each pair of versions, stands; `at` is the minute up to which it was judged. Written every minute:
# that is why it is not in the same row.
tail_progress = Table(
    "tail_progress",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("at", Integer, nullable=False),
    Column("progress", Text, nullable=False),
)

# What somebody took for normal, of a series or of a pair of versions: the minutes from `since` on show it, and `at` is the first
# minute after it was accepted.
tail_accepted = Table(
    "tail_accepted",
    metadata,
    Column("cause", String(255), primary_key=True),
    Column("since", Integer, nullable=False),
    Column("at", Integer, nullable=False),
)

# Random keys that all processes over this database share, as hexadecimal digits.
keys = Table(
    "keys",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(64), nullable=False),
)

# Who evaluates: one process at a time. `done_at` is when it was last done, by whom ever.
leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("until", Float, nullable=False),
    Column("done_at", Float),
)
