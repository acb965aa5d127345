"""Opening the database: the SQLite engine, its pragmas, migrations, and errors in the words of the person who runs it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from ...core.errors import StoreError

_MIGRATIONS = Path(__file__).parent / "migrations"
# The execution option that makes a transaction take the write lock when it begins, not at its first write: two that
# upgrade later can only fail.
_WRITES = "stagelens_writes"

# Measured on points of a fleet: 8 kB pages keep one-hour histograms out of overflow pages; FULL costs one fsync a
# commit and nothing once several batches share it.
_PRAGMAS = (
    "PRAGMA busy_timeout = 10000",
    "PRAGMA page_size = 8192",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 2000",
)
_LOCKED_SECONDS, _PAUSE_SECONDS = 10.0, 0.02

_CURES = (
    ("readonly", "it is read-only; give this user the right to write to the file and to its folder"),
    ("read-only", "it is read-only; give this user the right to write to the file and to its folder"),
    ("not a database", "it is not an SQLite database; give another path, or move the file away"),
    ("malformed", "it is damaged; move the file away, and restore it from a backup"),
    ("unable to open", "the file cannot be opened; check that its folder exists and that this user may write to it"),
    ("full", "the disk is full; free some space, nothing else has to be done"),
    ("locked", "another process is writing to it; stop it, or let it finish"),
    ("disk i/o", "the disk reported an error; check the disk and the space left on it"),
)


def location(url: URL) -> str:
    """Return how messages name the database at *url*: its file."""
    return url.database or str(url)


def open_engine(url: str) -> Engine:
    """Return the engine of the SQLite database at *url*; nothing is opened yet.

    Raises:
        StoreError: *url* is not the URL of an SQLite file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        msg = f"the database URL {url!r} cannot be read; write sqlite:///path/to/stagelens.db"
        raise StoreError(msg) from error
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        msg = (
            f"the database URL is {url!r}; this version stores in an SQLite file: write sqlite:///path/to/stagelens.db"
        )
        raise StoreError(msg)
    engine = create_engine(parsed, pool_size=8, max_overflow=24, connect_args={"timeout": 10})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not open transactions by itself: `_begin` does.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        _set(connection, pragma)


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    """Execute *pragma*; of several that turn a new file to WAL, all but one are refused at once: the timeout is not for them."""
    deadline = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            connection.execute(pragma).close()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def explained(url: URL, doing: str) -> Generator[None]:
    """Turn errors of the database into `StoreError`, with the file and the cure.

    Args:
        url: Which database.
        doing: What was tried, as in "cannot open".
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        said = str(error.orig if isinstance(error, DBAPIError) else error)
        cure = next((cure for sign, cure in _CURES if sign in said.lower()), "see what the database said")
        msg = f"{doing} {location(url)}: {cure} ({said})"
        raise StoreError(msg) from error


@contextmanager
def writing(engine: Engine, doing: str) -> Generator[Connection]:
    """Give a connection in a transaction that may write; it commits at the end, or rolls back.

    Raises:
        StoreError: The database cannot begin, write or commit; nothing was written.
    """
    with explained(engine.url, doing), engine.connect() as plain:
        connection = plain.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the tables to *revision*, up or down, in one transaction.

    Raises:
        StoreError: The database was written by a newer Stagelens, or cannot be changed.
    """
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    with writing(engine, "cannot open") as connection:
        present = MigrationContext.configure(connection).get_current_revision()
        # From base to head.
        known = [None, *reversed([found.revision for found in script.walk_revisions()])]
        if present not in known:
            msg = (
                f"cannot open {location(engine.url)}: it was written by a newer Stagelens (schema {present}); "
                "upgrade Stagelens, or give another path"
            )
            raise StoreError(msg)
        target = {"head": known[-1], "base": None}.get(revision, revision)
        config.attributes["connection"] = connection
        if known.index(target) < known.index(present):
            command.downgrade(config, revision)
        elif target != present:
            command.upgrade(config, revision)
        # A transaction on a read-only file begins without complaint; this changes nothing, but may not be done there.
        connection.exec_driver_sql("DELETE FROM alembic_version WHERE version_num IS NULL")
