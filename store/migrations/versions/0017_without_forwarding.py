"""Without the tables of forwarding; leases of scrape targets and of the inbox are rows of `leases`; `told_at` is `notified_at`.

Running collectors acquire their leases again.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.drop_column("store", "folding_until")
    op.drop_column("scrapes", "holder")
    op.drop_column("scrapes", "until")
    for table in ("outgoing", "destinations", "identity"):
        op.drop_table(table)
    op.execute("ALTER TABLE incidents RENAME COLUMN told_at TO notified_at")
