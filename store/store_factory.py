"""Opening of the store: its settings, and a lock against a second instance."""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..core.errors import ConfigError, StoreError
from ..core.settings.values import format_size, parse_duration, parse_size, require_positive
from . import backup
from .engines import database
from .retention import Retention
from .store import Store

# Default storage budget. [bytes]
DEFAULT_BUDGET_BYTES = 10 * 1024**3
# Minimum storage budget: enough for the tables and the data of one maintenance interval. [bytes]
MIN_BUDGET_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of the store.

    Args:
        database: URL of the database.
        points: URL of the ClickHouse database for the histograms; None to store them in *database*.
        retention: Retention periods and storage budget.
    """

    database: str = "sqlite:///stagelens.db"
    points: str | None = None
    retention: Retention = field(default_factory=lambda: Retention(budget_bytes=DEFAULT_BUDGET_BYTES))

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> StoreConfig:
        """Read STAGELENS_DATABASE, STAGELENS_POINTS, STAGELENS_RETENTION_… and STAGELENS_STORAGE_BUDGET.

        Raises:
            ConfigError: A value is invalid.
        """
        return StoreConfig(
            database=env.get("STAGELENS_DATABASE") or "sqlite:///stagelens.db",
            points=env.get("STAGELENS_POINTS") or None,
            retention=_retention(env),
        )


def open_store(config: StoreConfig) -> Store:
    """Open the store of *config*; a missing store is created.

    Raises:
        StoreError: The store cannot be opened, or is the target of an interrupted copy.
    """
    with ExitStack() as undo:
        store = Store.open(config.database, points_url=config.points, retention=config.retention)
        undo.callback(store.close)
        if backup.is_copy_unfinished(store.engine):
            msg = (
                f"a copy into {database.location(store.engine.url)} was interrupted; "
                "repeat the `stagelens migrate` or `stagelens restore` that began it, or give another database"
            )
            raise StoreError(msg)
        undo.pop_all()
    return store


def open_existing(config: StoreConfig) -> Store:
    """Open the existing store of *config*.

    Raises:
        StoreError: The store does not exist, or cannot be opened.
    """
    engine = database.open_engine(config.database)
    where = database.location(engine.url)
    try:
        path = (engine.url.database or "").removeprefix("file:")
        missing = engine.url.get_backend_name() == "sqlite" and not Path(path).exists()
        if not missing:
            with database.reading(engine) as connection:
                missing = not inspect(connection).has_table("services")
    finally:
        engine.dispose()
    if missing:
        msg = f"there is no store in {where}; name the right one with --database or STAGELENS_DATABASE"
        raise StoreError(msg)
    return open_store(config)


@contextmanager
def single_instance_lock(config: StoreConfig) -> Generator[None]:
    """Lock the SQLite file of *config* against a second `stagelens up` within the block; other databases may be shared.

    Raises:
        StoreError: Another `stagelens up` uses the file.
    """
    try:
        url = make_url(config.database)
    except ArgumentError:
        # Opening the store reports the error.
        yield
        return
    path = (url.database or "").removeprefix("file:")
    if url.get_backend_name() != "sqlite" or path in ("", ":memory:"):
        yield
        return
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(Path(f"{path}.up").open("a+"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = (
                f"another `stagelens up` runs over {database.location(url)}.\n"
                "    Stop that one, or give this one a database of its own with --database or STAGELENS_DATABASE."
            )
            raise StoreError(msg) from None
        except OSError:
            # The directory is not writable, which is reported when the store is opened, or the file system has no locks.
            pass
        yield


def store_locations(config: StoreConfig) -> list[str]:
    """Return the locations of the store of *config*, without passwords, one line for each database."""
    lines = [f"database   {database.location(make_url(config.database))}"]
    if config.points:
        lines.append(f"points     {make_url(config.points).render_as_string(hide_password=True)}")
    return lines


def _retention(env: Mapping[str, str]) -> Retention:
    default = Retention()

    def kept(key: str, otherwise: timedelta) -> timedelta:
        if not env.get(key):
            return otherwise
        given = parse_duration(env[key], key)
        require_positive(key, env[key], given.total_seconds())
        return given

    return Retention(
        seconds_10=kept("STAGELENS_RETENTION_10S", default.seconds_10),
        minutes=kept("STAGELENS_RETENTION_1M", default.minutes),
        hours=kept("STAGELENS_RETENTION_1H", default.hours),
        traces=kept("STAGELENS_RETENTION_TRACES", default.traces),
        budget_bytes=_budget(env.get("STAGELENS_STORAGE_BUDGET") or ""),
    )


def _budget(text: str) -> int | None:
    if not text:
        return DEFAULT_BUDGET_BYTES
    if text.strip().lower() in ("0", "none"):
        return None
    key = "STAGELENS_STORAGE_BUDGET"
    size = parse_size(text, key)
    if size < MIN_BUDGET_BYTES:
        msg = f"{key} is {text!r}; it must be at least {format_size(MIN_BUDGET_BYTES)}, or none for as large as it gets"
        raise ConfigError(msg)
    return size
