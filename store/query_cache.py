"""Bounded cache of results, and the points of closed buckets in it.

Points of closed buckets change only if late data arrive or data are deleted. Both change the ledger, so that its rows show whether a
cached sum is still valid; new data do not affect it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import Connection, select, text

from ..core.columns import Ints
from . import schema
from .engines import database
from .schema import Segment, ceil_to, floor_to, tier_code
from .storage import (
    BREAKDOWN_METRICS,
    Columns,
    PointQuery,
    Steps,
    StoredPoints,
    WrappedPoints,
    join_columns,
    sum_points,
)

# Assumed size of a result that is not a table, or of each element of a list. [bytes]
_SMALL_BYTES = 10_000
# Points are cached from this tier on, of segments with at least this number of buckets.
_CACHED_TIER, _CACHED_BUCKETS = 3600, 4
_CACHED_BYTES = 32_000_000
_ANY_TIME = datetime.fromtimestamp(0, UTC)


class ClosedPoints(WrappedPoints):
    """Points whose closed buckets are cached, see `StoredPoints`."""

    def __init__(self, points: StoredPoints) -> None:
        super().__init__(points)
        self._cache = QueryCache(_CACHED_BYTES)

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        closed = [candidate for candidate in segments if _is_cached(candidate)]
        yield from self._points.read(
            connection, question, [candidate for candidate in segments if candidate not in closed], steps
        )
        selection = replace(question.selection, start=_ANY_TIME, end=_ANY_TIME)
        about = replace(question, selection=selection, metrics=tuple(question.metrics))
        width = None if steps is None else steps.width

        @cache
        def ids() -> Ints:
            table = schema.series.c
            statement = select(table.id, table.total_id).where(*question.selection.conditions())
            return np.array(connection.execute(statement).all(), np.int64).ravel()

        for segment, version in zip(closed, _versions(connection, closed), strict=True):
            # The same steps for every window, whose start moves.
            segment_steps = None if width is None else Steps(floor_to(segment.start, width), width)

            def read(segment: Segment = segment, steps_of: Steps | None = segment_steps) -> Columns:
                pieces = self._points.read(connection, question, [segment], steps_of)
                return sum_points(join_columns(list(pieces)), steps_of, apart=question.by is not None)

            every = self._of_all_services(about, segment, version) if steps is None else None
            if every is None:
                yield self._cache.get((about, segment, segment_steps), version, read)
            else:
                yield every.where(np.isin(every.series, ids())).without_unused_stages()

    def _of_all_services(self, about: PointQuery, segment: Segment, version: Hashable) -> Columns | None:
        others = replace(about.selection, service=None)
        is_of_service = about.selection.service is not None and others.dimensions.keys() <= {"environment"}
        if not is_of_service or about.by == "series" or about.counts_only or about.prefix:
            return None
        whole = replace(about, selection=others, metrics=BREAKDOWN_METRICS, by="total")
        columns: Columns | None = self._cache.known((whole, segment, None), version)
        if columns is None or not set(about.metrics) <= set(BREAKDOWN_METRICS):
            return None
        return columns.where(np.isin(columns.metric, [schema.METRIC_CODES[name] for name in about.metrics]))


def _is_cached(segment: Segment) -> bool:
    return segment.tier >= _CACHED_TIER and segment.end - segment.start >= _CACHED_BUCKETS * segment.tier


def _versions(connection: Connection, segments: Sequence[Segment]) -> list[Hashable]:
    if not segments:
        return []
    generation = database.generation(connection)
    parts = [
        f"SELECT {number}, sum(rows), sum(bytes), {generation} FROM ledger WHERE tier = {tier_code(segment.tier)} "  # noqa: S608 - numbers only
        f"AND slot >= {floor_to(segment.start, schema.SLOT_SECONDS[segment.tier])} "
        f"AND slot < {ceil_to(segment.end, schema.SLOT_SECONDS[segment.tier])}"
        for number, segment in enumerate(segments)
    ]
    return [tuple(version) for _, *version in sorted(connection.execute(text(" UNION ALL ".join(parts))).all())]


@dataclass(slots=True)
class _CachedResult:
    revision: Hashable
    future: Future[Any]
    size: int = _SMALL_BYTES


class QueryCache:
    """Cache of query results of an estimated size of at most *most_bytes*, least recently used evicted first. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _CachedResult] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, revision: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached result of *key* at *revision*, or compute it with *compute*.

        Concurrent callers of the same key wait for the first one. An error is raised to all of them and is not cached.
        """
        with self._lock:
            entry = self._entries.get(key)
            is_current = entry is not None and entry.revision == revision
            if entry is None or not is_current:
                entry = _CachedResult(revision, Future())
                self._forget(key)
                self._entries[key] = entry
                self._bytes += entry.size
            self._entries.move_to_end(key)
        if not is_current:
            self._compute(key, entry, compute)
        return entry.future.result()

    def known(self, key: Hashable, revision: Hashable) -> Any:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.revision != revision or not entry.future.done():
                return None
            self._entries.move_to_end(key)
        return entry.future.result()

    def _compute(self, key: Hashable, entry: _CachedResult, compute: Callable[[], Any]) -> None:
        try:
            result = compute()
        except BaseException as error:
            with self._lock:
                if self._entries.get(key) is entry:
                    self._forget(key)
            entry.future.set_exception(error)
            raise
        with self._lock:
            if self._entries.get(key) is entry:
                # A key has texts of the reader, such as filters.
                grown = _estimated_bytes(result) + len(repr(key)) - entry.size
                entry.size += grown
                self._bytes += grown
                while self._bytes > self._most_bytes and len(self._entries) > 1:
                    self._forget(next(iter(self._entries)))
        entry.future.set_result(result)

    def _forget(self, key: Hashable) -> None:
        forgotten = self._entries.pop(key, None)
        self._bytes -= forgotten.size if forgotten else 0


def _estimated_bytes(result: Any) -> int:
    if isinstance(result, bytes):
        return _SMALL_BYTES + len(result)
    if hasattr(result, "nbytes"):
        return _SMALL_BYTES + result.nbytes
    if hasattr(result, "memory_usage"):
        return _SMALL_BYTES + int(result.memory_usage().sum())
    return _SMALL_BYTES * max(len(result), 1) if isinstance(result, dict | list | tuple) else _SMALL_BYTES  # pyright: ignore[reportUnknownArgumentType] - only the number of elements matters
