"""Bodies that wait to be forwarded, their forwarding process, and an id of the store that detects bodies that come back.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Create the tables, and name the store."""
    op.create_table(
        "outgoing",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("media_type", sa.Text, nullable=False),
        sa.Column("via", sa.Text, nullable=False),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("outgoing_by_destination", "outgoing", ["destination", "id", "size", "received"])
    if op.get_bind().dialect.name == "postgresql":
        # They are compressed: trying again would take longer than all else.
        op.execute("ALTER TABLE outgoing ALTER COLUMN body SET STORAGE EXTERNAL")
    op.create_table(
        "destinations",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
    )
    identity = op.create_table("identity", sa.Column("id", sa.Text, primary_key=True))
    op.bulk_insert(identity, [{"id": secrets.token_hex(8)}])


def downgrade() -> None:
    """Drop all three; bodies that wait to be forwarded are lost."""
    op.drop_table("identity")
    op.drop_table("destinations")
    op.drop_table("outgoing")
