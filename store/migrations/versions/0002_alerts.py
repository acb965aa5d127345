"""The tables of the alerts: incidents, their transitions, the outbox and the leases.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    _create_incidents()
    _create_outbox()
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Drop them, and with them the history of alerts."""
    for table in ("leases", "outbox", "incident_transitions", "incidents"):
        op.drop_table(table)


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("cause", sa.String(255), nullable=False),
        sa.Column("service", sa.String(255), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Column("told_at", sa.Float, nullable=False),
        sa.Column("quiet_since", sa.Float),
        sa.Column("resolved_at", sa.Float),
        sa.Column("ending", sa.String(16), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("peak_burn", sa.Float, nullable=False),
        sa.Column("finding", sa.JSON, nullable=False),
    )
    op.create_index("incidents_by_time", "incidents", ["opened_at"])
    still_open = sa.text("resolved_at IS NULL")
    op.create_index(
        "incidents_one_open", "incidents", ["cause"], unique=True, sqlite_where=still_open, postgresql_where=still_open
    )
    op.create_table(
        "incident_transitions",
        sa.Column("incident", sa.String(32), sa.ForeignKey("incidents.id"), primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("transition", sa.String(16), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("message", sa.JSON, nullable=False),
    )


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("incident", sa.String(32), sa.ForeignKey("incidents.id"), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("channel", sa.String(64), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("transition", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("leased_by", sa.String(64), nullable=False),
        sa.Column("leased_until", sa.Float, nullable=False),
        sa.Column("unknown", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("outbox_once", "outbox", ["incident", "channel", "sequence"], unique=True)
    op.create_index("outbox_to_do", "outbox", ["channel", "state"])
