"""Database engines: SQLite, PostgreSQL, and ClickHouse for the points."""
