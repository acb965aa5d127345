"""Tiers of 10 minutes, 6 hours and a day; the next roll-ups fill them from the rows of the finer tiers.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

# Number of each new tier (a day is 24 hours), and of the tier whose retention it has.
_TIERS = {600: 60, 21_600: 3600, 24: 3600}


def upgrade() -> None:
    """Add the tiers, with the retention of existing ones."""
    for tier, like in _TIERS.items():
        op.execute(
            sa.text(
                "INSERT INTO rollups (tier, watermark, kept_from) SELECT :tier, 0, kept_from FROM rollups WHERE tier = :like"
            ).bindparams(tier=tier, like=like)
        )


def downgrade() -> None:
    """Delete the tiers with their rows, in the ledger too."""
    for table in ("rollups", "ledger", "points"):
        op.execute(sa.text(f"DELETE FROM {table} WHERE tier IN (600, 21600, 24)"))  # noqa: S608 - constants
