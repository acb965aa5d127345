"""The store: one database with one writer at a time and any number of readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, exists, select

from . import audit, collectors, events, inbox, lease, schema
from .audit import AuditEntry
from .engines import database
from .engines.database import SqlPoints
from .events import Event
from .queries.state import StoreQueries
from .query_cache import ClosedPoints
from .records import Batch
from .retention import Retention, fit_budget, forget_points, forget_rest, forget_services, prepare_rollup
from .series import REMEMBERED_FACTOR, SeriesCaps, SeriesIndex, store_time
from .storage import InUseError, Points, PreparedWrite
from .write import Arrival, prepare_aggregated, prepare_batches

if TYPE_CHECKING:
    from .reader import Reader

# Number of services deleted in one transaction, which blocks other writers.
_AT_ONCE = 100


class Store:
    """The database of a Stagelens server. Thread-safe; other processes may read the same database, and write to it in turn."""

    def __init__(
        self,
        engine: Engine,
        *,
        points: Points | None = None,
        retention: Retention,
        series_caps: SeriesCaps,
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.points = points or SqlPoints(database.dialect(engine.url))
        self.about = StoreQueries(engine, self.points, retention, series_caps, clock)
        self._retention = retention
        self._caps = series_caps
        self._clock = clock
        self._index = SeriesIndex(series_caps)
        self._lock = threading.Lock()
        self._current = threading.local()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        points_url: str | None = None,
        retention: Retention | None = None,
        series_caps: SeriesCaps | None = None,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> Store:
        """Open a store; create or migrate its tables if needed, unless it is *read_only*.

        Args:
            url: `sqlite:///path` or `postgresql://user:password@host/database`.
            points_url: `clickhousedb://user:password@host/database`, to store the histograms in ClickHouse.
            clock: Function that returns the current time. [Unix seconds]

        Raises:
            StoreError: The database cannot be opened or written, is no Stagelens store, or is newer than this version.
        """
        retention = retention or Retention()
        engine = database.open_engine(url, retention.budget_bytes)
        try:
            if not read_only:
                database.migrate(engine)
            points = _open_points(points_url, retention, clock)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, points=points, retention=retention, series_caps=series_caps or SeriesCaps(), clock=clock)

    @cached_property
    def read(self) -> Reader:
        from .reader import Reader, RoutePoints  # noqa: PLC0415 - with pandas, which a collector can do without

        # The closed buckets are cached for all readers together.

        return Reader(self.engine, RoutePoints(ClosedPoints(self.points)), self._retention, self._caps, self._clock)

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Provide a connection in a transaction that holds the write lock; committed at the end of the block, or rolled back.

        A block within a transaction of the same thread is part of that transaction.

        Raises:
            StoreError: The database cannot begin or commit; nothing was written.
        """
        if (outer := getattr(self._current, "connection", None)) is not None:
            yield outer
            return
        with self._lock, database.writing(self.engine, "cannot write to") as connection:
            self._current.connection = connection
            try:
                yield connection
            finally:
                self._current.connection = None

    def write(self, batches: Sequence[Batch], finish: Callable[[Connection], None] | None = None) -> list[bool]:
        """Count *batches* in one write, which is committed on return.

        Args:
            finish: Function that writes further rows in the same transaction if any batch is new; if it raises an error, nothing
                is counted.

        Returns:
            For each batch, True if it was counted now, False if it was counted before.

        Raises:
            StoreError: The transaction could not be committed: nothing was counted, and all batches may be written again.
        """
        clock = int(self._clock())
        fresh: list[bool] = []

        def prepare(connection: Connection) -> PreparedWrite | None:
            arrival = self._arrival(connection, clock)
            fresh[:], change = prepare_batches(connection, batches, self._index, arrival, self.points)
            return change if change is None or finish is None else change.also(finish)

        self._apply(prepare)
        return fresh

    def aggregate(self, aggregation: inbox.Aggregation, max_bytes: int) -> bool:
        """Aggregate waiting spans of the inbox with *aggregation* into points and traces, and count them in one write.

        *aggregation* runs on a snapshot while other processes write. If several collectors aggregate the same spans, only one result is
        counted.

        Args:
            aggregation: Aggregation function without side effects, because its result may be discarded.
            max_bytes: Maximum size of the parcels that are aggregated at once; a single parcel may be larger. [bytes]

        Returns:
            Whether spans were aggregated.

        Raises:
            StoreError: The transaction could not be committed: nothing was counted, and all spans still wait.
        """
        clock, holder = int(self._clock()), lease.new_holder()
        if not self.waiting().parcels:
            return False
        with self.transaction() as connection:
            if not lease.hold(connection, inbox.LEASE, holder, clock, inbox.CLAIM_SECONDS):
                return False
        try:
            with database.reading(self.engine) as connection:
                result = aggregation(inbox.read_delivery(connection, clock, max_bytes))

            def prepare(connection: Connection) -> PreparedWrite | None:
                arrival = self._arrival(connection, clock)
                return prepare_aggregated(connection, result, self._index, arrival, self.points)

            return bool(result.remove_ids) and self._apply(prepare)
        finally:
            with self.transaction() as connection:
                lease.release(connection, inbox.LEASE, holder)

    def _arrival(self, connection: Connection, clock: int) -> Arrival:
        now = store_time(connection, clock)
        return Arrival(now.present, now.proven - int(self._retention.hours.total_seconds()))

    def waiting(self) -> inbox.InboxBacklog:
        with database.reading(self.engine) as connection:
            return inbox.read_backlog(connection)

    def take_target(self, target: str, holder: str, now: float, seconds: float) -> bytes | None:
        """Acquire or renew the lease of a scrape target; see `collectors.take_target`."""
        with self.transaction() as connection:
            return collectors.take_target(connection, target, holder, now, seconds)

    def write_reading(self, target: str, holder: str, until: float, snapshot: bytes, batch: Batch) -> None:
        """Count *batch*, the counts since the last reading of a target, and save *snapshot*; see `collectors.save_reading`.

        Raises:
            TargetLostError: Another collector has acquired the target: nothing was counted.
            StoreError: The transaction could not be committed.
        """
        self.write([batch], lambda connection: collectors.save_reading(connection, target, holder, until, snapshot))

    def release_targets(self, holder: str) -> None:
        with self.transaction() as connection:
            collectors.release_targets(connection, holder)

    def add_event(self, event: Event) -> None:
        """Write *event*; equal events within the same minute are stored once."""
        with self.transaction() as connection:
            events.add_event(connection, event)

    def add_audit_entry(self, entry: AuditEntry) -> None:
        with self.transaction() as connection:
            audit.add_entry(connection, entry)

    def services(self, since: int | None = None) -> list[str]:
        """Return the names of all services, or of those with data since *since*, in Unix seconds."""
        series, name = schema.series.c, schema.services.c.name
        is_active = exists().where(series.service == name, series.last_seen >= (since or 0))
        with database.reading(self.engine) as connection:
            return sorted(connection.scalars(select(name).where(*((is_active,) if since is not None else ()))))

    def forget(self, services: Sequence[str]) -> None:
        """Delete *services* with all their data; a service that sends again later starts as a new service."""
        for first in range(0, len(services), _AT_ONCE):
            with self.transaction() as connection:
                forget_services(connection, self.points, services[first : first + _AT_ONCE])

    def maintain(self) -> None:
        """Roll up complete buckets, and delete data past their retention or beyond the budget; idempotent.

        Raises:
            StoreError: A transaction could not be committed; the next call continues the work.
        """
        clock = int(self._clock())
        # Delete first: rolling up needs space.
        while self._forget_some(clock) or self._roll_up(clock):
            pass
        with self.transaction() as connection:
            # So new services have a place for a day.
            most, now = (REMEMBERED_FACTOR - 1) * self._caps.services, store_time(connection, clock).proven
            surplus = forget_rest(connection, self._retention, most, now)
            self.points.tidy(connection, clock)
        self.forget(surplus)

    def _roll_up(self, clock: int) -> bool:
        return self._apply(
            lambda connection: prepare_rollup(connection, self.points, store_time(connection, clock).settled)
        )

    def _forget_some(self, clock: int) -> bool:
        try:
            with self.transaction() as connection:
                now = store_time(connection, clock).proven
                if forget_points(connection, self.points, self._retention, now):
                    return True
                used = database.used_bytes(connection) + self.points.used_bytes(connection)
                return fit_budget(connection, self.points, self._retention, used, now)
        except InUseError:
            return False

    def _apply(self, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        with self._lock:
            try:
                return self.points.apply(self.engine, prepare)
            except BaseException:
                # Series interned by the failed write are not in the database.
                self._index.forget()
                raise

    def close(self) -> None:
        self.points.close()
        self.engine.dispose()


def _open_points(url: str | None, retention: Retention, clock: Callable[[], float]) -> Points | None:
    if not url:
        return None
    from .engines.clickhouse import ClickHousePoints  # noqa: PLC0415 - its driver is optional

    return ClickHousePoints.open(url, retention, clock)
