"""Spans that wait until their requests are whole.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the table, and a column for the process that assembles its spans."""
    op.create_table(
        "inbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.SmallInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("spans", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("inbox_by_time", "inbox", ["counted", "received", "id"])
    if op.get_bind().dialect.name == "postgresql":
        # Ids and times do not compress: trying would take longer than all else.
        op.execute("ALTER TABLE inbox ALTER COLUMN spans SET STORAGE EXTERNAL")
    op.add_column("store", sa.Column("folding_until", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop both: what waits is lost."""
    op.drop_column("store", "folding_until")
    op.drop_table("inbox")
