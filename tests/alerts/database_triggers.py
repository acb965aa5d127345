"""Database triggers: one that blocks a writer so that a test can kill it, and one that records changes of the lease holder."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from stagelens.store import Store

# Statement that never ends, before or after a row is written.
_ENDLESS = {
    "sqlite": [
        """
        CREATE TRIGGER endless {when} INSERT ON {table} BEGIN
            SELECT count(*) FROM points, points AS b, points AS c, points AS d, points AS e, points AS f;
        END
        """,
    ],
    "postgresql": [
        """
        CREATE FUNCTION endless() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(3600); RETURN NEW; END'
        """,
        "CREATE TRIGGER endless {when} INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION endless()",
    ],
}
_ENDED = {"sqlite": ["DROP TRIGGER endless"], "postgresql": ["DROP FUNCTION endless CASCADE"]}
# A row for each takeover of the evaluation lease: the end of the previous lease, and the time of the takeover.
_TURNS = {
    "sqlite": [
        "CREATE TABLE turns (lasted FLOAT, taken FLOAT)",
        """
        CREATE TRIGGER turned AFTER UPDATE ON leases WHEN NEW.name = 'evaluate' AND NEW.holder <> OLD.holder BEGIN
            INSERT INTO turns VALUES (OLD.until, (julianday('now') - 2440587.5) * 86400);
        END
        """,
    ],
    "postgresql": [
        "CREATE TABLE turns (lasted FLOAT, taken FLOAT)",
        """
        CREATE FUNCTION turned() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO turns VALUES (OLD.until, extract(epoch FROM clock_timestamp())); RETURN NULL; END'
        """,
        """
        CREATE TRIGGER turned AFTER UPDATE ON leases FOR EACH ROW
        WHEN (NEW.name = 'evaluate' AND NEW.holder <> OLD.holder) EXECUTE FUNCTION turned()
        """,
    ],
}
_SLEEPERS = "SELECT {} FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


def begin_endless(store: Store, when: str, table: str) -> None:
    _run(store, _ENDLESS, when=when, table=table)


def end_endless(store: Store) -> None:
    if store.engine.dialect.name == "postgresql":
        # The server would detect the closed connection only when it sends a response.
        with store.engine.connect() as connection:
            connection.exec_driver_sql(_SLEEPERS.format("pg_terminate_backend(pid)"))
    _run(store, _ENDED)


def is_stuck(store: Store) -> bool:
    if store.engine.dialect.name == "postgresql":
        with store.engine.connect() as connection:
            return bool(connection.exec_driver_sql(_SLEEPERS.format("count(*)")).scalar())
    # All other transactions end immediately.
    with closing(sqlite3.connect(str(store.engine.url.database), timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def note_turns(store: Store) -> None:
    _run(store, _TURNS)


def turns(store: Store) -> list[tuple[float, float]]:
    with store.engine.connect() as connection:
        return [(lasted, taken) for lasted, taken in connection.exec_driver_sql("SELECT lasted, taken FROM turns")]


def _run(store: Store, statements: dict[str, list[str]], **names: str) -> None:
    with store.transaction() as connection:
        for statement in statements[store.engine.dialect.name]:
            connection.exec_driver_sql(statement.format(**names))
