"""Interface of the storage of points: queries, their results in columns, and prepared writes.

The rows are in the relational database (`SqlPoints`), or in ClickHouse beside it (`ClickHousePoints`). ClickHouse has no
transactions, which exactly-once batches, leases and the outbox need.

Counts are summed as integers at the coarsest scale of their group, so that the result is exact and independent of the order
of rows, tiers and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from sqlalchemy import Connection, Engine

from ..core.columns import MAX_COUNT, SHARED, Buckets, Columnar, Floats, Ints, merge_buckets, no_buckets
from ..core.errors import StoreError
from ..core.histogram import MAX_SCALE, ZERO_THRESHOLD, Estimate, Histogram, bucket_bounds, bucket_middle, rank_of
from ..core.names import REQUEST_DURATION, STAGE_TIME
from . import schema
from .points import PointRow, PointTable
from .schema import Segment
from .selection import Selection

T = TypeVar("T")
# Requests by latency, and the time of each stage in the same buckets.
BREAKDOWN_METRICS = (REQUEST_DURATION, STAGE_TIME)
# Scales lie within -10..20.
_SCALE_OFFSET = 10


class InUseError(StoreError):
    """The data to delete are being read; deletion can be retried later."""


@dataclass(frozen=True, slots=True)
class PointQuery:
    selection: Selection
    metrics: Sequence[str]  # Metrics to read, from `names.METRICS`
    # Whether the result must separate totals or series; None for the cheapest
    by: Literal["series", "total"] | None = None
    prefix: str = ""  # Start of the keys (stages) of the points to read; without characters that LIKE interprets
    # Whether to read the counts and sums without the buckets, which takes a tenth of the time: all values are in `zero`
    counts_only: bool = False
    # Environments that the reader may see, see `reader.VisiblePoints`; None for all
    visible: frozenset[str] | None = None

    @property
    def is_of_services(self) -> bool:
        return self.selection.is_of_services and self.visible is None

    def asks_totals(self, tier: int) -> bool:
        """Return whether the query can read totals: *tier* has totals, and neither query nor selection needs single series."""
        needs_series = (
            self.by == "series" or self.selection.is_fine or not schema.WITHOUT_TOTALS.isdisjoint(self.metrics)
        )
        return tier != schema.FINEST and not needs_series

    def codes(self, tier: int) -> list[int]:
        """Return the codes of the metrics to read in *tier*; codes of totals are negative."""
        sign = -1 if self.asks_totals(tier) else 1
        return [sign * schema.METRIC_CODES[name] for name in self.metrics]


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """Contents of one series in the segments of one tier."""

    series_id: int  # Id of the series or total
    requests: int  # Sum of the counts
    first: int  # Start of the first bucket with data. [Unix seconds]
    last: int  # Start of the last 10 s of the last bucket with data. [Unix seconds]


@dataclass(frozen=True, slots=True)
class Steps:
    """Division of a stretch of time into steps that start at multiples of *width* since the epoch."""

    start: int  # Start of the stretch, and of its first step. [Unix seconds]
    width: int | None  # Width of a step; None for one step over the whole stretch. [seconds]

    def of(self, at: Ints) -> Ints:
        if self.width is None:
            return np.full(len(at), self.start)
        return np.maximum(at - at % self.width, self.start)

    def number(self, at: Ints) -> Ints:
        """Return the number of the step that contains each time in *at*; the first step is number 0."""
        return np.zeros_like(at) if self.width is None else at // self.width - self.start // self.width


@dataclass(frozen=True, slots=True)
class Columns(Columnar):
    """Points in columns, sorted by time."""

    times: Ints  # Start of the bucket of time; shape (n,). [Unix seconds]
    series: Ints  # Id of the series or total; shape (n,)
    metric: Ints  # Metric code; shape (n,)
    stage: Ints  # Position in `stages`; shape (n,)
    scale: Ints  # Scale of the histogram; shape (n,)
    zero: Ints  # Number of values below a nanosecond; shape (n,)
    sum: Floats  # Sum of the values; shape (n,)
    buckets: Buckets  # Buckets of each point
    stages: tuple[str, ...] = field(metadata=SHARED)  # Stages that occur

    @property
    def counts(self) -> Ints:
        """Sum of the counts (or microseconds) of each point; shape (n,)."""
        return self.zero + self.buckets.totals

    def of(self, metric: str) -> Columns:
        return self.where(self.metric == schema.METRIC_CODES[metric])

    def without_unused_stages(self) -> Columns:
        """Return the points with `stages` reduced to those that occur; each takes a row of every table."""
        used, stage = np.unique(self.stage, return_inverse=True)
        return replace(self, stage=stage, stages=tuple(self.stages[number] for number in used.tolist()))


NO_POINTS = Columns(
    times=np.zeros(0, np.int64),
    series=np.zeros(0, np.int64),
    metric=np.zeros(0, np.int64),
    stage=np.zeros(0, np.int64),
    stages=(),
    scale=np.zeros(0, np.int64),
    zero=np.zeros(0, np.int64),
    sum=np.zeros(0, np.float64),
    buckets=no_buckets(0),
)


def join_columns(pieces: Sequence[Columns]) -> Columns:
    """Return the points of all *pieces*, in their order."""
    if not pieces:
        return NO_POINTS
    stages = tuple(sorted({stage for piece in pieces for stage in piece.stages}))
    numbered = [
        replace(
            piece, stage=np.array([stages.index(stage) for stage in piece.stages], np.int64)[piece.stage], stages=stages
        )
        for piece in pieces
    ]
    return Columns.join(numbered)


def sum_points(columns: Columns, steps: Steps | None = None, *, apart: bool = True) -> Columns:
    """Sum *columns* into one point for each step, metric, stage and scale, at the last of their times; sorted by step.

    Raises:
        StoreError: The counts exceed the limit of a sum.
    """
    if not len(columns):
        return columns
    if columns.zero.sum(dtype=np.float64) + columns.buckets.amount.sum(dtype=np.float64) > MAX_COUNT:
        msg = (
            "the counts add up to more than 2**62, so some counts "
            "are invalid. Use a shorter time, or one service or version"
        )
        raise StoreError(msg)
    step = np.zeros(len(columns), np.int64) if steps is None else steps.number(columns.times)
    series = columns.series if apart else np.zeros(len(columns), np.int64)
    key = (step, series, columns.metric, columns.stage, columns.scale + _SCALE_OFFSET)
    owner = np.ravel_multi_index(key, tuple(int(part.max()) + 1 for part in key))
    _, first, group = np.unique(owner, return_index=True, return_inverse=True)
    times = np.zeros(len(first), np.int64)
    np.maximum.at(times, group, columns.times)
    zero = np.zeros(len(first), np.int64)
    np.add.at(zero, group, columns.zero)
    total = np.zeros(len(first), np.float64)
    np.add.at(total, group, columns.sum)
    return Columns(
        times=times,
        series=series[first],
        metric=columns.metric[first],
        stage=columns.stage[first],
        stages=columns.stages,
        scale=columns.scale[first],
        zero=zero,
        sum=total,
        buckets=merge_buckets(columns.buckets, group, np.zeros_like(group), len(first)),
    )


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Table of summed points, with a row for each stage and a column for each bucket."""

    scale: int  # Scale of the buckets, the coarsest scale of the points
    index: Ints  # Non-empty buckets, ascending; shape (k,)
    amount: Ints  # Number of requests, or microseconds; shape (stages, k)
    zero: Ints  # Number of values below a nanosecond; shape (stages,)
    sum: Floats  # Sum of the values; shape (stages,). [seconds]

    @property
    def total(self) -> int:
        return int(self.amount.sum() + self.zero.sum())

    def histogram(self, stage: int | None = None) -> Histogram:
        rows = slice(None) if stage is None else slice(stage, stage + 1)
        amount = self.amount[rows].sum(axis=0)
        filled = {index: count for index, count in zip(self.index.tolist(), amount.tolist(), strict=True) if count}
        return Histogram(self.scale, filled, int(self.zero[rows].sum()), float(self.sum[rows].sum()))

    def bucket_of(self, quantile: float) -> int | None:
        """Return the bucket index of the request at *quantile* (nearest rank); None if it is below all buckets."""
        rank = rank_of(quantile, self.total) - int(self.zero.sum())
        if rank <= 0:
            return None
        return int(self.index[np.searchsorted(np.cumsum(self.amount.sum(axis=0)), rank)])

    def value_at(self, quantile: float) -> Estimate:
        """Return the value at *quantile* (nearest rank), as `Histogram.quantile` does, for at least one request."""
        bucket = self.bucket_of(quantile)
        if bucket is None:
            return Estimate(0.0, 0.0, ZERO_THRESHOLD)
        return Estimate(bucket_middle(bucket, self.scale), *bucket_bounds(bucket, self.scale))


