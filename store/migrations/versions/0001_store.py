"""The store's tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_DIMENSIONS = ("service", "version", "environment", "model", "model_version", "route", "device", "status")

_DROPPED = sa.text("dropped > 0")


def upgrade() -> None:
    """Make the tables, and the three tiers with nothing in them."""
    op.create_table(
        "services",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), nullable=False),
        *(sa.Column(dimension, sa.Text, nullable=False) for dimension in _DIMENSIONS),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
        sa.UniqueConstraint(*_DIMENSIONS, name="series_dimensions"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "stages",
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
        sa.Column("stage", sa.Text, primary_key=True),
    )
    _create_points()
    _create_traces()
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("dropped", sa.BigInteger, nullable=False),
    )
    op.create_index("batches_by_time", "batches", ["received"])
    op.create_index("batches_dropped", "batches", ["dropped"], sqlite_where=_DROPPED, postgresql_where=_DROPPED)
    rollups = op.create_table(
        "rollups",
        sa.Column("tier", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("watermark", sa.BigInteger, nullable=False),
        sa.Column("kept_from", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(rollups, [{"tier": tier, "watermark": 0, "kept_from": 0} for tier in (10, 60, 3600)])


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
        sa.Column("scale", sa.SmallInteger, nullable=False),
        sa.Column("zero", sa.BigInteger, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("sum", sa.Double, nullable=False),
        sa.Column("histogram", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (tier, bucket)",
    )


def _create_traces() -> None:
    op.create_table(
        "traces",
        sa.Column("trace_id", sa.Text, primary_key=True),
        sa.Column("span_id", sa.Text, primary_key=True),
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("duration", sa.BigInteger, nullable=False),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("dominant", sa.Text, nullable=False),
        sa.Column("stages", sa.Text, nullable=False),
        sa.Column("spans", sa.LargeBinary, nullable=False),
    )
    op.create_index("traces_by_series", "traces", ["series_id", "started"])
    op.create_index("traces_by_time", "traces", ["started"])


def downgrade() -> None:
    """Drop everything the store has."""
    for table in ("rollups", "batches", "traces", "points", "stages", "series", "services"):
        op.drop_table(table)
