"""Incidents are acknowledged, muted and silenced; a finding describes a burning budget or a latency regression.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# What it is called in a burn, and what it was called before.
_BURN = {
    "rate": "burn",
    "threshold": "threshold_burn",
    "long_seconds": "long_seconds",
    "short_seconds": "short_seconds",
    "bad": "bad",
    "total": "total",
    "budget_left": "budget_left",
    "bad_left": "bad_left",
    "window_seconds": "window_seconds",
    "exhausted_in_seconds": "exhausted_in_seconds",
}
_NEW = ("name", "burn", "shift", "exemplars", "overruns", "course", "where", "absence")
_incidents = sa.table("incidents", sa.column("id"), sa.column("finding", sa.JSON))
_transitions = sa.table(
    "incident_transitions", sa.column("incident"), sa.column("sequence"), sa.column("message", sa.JSON)
)


def upgrade() -> None:
    """Add what is new, and rewrite what is kept of incidents: what was flat is in a part of its own."""
    for table, column in _columns():
        op.add_column(table, column)
    op.create_table(
        "silences",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("matchers", sa.JSON, nullable=False),
        sa.Column("starts_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
    )
    op.create_index("silences_by_end", "silences", ["ends_at"])
    op.create_table(
        "tail_references",
        sa.Column("cause", sa.String(255), primary_key=True),
        sa.Column("learnt_at", sa.Integer, nullable=False),
        sa.Column("reference", sa.Text, nullable=False),
        sa.Column("habits", sa.Text, nullable=False),
    )
    op.create_table(
        "tail_progress",
        sa.Column("cause", sa.String(255), primary_key=True),
        sa.Column("at", sa.Integer, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
    )
    op.execute("ALTER TABLE incidents RENAME COLUMN peak_burn TO peak")
    # Until now channels were told of all of them, each a story of its own.
    op.execute("UPDATE incidents SET heard = CASE WHEN resolved_at IS NULL THEN 'open' ELSE 'over' END, story = id")
    _rewrite(_parted)


def downgrade() -> None:
    """Drop it, and write findings flat again."""
    for table in ("silences", "tail_references", "tail_progress"):
        op.drop_table(table)
    for table, column in _columns():
        op.drop_column(table, column.name)
    op.execute("ALTER TABLE incidents RENAME COLUMN peak TO peak_burn")
    _rewrite(_flat)


def _columns() -> list[tuple[str, sa.Column[Any]]]:
    return [
        ("incidents", sa.Column("acked_at", sa.Float)),
        ("incidents", sa.Column("acked_by", sa.String(200), nullable=False, server_default="")),
        ("incidents", sa.Column("muted", sa.Text, nullable=False, server_default="")),
        ("incidents", sa.Column("heard", sa.String(8), nullable=False, server_default="")),
        ("incidents", sa.Column("story", sa.String(32), nullable=False, server_default="")),
        ("incident_transitions", sa.Column("note", sa.Text, nullable=False, server_default="")),
        ("leases", sa.Column("done_at", sa.Float)),
        ("outbox", sa.Column("reference", sa.Text, nullable=False, server_default="")),
    ]


def _rewrite(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.select(_incidents)).all():
        changed = sa.update(_incidents).where(_incidents.c.id == row.id).values(finding=change(row.finding))
        connection.execute(changed)
    for row in connection.execute(sa.select(_transitions)).all():
        message = {**row.message, "finding": change(row.message["finding"])}
        here = (_transitions.c.incident == row.incident) & (_transitions.c.sequence == row.sequence)
        connection.execute(sa.update(_transitions).where(here).values(message=message))


def _parted(old: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in old.items() if key != "slo" and key not in _BURN.values()}
    burn = {new: old[was] for new, was in _BURN.items()}
    added = {"shift": None, "exemplars": [], "overruns": [], "course": None, "where": {}, "absence": None}
    return {**rest, "name": old["slo"], "burn": burn, **added}


def _flat(new: dict[str, Any]) -> dict[str, Any]:
    burn: dict[str, Any] = new["burn"] or dict.fromkeys(_BURN, 0.0)
    rest = {key: value for key, value in new.items() if key not in _NEW}
    return {**rest, "slo": new["name"], **{was: burn[key] for key, was in _BURN.items()}}
