"""The relational database: engine, transactions, migrations, and errors with the fix for the operator."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from ...core.errors import StoreError
from . import postgresql, sqlite
from .dialect import Dialect

_MIGRATIONS = Path(__file__).parents[1] / "migrations"
_DIALECTS: dict[str, Dialect] = {"sqlite": sqlite, "postgresql": postgresql}
_DEFAULT_FIX = "see what the database said"
_URL_FORMS = "sqlite:///path/to/stagelens.db or postgresql://user:password@host/database"


def dialect(url: URL) -> Dialect:
    """Return the dialect of the database at *url*.

    Raises:
        StoreError: The store does not support this kind of database.
    """
    known = _DIALECTS.get(url.get_backend_name())
    if known is None:
        msg = f"the database URL is {url.render_as_string()!r}; write {_URL_FORMS}"
        raise StoreError(msg)
    return known


def location(url: URL) -> str:
    """Return the name of the database at *url* for messages."""
    return dialect(url).location(url)


def open_engine(url: str, budget_bytes: int | None = None) -> Engine:
    """Return the engine of the database at *url*; nothing is opened yet.

    Args:
        url: Of an SQLite file or a PostgreSQL database.
        budget_bytes: Maximum size of an SQLite file.

    Raises:
        StoreError: *url* is neither.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        # The part before the last "@" may contain a password.
        msg = f"the database URL {url.rpartition('@')[2]!r} cannot be read; write {_URL_FORMS}"
        raise StoreError(msg) from error
    return dialect(parsed).open_engine(parsed, budget_bytes)


@contextmanager
def explain_errors(engine: Engine, doing: str) -> Generator[None]:
    """Convert errors of the database to `StoreError` with the place and the fix.

    Args:
        engine: The database.
        doing: The attempted action, as in "cannot open".
    """
    try:
        yield
    # The driver's own cursors, used for points, raise the driver's own errors.
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        said = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        # PostgreSQL quotes the statement below the error; messages are for people, and for clients of /readyz.
        said = said.partition("\nLINE ")[0]
        cure = next((cure for sign, cure in dialect(engine.url).FIXES if sign in said.lower()), _DEFAULT_FIX)
        msg = f"{doing} {location(engine.url)}: {cure} ({said})"
        raise StoreError(msg) from error


@contextmanager
def reading(engine: Engine) -> Generator[Connection]:
    """Give a connection with a consistent snapshot.

    Raises:
        StoreError: The database cannot be read.
    """
    known = dialect(engine.url)
    with explain_errors(engine, "cannot read"), engine.connect() as plain:
        connection = known.for_reading(plain)
        with connection.begin():
            known.hold(connection)
            yield connection


@contextmanager
def writing(engine: Engine, doing: str) -> Generator[Connection]:
    """Give a connection in an exclusive write transaction; it commits at the end, or rolls back.

    Raises:
        StoreError: The database cannot begin, write or commit; nothing was written.
    """
    known = dialect(engine.url)
    with explain_errors(engine, doing), engine.connect() as plain:
        connection = known.for_writing(plain)
        with connection.begin():
            known.lock(connection)
            yield connection


@contextmanager
def exclusively(engine: Engine, doing: str) -> Generator[Connection]:
    """Give a connection for several transactions that no other holder of this lock interrupts.

    Raises:
        StoreError: The database cannot begin, write or commit.
    """
    known = dialect(engine.url)
    with explain_errors(engine, doing), engine.connect() as plain:
        connection = known.for_writing(plain)
        with known.exclusive(connection):
            yield connection


def used_bytes(connection: Connection) -> int:
    """Return the size of the tables, without reusable free space."""
    return dialect(connection.engine.url).used_bytes(connection)


def compact_traces(connection: Connection) -> bool:
    """Reclaim the space of deleted traces; return whether there was any."""
    return dialect(connection.engine.url).compact_traces(connection)


def migrate(engine: Engine, revision: str = "head") -> None:
    """Migrate the tables to *revision*, up or down, in one transaction.

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
                "upgrade Stagelens, or give another database"
            )
            raise StoreError(msg)
        target = {"head": known[-1], "base": None}.get(revision, revision)
        config.attributes["connection"] = connection
        if known.index(target) < known.index(present):
            command.downgrade(config, revision)
        elif target != present:
            command.upgrade(config, revision)
        # A transaction on a read-only file begins without an error; this statement changes nothing, but raises it.
        connection.exec_driver_sql("DELETE FROM alembic_version WHERE version_num IS NULL")
