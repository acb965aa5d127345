"""Opening the store that the settings name."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..core.errors import StoreError
from ..store import Store, backup
from ..store.engines import database
from .config import CollectorConfig


def open_store(config: CollectorConfig) -> Store:
    """Open the store of *config*, and create it if it is missing.

    Raises:
        StoreError: It cannot be opened, or is the target of an interrupted copy.
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


def open_existing(config: CollectorConfig) -> Store:
    """Open the existing store of *config*.

    Raises:
        StoreError: It does not exist, or cannot be opened.
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
def single_instance_lock(config: CollectorConfig) -> Generator[None]:
    """Lock the SQLite file of *config* against a second `stagelens up` within the block; other databases may be shared.

    Raises:
        StoreError: Another `stagelens up` uses it.
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
            # The directory is not writable, which opening the store reports, or the file system has no locks.
            pass
        yield


def store_locations(config: CollectorConfig) -> list[str]:
    """Return the locations of the store of *config*, a line each, without passwords."""
    lines = [f"database   {database.location(make_url(config.database))}"]
    if config.points:
        lines.append(f"points     {make_url(config.points).render_as_string(hide_password=True)}")
    return lines