def bucket_table(columns: Columns, row: Ints, n_rows: int, scale: int) -> tuple[Ints, Ints]:
    """Sum the buckets of *columns* into *n_rows* rows at *scale*, each point into its *row*.

    Returns the non-empty buckets, ascending, shape (k,); and the table of sums, shape (n_rows, k).
    """
    lengths = columns.buckets.lengths
    index = columns.buckets.index >> np.repeat(columns.scale - scale, lengths)
    low = int(index.min(initial=0))
    present = np.zeros(int(index.max(initial=0)) - low + 1, bool)
    present[index - low] = True
    filled = np.flatnonzero(present)
    position = np.cumsum(present) - 1
    amount = np.zeros(n_rows * len(filled), np.int64)
    np.add.at(amount, np.repeat(row, lengths) * len(filled) + position[index - low], columns.buckets.amount)
    return filled + low, amount.reshape(n_rows, len(filled))


def add_up(columns: Columns, scale: int | None = None) -> StageCounts:
    """Sum *columns*, of one metric, by stage at their coarsest scale, or at *scale* if that is coarser."""
    coarsest = int(columns.scale.min(initial=MAX_SCALE if scale is None else scale))
    return StageCounts(coarsest, *row_sums(columns, columns.stage, len(columns.stages), coarsest))


