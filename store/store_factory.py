"""Opening of the store: its settings, and a lock against a second instance."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import quote

from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic import AfterValidator, BeforeValidator, Field
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..core.errors import StoreError
from ..core.settings.field_types import Duration, Size, reject_value
from ..core.settings.section import Settings
from ..core.settings.values import format_size
from . import backup
from .engines import database
from .retention import Retention
from .store import Store

# Default storage budget. [bytes]
DEFAULT_BUDGET_BYTES = 10 * 1024**3
# Minimum storage budget: enough for the tables and the data of one maintenance interval. [bytes]
MIN_BUDGET_BYTES = 16 * 1024**2


_DEFAULT = Retention()


def _without_limit(value: object) -> object:
    return None if str(value).lower() in ("0", "none") else value


def _large_enough(size: int | None) -> int | None:
    if size is not None and size < MIN_BUDGET_BYTES:
        reject_value(f"it must be at least {format_size(MIN_BUDGET_BYTES)}, or `none` for no limit")
    return size


class StoreConfig(Settings):
    database: str = Field(default="sqlite:///stagelens.db", validation_alias="STAGELENS_DATABASE")
    points: str | None = Field(default=None, validation_alias="STAGELENS_POINTS")
    retention_10s: Duration = Field(
        default=_DEFAULT.seconds_10, validation_alias="STAGELENS_RETENTION_10S", examples=["24h"]
    )
    retention_1m: Duration = Field(
        default=_DEFAULT.minutes, validation_alias="STAGELENS_RETENTION_1M", examples=["14d"]
    )
    retention_1h: Duration = Field(default=_DEFAULT.hours, validation_alias="STAGELENS_RETENTION_1H", examples=["395d"])
    retention_traces: Duration = Field(
        default=_DEFAULT.traces, validation_alias="STAGELENS_RETENTION_TRACES", examples=["7d"]
    )
    budget_bytes: Annotated[Size | None, BeforeValidator(_without_limit), AfterValidator(_large_enough)] = Field(
        default=DEFAULT_BUDGET_BYTES, validation_alias="STAGELENS_STORAGE_BUDGET", examples=["10GiB"]
    )

    @property
    def retention(self) -> Retention:
        return Retention(
            seconds_10=self.retention_10s,
            minutes=self.retention_1m,
            hours=self.retention_1h,
            traces=self.retention_traces,
            budget_bytes=self.budget_bytes,
        )


def open_store(config: StoreConfig, *, reads: bool = False) -> Store:
    """Open the store of *config*; a missing store is created. For a process that only *reads*, the file may be read-only."""
    url = _read_only_url(config.database) if reads else ""
    with ExitStack() as undo:
        store = Store.open(
            url or config.database, points_url=config.points, retention=config.retention, read_only=bool(url)
        )
        undo.callback(store.close)
        if backup.is_copy_unfinished(store.engine):
            msg = (
                f"a copy into {database.location(store.engine.url)} was interrupted; "
                "repeat the `stagelens migrate` or `stagelens restore` that started it, or use another database"
            )
            raise StoreError(msg)
        undo.pop_all()
    return store


def _read_only_url(database_url: str) -> str:
    """Return the URL of an SQLite file of this version that this process may only read; "" for any other database."""
    engine = database.open_engine(database_url)
    engine.dispose()
    path = Path(engine.url.database or "").absolute()
    # SQLite writes side files into the folder, also to read.
    if engine.url.get_backend_name() != "sqlite" or not path.is_file() or _is_writable(path):
        return ""
    head = ScriptDirectory(str(Path(__file__).parent / "migrations")).get_current_head()
    # A file without side files has no writer.
    is_live = all(Path(f"{path}{end}").exists() for end in ("-wal", "-shm"))
    url = f"sqlite:///file:{quote(str(path))}?{'mode=ro' if is_live else 'immutable=1'}&uri=true"
    engine = database.open_engine(url)
    try:
        with database.reading(engine) as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
    return url if revision == head else ""


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def open_existing(config: StoreConfig) -> Store:
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
        msg = f"there is no store in {where}; set the right one with --database or STAGELENS_DATABASE"
        raise StoreError(msg)
    return open_store(config)


@contextmanager
def single_instance_lock(config: StoreConfig) -> Generator[None]:
    """Lock the SQLite file of *config* against a second `stagelens up` in the block; other databases may be shared."""
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
            stack.enter_context(_locked(Path(f"{path}.up")))
        except BlockingIOError:
            msg = (
                f"another `stagelens up` uses {database.location(url)}.\n"
                "    Stop it, or use another database with --database or STAGELENS_DATABASE."
            )
            raise StoreError(msg) from None
        except OSError:
            # The directory is not writable, which is reported when the store is opened, or the file system has no locks.
            pass
        yield


@contextmanager
def _locked(path: Path) -> Generator[None]:
    while True:
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, lock):
                # Another process removed it in between.
                continue
            try:
                yield
            finally:
                with suppress(OSError):
                    if _is_at(path, lock):
                        path.unlink()
            return


def _is_at(path: Path, file: IO[str]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def store_locations(config: StoreConfig) -> list[str]:
    lines = [f"database   {database.location(make_url(config.database))}"]
    if config.points:
        lines.append(f"points     {make_url(config.points).render_as_string(hide_password=True)}")
    return lines
