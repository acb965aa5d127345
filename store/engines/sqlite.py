"""SQLite: one file, in write-ahead mode, one writer at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Text, create_engine, delete, event, literal_column, select
from sqlalchemy.engine import URL

from ...core.errors import StoreError
from .. import schema
from ..points import PointRow

# Execution option of transactions that acquire the write lock at their start. Of two transactions that acquire it at their
# first write, one would fail.
_WRITES = "stagelens_writes"

FREED_SECONDS = schema.SLOT_SECONDS
PAGE_BYTES = 4096
# Measured on points of a fleet: with 4 kB pages a commit writes a quarter less than with 8 kB; FULL costs one fsync a
# commit, which is negligible once several batches share a commit.
_PRAGMAS = (
    "PRAGMA busy_timeout = 10000",
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # A connection keeps its cache, so all connections together hold several times as much.
    "PRAGMA cache_size = -4096",
    "PRAGMA wal_autocheckpoint = 2000",
    # The first read opens the side files.
    "PRAGMA schema_version",
)
_LOCKED_SECONDS, _PAUSE_SECONDS = 10.0, 0.02

FIXES = (
    ("readonly", "it is read-only; give this user the right to write to the file and to its folder"),
    ("read-only", "it is read-only; give this user the right to write to the file and to its folder"),
    ("not a database", "it is not an SQLite database; use another path, or move the file away"),
    ("malformed", "it is damaged; move the file away, and restore it from a backup"),
    ("unable to open", "the file cannot be opened; check that its folder exists and that this user may write to it"),
    ("full", "the disk is full, or the file has reached STAGELENS_STORAGE_BUDGET; free space, or raise the budget"),
    ("locked", "another process is writing to it; stop it, or let it finish"),
    ("disk i/o", "the disk reported an error; check the disk and the space left on it"),
)
# A process uses one file only, see `_check_files`.
GENERATION = literal_column("''", Text)
# Key of the files that a connection has open, in its `info`: their identity by path.
_FILES = "stagelens_files"


def open_engine(url: URL, budget_bytes: int | None) -> Engine:
    if not url.database or url.database == ":memory:":
        msg = f"the database URL is {str(url)!r}; it has to name a file: write sqlite:///path/to/stagelens.db"
        raise StoreError(msg)
    limit = () if budget_bytes is None else (f"PRAGMA max_page_count = {max(1, budget_bytes // PAGE_BYTES)}",)

    def configure(connection: sqlite3.Connection, record: Any) -> None:
        # The driver must not begin transactions: `_begin` does.
        connection.isolation_level = None
        for pragma in (*_PRAGMAS, *limit):
            _set(connection, pragma)
        files = opened[id(connection)] = record.info[_FILES] = _open_files(path)
        # Kept without an open connection, unlike the side files, which SQLite deletes then.
        _check_files(path, opened.setdefault(0, {path: files[path]} if path in files else {}))

    def create(*_: Any) -> None:
        # Neither mix two files, nor create one in place of a removed one.
        for files in list(opened.values()):
            _check_files(path, files)
        # Readable by its owner only; SQLite creates its side files with the same mode. Existing files are unchanged.
        if not str(url.database).startswith("file:"):
            with suppress(OSError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    path = location(url).removeprefix("file:")
    opened: dict[int, Mapping[str, tuple[int, int]]] = {}
    # The connection used last has the newest pages in its cache.
    engine = create_engine(url, pool_size=8, max_overflow=24, pool_use_lifo=True, connect_args={"timeout": 10})
    event.listen(engine, "do_connect", create)
    event.listen(engine, "connect", configure)
    event.listen(engine, "close", lambda connection, _: opened.pop(id(connection), None))
    event.listen(engine, "begin", _begin)
    return engine


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    """Execute *pragma*, with retries while another process switches the new file to WAL: the busy timeout does not apply."""
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


def _open_files(path: str) -> dict[str, tuple[int, int]]:
    paths = (path, *(f"{os.path.realpath(path)}{suffix}" for suffix in ("-wal", "-shm")))
    return {file: file_id for file in paths if (file_id := _file_id(file))}


def _file_id(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - before and after every transaction
        return status.st_dev, status.st_ino
    return None


def _check_files(path: str, opened: Mapping[str, tuple[int, int]]) -> None:
    """Raise StoreError unless *opened* are still the files at their paths, which the next start opens."""
    if any(_file_id(file) != file_id for file, file_id in opened.items()):
        msg = (
            f"cannot use {path}: it, its -wal or its -shm was removed or replaced while it was open; put the same files back, "
            "or restart Stagelens, which opens the file that is there now"
        )
        raise StoreError(msg)


def confirm(connection: Connection) -> None:
    _check_files(location(connection.engine.url), connection.info[_FILES])


def _begin(connection: Connection) -> None:
    confirm(connection)
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def location(url: URL) -> str:
    return url.database or str(url)


def for_reading(connection: Connection) -> Connection:
    return connection


def for_writing(connection: Connection) -> Connection:
    return connection.execution_options(**{_WRITES: True})


@contextmanager
def exclusive(connection: Connection) -> Generator[None]:
    path = Path(f"{location(connection.engine.url)}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def insert_points(connection: Connection, rows: Sequence[PointRow]) -> None:
    insert_rows(connection, "points", PointRow._fields, rows)


def insert_rows(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" for _ in columns)
    connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", list(rows))  # noqa: S608 - constants


def free(connection: Connection, tier: int, until: int) -> None:
    points = schema.points
    connection.execute(
        delete(points).where(
            points.c.tier == tier,
            # List all values, so that the whole key is used.
            points.c.service_id.in_(select(schema.services.c.id)),
            points.c.metric.in_(schema.ALL_METRIC_CODES),
            points.c.bucket < until,
        )
    )


def compact_traces(_connection: Connection) -> bool:
    return False


def used_bytes(connection: Connection) -> int:
    pages = connection.exec_driver_sql(
        "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    return pages.scalar_one()
