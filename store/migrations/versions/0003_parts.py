"""Shared state of all writers: parts in progress, rows of each tier, and totals.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

# Tier to the seconds that are forgotten as a whole.
_SLOTS = {10: 3600, 60: 3600, 3600: 86_400}


def upgrade() -> None:
    """Create the tables, and fill them from what is there."""
    op.create_table(
        "store",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("last_part", sa.BigInteger, nullable=False),
        sa.Column("series_epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "intents",
        sa.Column("part", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("taken_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ledger",
        sa.Column("tier", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("slot", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO store SELECT 1, coalesce(max(number), 0), 0 "
        "FROM (SELECT revision AS number FROM services UNION ALL SELECT max(part) FROM points) AS numbers"
    )
    _add_totals()
    for tier, seconds in _SLOTS.items():
        op.execute(
            f"INSERT INTO ledger SELECT tier, bucket - bucket % {seconds}, count(*), sum(length(histogram)) "  # noqa: S608 - constants
            f"FROM points WHERE tier = {tier} GROUP BY tier, bucket - bucket % {seconds}"
        )


def _add_totals() -> None:
    """Number the totals, and count what is there in them too: as rows that are not added up, which reading does."""
    op.add_column("series", sa.Column("total_id", sa.Integer, nullable=False, server_default="0"))
    op.execute(
        "UPDATE series SET total_id = (SELECT min(id) FROM series AS first WHERE first.service = series.service "
        "AND first.version = series.version AND first.environment = series.environment AND first.status = series.status)"
    )
    op.execute(
        # A part of its own for each row: many series have the same total.
        "INSERT INTO points SELECT tier, points.service_id, -metric, bucket, total_id, stage, "
        "-(part * 1048576 + series_id), scale, zero, count, sum, histogram "
        "FROM points JOIN series ON series.id = points.series_id WHERE tier > 10"
    )


def downgrade() -> None:
    """Drop them."""
    op.execute("DELETE FROM points WHERE metric < 0")
    op.drop_column("series", "total_id")
    for table in ("ledger", "intents", "store"):
        op.drop_table(table)
