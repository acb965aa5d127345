"""All tables of version 0.2.0. Databases of earlier builds had reached the same schema, and the same revision, in 16 steps."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = None

# Numbers of the tiers; 24 is the tier of a day.
_TIERS = (10, 60, 3600, 600, 21_600, 24)
_DIMENSIONS = ("service", "version", "environment", "model", "model_version", "route", "device", "status")

# Columns and constraints of a table.
_Items = Iterable[sa.schema.SchemaItem]


def upgrade() -> None:
    _create_series()
    _create_points()
    _create_traces()
    _create_collector_state()
    _create_events()
    _create_incidents()
    _create_outbox()
    _create_regressions()
    _create_shared_state()


def _required(kind: Any, *names: str, **options: Any) -> _Items:
    return [sa.Column(name, kind, nullable=False, **options) for name in names]


def _text(*names: str, **options: Any) -> _Items:
    return _required(sa.Text, *names, **options)


def _big(*names: str, **options: Any) -> _Items:
    return _required(sa.BigInteger, *names, **options)


def _string(length: int, *names: str, **options: Any) -> _Items:
    return _required(sa.String(length), *names, **options)


def _number() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


def _create_series() -> None:
    op.create_table(
        "services",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        *_big("revision"),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), nullable=False),
        *_text(*_DIMENSIONS),
        *_big("first_seen", "last_seen"),
        *_required(sa.Integer, "total_id", server_default="0"),
        *_text("cold", server_default="0"),
        sa.UniqueConstraint(*_DIMENSIONS, "cold", name="series_dimensions"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "stages",
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
        sa.Column("stage", sa.Text, primary_key=True),
    )
    op.create_table(
        "code_stacks",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
        *_text("text"),
        *_big("last_seen"),
    )
    op.create_index("code_stacks_by_use", "code_stacks", ["last_seen", "hash", "service_id"])


def _create_points() -> None:
    op.create_table(
        "points",
        sa.Column("tier", sa.SmallInteger, primary_key=True),
        sa.Column("service_id", sa.Integer, primary_key=True),
        sa.Column("metric", sa.SmallInteger, primary_key=True),
        sa.Column("bucket", sa.BigInteger, primary_key=True),
        sa.Column("series_id", sa.Integer, primary_key=True),
        sa.Column("stage", sa.Text, primary_key=True),
        sa.Column("part", sa.BigInteger, primary_key=True),
        *_required(sa.SmallInteger, "scale"),
        *_big("zero", "count"),
        *_required(sa.Double, "sum"),
        *_required(sa.LargeBinary, "histogram"),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (tier, bucket)",
    )
    op.create_table("intents", *_big("part", primary_key=True, autoincrement=False), *_big("taken_at"))
    op.create_table(
        "ledger",
        *_required(sa.SmallInteger, "tier", primary_key=True, autoincrement=False),
        *_big("slot", primary_key=True, autoincrement=False),
        *_big("rows", "bytes"),
    )
    rollups = op.create_table(
        "rollups",
        *_required(sa.SmallInteger, "tier", primary_key=True, autoincrement=False),
        *_big("watermark", "kept_from"),
    )
    op.bulk_insert(rollups, [{"tier": tier, "watermark": 0, "kept_from": 0} for tier in _TIERS])


def _create_traces() -> None:
    op.create_table(
        "traces",
        sa.Column("trace_id", sa.Text, primary_key=True),
        sa.Column("span_id", sa.Text, primary_key=True),
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), nullable=False),
        *_big("started", "duration"),
        *_text("because", "dominant", "stages"),
        *_required(sa.LargeBinary, "spans"),
    )
    op.create_index("traces_by_series", "traces", ["series_id", "started"])
    op.create_index("traces_by_time", "traces", ["started"])
    op.create_table(
        "inbox",
        _number(),
        *_big("received"),
        *_required(sa.SmallInteger, "counted"),
        *_big("size"),
        *_required(sa.LargeBinary, "spans"),
        sqlite_autoincrement=True,
    )
    op.create_index("inbox_by_time", "inbox", ["counted", "received", "id"])
    # Ids and times do not compress: trying would take longer than all else.
    _store_uncompressed("inbox", "spans")


def _store_uncompressed(table: str, column: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def _create_collector_state() -> None:
    op.create_table("batches", *_text("id", primary_key=True), *_big("received"), *_text("instance"), *_big("dropped"))
    has_dropped = sa.text("dropped > 0")
    op.create_index("batches_by_time", "batches", ["received"])
    op.create_index("batches_dropped", "batches", ["dropped"], sqlite_where=has_dropped, postgresql_where=has_dropped)
    op.create_table(
        "scrapes",
        *_text("target", primary_key=True),
        *_text("holder"),
        *_required(sa.Double, "until"),
        *_required(sa.LargeBinary, "reading"),
    )
    op.create_table(
        "collectors",
        *_text("id", primary_key=True),
        *_text("name", "version"),
        *_required(sa.Double, "started", "seen"),
        *_text("vitals"),
    )
    op.create_table(
        "outgoing",
        _number(),
        *_text("destination", "signal", "media_type", "via"),
        *_big("received", "size"),
        *_required(sa.LargeBinary, "body"),
        sqlite_autoincrement=True,
    )
    op.create_index("outgoing_by_destination", "outgoing", ["destination", "id", "size", "received"])
    # Bodies are compressed: trying again would take longer than all else.
    _store_uncompressed("outgoing", "body")
    op.create_table("destinations", *_text("name", primary_key=True), *_text("holder"), *_required(sa.Double, "until"))


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        *_big("at"),
        *_text("service", "kind", "key", "text", "link"),
        *_text("environment", server_default=""),
    )
    op.create_index("events_by_time", "events", ["at"])
    op.create_table(
        "loads",
        _number(),
        *_text("service", "version", "environment", "instance", "place", "phase", "model", "shape"),
        *_big("started", "ended", "own"),
    )
    op.create_index("loads_by_service", "loads", ["service", "ended"])
    op.create_index("loads_by_time", "loads", ["ended"])
    op.create_table(
        "audit",
        _number(),
        *_big("at"),
        *_text("person", "origin", "action", "subject", "service", "environment", "outcome", "reason"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_time", "audit", ["at"])


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        *_string(32, "id", primary_key=True),
        *_string(255, "cause", "service"),
        *_string(16, "severity"),
        *_required(sa.Float, "opened_at", "since", "seen_at", "told_at"),
        sa.Column("quiet_since", sa.Float),
        sa.Column("resolved_at", sa.Float),
        *_string(16, "ending"),
        *_required(sa.Integer, "sequence"),
        *_required(sa.Float, "peak"),
        *_required(sa.JSON, "finding"),
        sa.Column("acked_at", sa.Float),
        *_string(200, "acked_by", server_default=""),
        *_text("muted", server_default=""),
        *_string(8, "heard", server_default=""),
        *_string(32, "story", server_default=""),
    )
    still_open = sa.text("resolved_at IS NULL")
    op.create_index("incidents_by_time", "incidents", ["opened_at"])
    op.create_index(
        "incidents_one_open", "incidents", ["cause"], unique=True, sqlite_where=still_open, postgresql_where=still_open
    )
    op.create_table(
        "incident_transitions",
        sa.Column("incident", sa.String(32), sa.ForeignKey("incidents.id"), primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        *_string(16, "transition"),
        *_required(sa.Float, "at"),
        *_required(sa.JSON, "message"),
        *_text("note", server_default=""),
    )
    op.create_table(
        "silences",
        *_string(32, "id", primary_key=True),
        *_required(sa.JSON, "matchers"),
        *_required(sa.Float, "starts_at", "ends_at"),
        *_string(200, "author"),
        *_text("comment"),
    )
    op.create_index("silences_by_end", "silences", ["ends_at"])


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("incident", sa.String(32), sa.ForeignKey("incidents.id"), nullable=False),
        *_required(sa.Integer, "sequence"),
        *_string(64, "channel"),
        *_string(16, "severity", "transition", "state"),
        *_required(sa.Integer, "attempts"),
        *_required(sa.Float, "next_at"),
        *_string(64, "leased_by"),
        *_required(sa.Float, "leased_until"),
        *_required(sa.Boolean, "unknown", server_default=sa.false()),
        *_required(sa.Float, "created_at", "changed_at"),
        *_text("error"),
        *_text("reference", server_default=""),
    )
    op.create_index("outbox_once", "outbox", ["incident", "channel", "sequence"], unique=True)
    op.create_index("outbox_to_do", "outbox", ["channel", "state"])


def _create_regressions() -> None:
    op.create_table(
        "tail_references",
        *_string(255, "cause", primary_key=True),
        *_required(sa.Integer, "learnt_at"),
        *_text("reference", "habits"),
    )
    op.create_table(
        "tail_progress",
        *_string(255, "cause", primary_key=True),
        *_required(sa.Integer, "at"),
        *_text("progress"),
    )
    op.create_table("tail_accepted", *_string(255, "cause", primary_key=True), *_required(sa.Integer, "since", "at"))


def _create_shared_state() -> None:
    store = op.create_table(
        "store",
        *_required(sa.SmallInteger, "id", primary_key=True, autoincrement=False),
        *_big("last_part", "series_epoch"),
        *_big("folding_until", server_default="0"),
    )
    op.bulk_insert(store, [{"id": 1, "last_part": 0, "series_epoch": 0}])
    op.create_table("keys", *_string(64, "name", primary_key=True), *_string(64, "value"))
    op.create_table(
        "leases",
        *_string(64, "name", primary_key=True),
        *_string(64, "holder"),
        *_required(sa.Float, "until"),
        sa.Column("done_at", sa.Float),
    )
    identity = op.create_table("identity", *_text("id", primary_key=True))
    op.bulk_insert(identity, [{"id": secrets.token_hex(8)}])
