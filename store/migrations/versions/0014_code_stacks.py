"""Texts of the call stacks of the tail profiler.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "code_stacks",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
    )
    op.create_index("code_stacks_by_use", "code_stacks", ["last_seen", "hash", "service_id"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("code_stacks")
