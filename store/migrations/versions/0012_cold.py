"""Requests in which something was loaded or warmed up are series of their own: the column `cold`.

Revision ID: 0012
Revises: 0010
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0012"
down_revision = "0010"

_BEFORE = ("service", "version", "environment", "model", "model_version", "route", "device", "status")
_UNIQUE = "series_dimensions"
_NUMBERED = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'series'")


def upgrade() -> None:
    """Add the column; existing series have no value and count as before."""
    with _anew() as table:
        table.add_column(sa.Column("cold", sa.Text, nullable=False, server_default="0"))
        table.drop_constraint(_UNIQUE, type_="unique")
        table.create_unique_constraint(_UNIQUE, [*_BEFORE, "cold"])


def downgrade() -> None:
    """Drop the column and the cold series; their requests are no longer included."""
    op.execute("DELETE FROM traces WHERE series_id IN (SELECT id FROM series WHERE cold = '1')")
    op.execute("DELETE FROM series WHERE cold = '1'")
    op.execute("UPDATE store SET series_epoch = series_epoch + 1")
    with _anew() as table:
        table.drop_constraint(_UNIQUE, type_="unique")
        table.drop_column("cold")
        table.create_unique_constraint(_UNIQUE, list(_BEFORE))


@contextmanager
def _anew() -> Generator[BatchOperations]:
    """Give the table to be changed. SQLite changes no constraint: it is written anew, and must go on numbering where it was."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    numbered = op.get_bind().execute(_NUMBERED).scalar() if is_sqlite else None
    with op.batch_alter_table("series", table_kwargs={"sqlite_autoincrement": True}) as table:
        yield table
    if numbered is not None:
        op.execute("DELETE FROM sqlite_sequence WHERE name = 'series'")
        op.execute(sa.text("INSERT INTO sqlite_sequence VALUES ('series', :seq)").bindparams(seq=numbered))
