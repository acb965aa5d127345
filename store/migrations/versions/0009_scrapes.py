"""Targets that are scraped, and what was read of each last.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "scrapes",
        sa.Column("target", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("reading", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop it: the next reading of each target is its first."""
    op.drop_table("scrapes")
