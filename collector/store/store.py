"""The store: one SQLite file, one writer, any number of readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from . import database, ingest, retention, rollup
from .queries import Reader
from .records import Batch
from .retention import Retention
from .series import SeriesCaps, SeriesIndex


class Store:
    """The database of a Stagelens server. Thread-safe; other processes may read the same file, and write to it in turn.

    Args:
        engine: An engine made by `database.open_engine`, already migrated.
        retention: How long things are kept.
        series_caps: How many series are told apart.
        clock: The time. [Unix seconds]
    """

    def __init__(
        self, engine: Engine, *, retention: Retention, series_caps: SeriesCaps, clock: Callable[[], float]
    ) -> None:
        self.engine = engine
        self.read = Reader(engine, clock)
        self._retention = retention
        self._clock = clock
        self._index = SeriesIndex(series_caps)
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        retention: Retention | None = None,
        series_caps: SeriesCaps | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Store:
        """Open the database at *url*, `sqlite:///path`; make it, or bring its tables up to date, where needed.

        Raises:
            StoreError: It cannot be opened or written, is not a database, or is newer than this version.
        """
        engine = database.open_engine(url)
        try:
            database.migrate(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, retention=retention or Retention(), series_caps=series_caps or SeriesCaps(), clock=clock)

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Give a connection in a transaction that holds the write lock; it commits at the end, or rolls back.

        Raises:
            StoreError: The database cannot begin or commit; nothing was written.
        """
        with self._lock:
            try:
                with database.writing(self.engine, "cannot write to") as connection:
                    yield connection
            except BaseException:
                # What was interned in it is not in the database.
                self._index.forget()
                raise

    def write(self, batches: Sequence[Batch]) -> list[bool]:
        """Count *batches* in one transaction, which is committed when this returns.

        Returns:
            For each batch, True if it was counted now, False if it had been counted before.

        Raises:
            StoreError: It could not be committed: nothing was counted, and all may be written again.
        """
        now = int(self._clock())
        arrival = ingest.Arrival(now, now - int(self._retention.hours.total_seconds()))
        with self.transaction() as connection:
            return ingest.write(connection, batches, self._index, arrival)

    def maintain(self) -> None:
        """Roll up what is complete and forget what is past its time; doing it again changes nothing.

        Raises:
            StoreError: It could not be committed; the next call goes on where this one stopped.
        """
        now = int(self._clock())
        more = True
        while more:
            with self.transaction() as connection:
                more = rollup.roll_up(connection, now)
        with self.transaction() as connection:
            if retention.forget(connection, self._retention, now):
                self._index.forget()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
