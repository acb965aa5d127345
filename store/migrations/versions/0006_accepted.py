"""Accepted new baselines of series with a latency regression.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tail_accepted",
        sa.Column("cause", sa.String(255), primary_key=True),
        sa.Column("since", sa.Integer, nullable=False),
        sa.Column("at", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    """Drop the table; accepted regressions may be notified again."""
    op.drop_table("tail_accepted")
