"""Phases of the cold starts of replicas.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "loads",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger, nullable=False),
        sa.Column("own", sa.BigInteger, nullable=False),
    )
    op.create_index("loads_by_service", "loads", ["service", "ended"])
    op.create_index("loads_by_time", "loads", ["ended"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("loads")
