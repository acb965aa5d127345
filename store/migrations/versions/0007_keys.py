"""Keys that all processes over one database share.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "keys", sa.Column("name", sa.String(64), primary_key=True), sa.Column("value", sa.String(64), nullable=False)
    )


def downgrade() -> None:
    """Drop it: what was signed is worth nothing any more."""
    op.drop_table("keys")
