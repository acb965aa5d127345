"""Environment script of Alembic: runs the migrations on the connection that `database.migrate` has opened."""

from __future__ import annotations

from alembic import context

# The caller starts and commits the transaction, so either all steps are applied or none.
context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
