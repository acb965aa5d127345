"""PostgreSQL: one writer at a time, readers without waits, and points in partitions that are deleted as a whole."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Text, create_engine, event, literal_column, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, OperationalError

from ...core.errors import StoreError
from .. import schema
from ..points import PointRow
from ..schema import floor_to, tier_code
from ..storage import InUseError

# Id of the advisory lock, unique in this database: "stagelen" in ASCII.
_LOCK = 0x73746167656C656E
_LOCK_SECONDS, _IDLE_SECONDS = 10, 60
# Execution option with the statement that locks at the start of a transaction, and its values.
_LOCK_OPTION = "stagelens_lock"
_HOLD_POINTS = "LOCK TABLE ONLY points IN ACCESS SHARE MODE"
_LOCK_WRITERS = (
    f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; "
    f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'; "
    f"SELECT pg_advisory_xact_lock({_LOCK})"
)
# Differs after a database was created again, restored in place or from a file copy, and after each start of the server.
GENERATION = literal_column(
    "concat_ws(' ', pg_postmaster_start_time(), pg_relation_filenode('series'), "
    "(SELECT oid FROM pg_database WHERE datname = current_database()))",
    Text,
)
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOCK_NOT_AVAILABLE = "55P03"
_DROP_MILLISECONDS = 200
_DAY = 86_400
# Length of a partition of `points`, by tier: a few dozen partitions in all.
FREED_SECONDS = {10: 6 * 3600, 60: _DAY, 600: 4 * _DAY, 3600: 32 * _DAY, 21_600: 128 * _DAY, _DAY: 128 * _DAY}
_FREED_BY_CODE = {tier_code(tier): seconds for tier, seconds in FREED_SECONDS.items()}

FIXES = (
    ("password authentication failed", "the server rejects this user or password; check both in STAGELENS_DATABASE"),
    ("no password supplied", "the server requires a password; set one in STAGELENS_DATABASE or PGPASSWORD"),
    ("relation ", "a table is missing, as in a new database; restart Stagelens, which creates the tables"),
    ("does not exist", "there is no such database or role; create it, or correct STAGELENS_DATABASE"),
    ("permission denied", "this user lacks the right; grant it CREATE on the schema"),
    ("read-only transaction", "this server is a standby; set the primary in STAGELENS_DATABASE"),
    ("no space left", "the server's disk is full; free some space, writing then continues automatically"),
    ("lock timeout", "another process has been writing for a long time; stop it, or let it finish"),
    ("too many", "the server has no connection left; raise max_connections, or use a connection pooler"),
    ("connection", "the server cannot be reached; check that it runs, its address and its port"),
    ("resolve host", "there is no such host; correct STAGELENS_DATABASE"),
)


def open_engine(url: URL, budget_bytes: int | None) -> Engine:  # noqa: ARG001 - PostgreSQL has no limit of its own
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(
            url, pool_size=8, max_overflow=24, pool_pre_ping=True, connect_args={"connect_timeout": 10}
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        msg = f'{location(url)} needs a driver that is not installed ({error}).\n    pip install "stagelens[postgres]"'
        raise StoreError(msg) from error
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    """Lock at the start of a transaction, for a reader `points` against dropping partitions, which would affect its snapshot.

    The lock statement takes no snapshot, so the snapshot of the transaction is taken after it. A writer waits for the lock of writers.
    """
    statement = connection.get_execution_options().get(_LOCK_OPTION)
    if statement is not None:
        connection.exec_driver_sql(statement)


def location(url: URL) -> str:
    return url.difference_update_query(["password", "sslpassword", "passfile"]).render_as_string()


def for_reading(connection: Connection) -> Connection:
    return connection.execution_options(
        isolation_level="REPEATABLE READ", postgresql_readonly=True, **{_LOCK_OPTION: _HOLD_POINTS}
    )


def for_writing(connection: Connection) -> Connection:
    return connection.execution_options(
        isolation_level="READ COMMITTED", postgresql_readonly=False, **{_LOCK_OPTION: _LOCK_WRITERS}
    )


def confirm(connection: Connection) -> None:
    """Implement `SqlDialect.confirm`: nothing to do, because a dropped database closes its connections."""


@contextmanager
def exclusive(connection: Connection) -> Generator[None]:
    with connection.begin():
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; SELECT pg_advisory_lock({_LOCK})")
    try:
        yield
    finally:
        # A lost session has released the lock already.
        if not connection.closed and not connection.invalidated:
            with connection.begin():
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_LOCK})")


def insert_points(connection: Connection, rows: Sequence[PointRow]) -> None:
    _make_partitions(connection, rows)
    insert_rows(connection, "points", PointRow._fields, rows)


def insert_rows(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _make_partitions(connection: Connection, rows: Sequence[PointRow]) -> None:
    wanted = {(row.tier, floor_to(row.bucket, _FREED_BY_CODE[row.tier])) for row in rows}
    present = _partitions(connection) if wanted else {}
    for tier, start in sorted(wanted - present.keys()):
        stop = start + _FREED_BY_CODE[tier]
        name = f"points_{tier}_{start}"
        # Create and attach: creating the partition in place would wait for all readers.
        connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE points)")
        connection.exec_driver_sql(
            f"ALTER TABLE points ATTACH PARTITION {name} FOR VALUES FROM ({tier}, {start}) TO ({tier}, {stop})"
        )


def _partitions(connection: Connection) -> dict[tuple[int, int], str]:
    names = connection.scalars(
        text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'points'::regclass")
    )
    partitions: dict[tuple[int, int], str] = {}
    for name in names:
        _, tier, start = name.rpartition(".")[2].split("_")
        partitions[int(tier), int(start)] = name
    return partitions


def free(connection: Connection, tier: int, until: int) -> None:
    for (owner, start), name in _partitions(connection).items():
        if owner == tier_code(tier) and start + FREED_SECONDS[tier] <= until:
            _drop(connection, name)


def _drop(connection: Connection, partition: str) -> None:
    """Drop *partition*, or raise InUseError if it is being read: waiting for a reader would block all writers."""
    try:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_DROP_MILLISECONDS}ms'; DROP TABLE {partition}")
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        msg = f"{partition} is being read"
        raise InUseError(msg) from error


def compact_traces(connection: Connection) -> bool:
    size = text("SELECT pg_total_relation_size('traces')")
    before = connection.execute(size).scalar_one()
    connection.exec_driver_sql("CLUSTER traces USING traces_by_time")
    return connection.execute(size).scalar_one() < before


def used_bytes(connection: Connection) -> int:
    names = [*schema.metadata.tables, *_partitions(connection).values()]
    size = text(
        "SELECT coalesce(sum(pg_total_relation_size(found)), 0) "
        "FROM (SELECT to_regclass(name) AS found FROM unnest(CAST(:names AS text[])) AS name) AS tables WHERE found IS NOT NULL"
    )
    return int(connection.execute(size, {"names": names}).scalar_one())
