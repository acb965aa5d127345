"""Migrations of the database: one list of steps for all tables, run by Alembic."""