def row_sums(columns: Columns, row: Ints, n_rows: int, scale: int) -> tuple[Ints, Ints, Ints, Floats]:
    """Return the result of `bucket_table`, and the values below a nanosecond and the sums in each row, shape (n_rows,)."""
    zero, total = np.zeros(n_rows, np.int64), np.zeros(n_rows)
    np.add.at(zero, row, columns.zero)
    np.add.at(total, row, columns.sum)
    return *bucket_table(columns, row, n_rows, scale), zero, total


@dataclass(frozen=True, slots=True)
class PreparedWrite:
    """Prepared write of rows of `points` and of everything that belongs to the same transaction."""

    part: int  # Number of the write
    rows: Sequence[PointRow]  # Rows of `points`, in the order of their key
    finish: Callable[[Connection], None]  # Function that writes all other changes of the transaction

    def also(self, more: Callable[[Connection], None]) -> PreparedWrite:
        def finish(connection: Connection) -> None:
            self.finish(connection)
            more(connection)

        return replace(self, finish=finish)


class StoredPoints(Protocol):
    """Queries on the rows of `points`. Thread-safe.

    Every method raises StoreError if the operation fails; *connection* is in a transaction of the database.
    """

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        """Yield the points of *segments*, in pieces.

        Points of one step, metric, stage and scale (and series or total, if the query separates them) may be added up into one
        point, at the last of their times.
        """
        ...

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        """Yield the points of each query, as `read` without steps, with the position of the query in place of the series."""
        ...

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        """Return the contents of each series that matches *question* in each tier of *segments*."""
        ...

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int: ...

    def freed_seconds(self, tier: int) -> int:
        """Return the length of time that is deleted at once in *tier*, in seconds."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the size of the points outside of the relational database, in bytes."""
        ...


class WrappedPoints:
    """Points that are read from other points, see `StoredPoints`; subclasses change the question, or some of the queries."""

    def __init__(self, points: StoredPoints) -> None:
        self._points = points

    def _changed(self, question: PointQuery) -> PointQuery:
        return question

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        return self._points.read(connection, self._changed(question), segments, steps)

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        return self._points.read_each(connection, [(self._changed(question), segments) for question, segments in asked])

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        return self._points.seen(connection, self._changed(question), segments)

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int:
        return self._points.number(connection, self._changed(question), segments)

    def freed_seconds(self, tier: int) -> int:
        return self._points.freed_seconds(tier)

    def used_bytes(self, connection: Connection) -> int:
        return self._points.used_bytes(connection)


class Points(StoredPoints, Protocol):
    """Storage of the rows of `points`. Thread-safe.

    Every method raises StoreError if the operation fails; *connection* is in a transaction of the database.
    """

    def finest_rows(self, table: PointTable, part: int) -> list[PointRow]:
        """Return the rows for *table*, sorted points of the finest tier, with the write number *part*: one a point, or blocks."""
        ...

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Apply the write that *prepare* returns, exactly once with its other changes; return whether there was one."""
        ...

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> PointTable:
        """Return all points of *tier* in `[start, stop)`, in Unix seconds."""
        ...

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        """Return the start of the first bucket of *tier* from *since* on, in Unix seconds; None if there is none."""
        ...

    def cut(self, connection: Connection, tier: int, until: int) -> None:
        """Delete the rows of *tier* before *until*; rows in a partition with newer data may stay, and are no longer read."""
        ...

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        """Delete all rows of *services*, given by id; return the number of deleted rows as (tier, bucket, number of rows)."""
        ...

    def tidy(self, connection: Connection, now: int) -> None:
        """Delete the remains of unfinished writes; *now* in Unix seconds."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    connection: Connection
    points: StoredPoints
    _read: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], init=False, repr=False, compare=False)

    def once(self, key: Hashable, read: Callable[[], T]) -> T:
        if key not in self._read:
            self._read[key] = read()
        return self._read[key]

    @property
    def tiers(self) -> list[schema.Tier]:
        """State of the tiers, finest first."""
        return self.once("tiers", lambda: schema.read_tiers(self.connection))
