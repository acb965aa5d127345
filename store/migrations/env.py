"""Run by Alembic, never imported: it migrates over the connection `database.migrate` has opened."""

from __future__ import annotations

from alembic import context

# The transaction is begun and committed by the caller: either all steps happen or none.
context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
