"""Where a store is kept: SQLite, PostgreSQL, and ClickHouse for the points."""
