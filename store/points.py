"""Rows of `points`: creation and sums, the ledger with the number of rows in each slot, and the interface of their storage.

The ledger and the write numbers are updated in the transaction that writes the rows. The rows are in the relational database
(`SqlPoints`), or in ClickHouse beside it (`ClickHousePoints`). ClickHouse has no transactions, which exactly-once batches, leases
and the outbox need.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from ..core.errors import StoreError
from ..core.histogram import SCALE, Histogram
from . import schema
from .columns import MAX_COUNT, Buckets, Columns, Floats, Ints, Steps, decode_buckets, encode_buckets, merge_buckets
from .schema import Segment, floor_to
from .selection import Selection


@dataclass(frozen=True, slots=True)
class HistogramArrays:
    """Histograms as arrays, with the fields of `Histogram`.

    Args:
        scale: Scale of each histogram; shape (n,).
        zero: Number of zero values of each histogram; shape (n,).
        sum: Sum of the values of each histogram; shape (n,).
        buckets: Buckets of each histogram; before `added_up` a bucket may occur several times.
    """

    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    @classmethod
    def of(cls, histograms: Sequence[Histogram]) -> HistogramArrays:
        """Return *histograms* as arrays."""
        pairs = [pair for histogram in histograms for pair in sorted(histogram.buckets.items())]
        sizes = [len(histogram.buckets) for histogram in histograms]
        index, amount = np.array(pairs, np.int64).reshape(-1, 2).T
        return cls(
            np.array([histogram.scale for histogram in histograms], np.int64),
            np.array([histogram.zero for histogram in histograms], np.int64),
            np.array([histogram.sum for histogram in histograms], np.float64),
            Buckets(np.cumsum([0, *sizes], dtype=np.int64), index, amount),
        )

    @classmethod
    def join(cls, pieces: Sequence[HistogramArrays]) -> HistogramArrays:
        """Return the histograms of all *pieces*, at least one, in their order."""
        lengths = np.concatenate([piece.buckets.lengths for piece in pieces])
        return cls(
            np.concatenate([piece.scale for piece in pieces]),
            np.concatenate([piece.zero for piece in pieces]),
            np.concatenate([piece.sum for piece in pieces]),
            Buckets(
                np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
                np.concatenate([piece.buckets.index for piece in pieces]),
                np.concatenate([piece.buckets.amount for piece in pieces]),
            ),
        )

    def between(self, low: int, high: int) -> HistogramArrays:
        """Return the histograms with indexes in `[low, high)`."""
        chosen = slice(low, high)
        return HistogramArrays(self.scale[chosen], self.zero[chosen], self.sum[chosen], self.buckets.between(low, high))

    def __len__(self) -> int:
        return len(self.scale)

    def __iter__(self) -> Iterator[Histogram]:
        index, amount = self.buckets.index.tolist(), self.buckets.amount.tolist()
        numbers = zip(self.scale.tolist(), self.zero.tolist(), self.sum.tolist(), strict=True)
        for (scale, zero, total), (low, high) in zip(numbers, pairwise(self.buckets.offsets.tolist()), strict=True):
            histogram = Histogram(scale, zero=zero, sum=total)
            for place, count in zip(index[low:high], amount[low:high], strict=True):
                histogram.buckets[place] = histogram.buckets.get(place, 0) + count
            yield histogram

    @property
    def count(self) -> Ints:
        """Sum of the counts (or microseconds) of each histogram; shape (n,)."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.buckets.amount)))
        return self.zero + np.diff(running[self.buckets.offsets])

    def added_up(self, group: Ints, n_groups: int) -> HistogramArrays:
        """Return the sum of each group of histograms, at the coarsest scale of the group and no finer than `SCALE`.

        Args:
            group: Group of each histogram; shape (n,). [0..n_groups)
            n_groups: Number of groups; none is empty.
        """
        within = self._within_bounds(group, n_groups)
        scale = np.full(n_groups, SCALE, np.int64)
        np.minimum.at(scale, group, self.scale)
        zero = np.zeros(n_groups, np.int64)
        np.add.at(zero, group, within.zero)
        total = np.zeros(n_groups, np.float64)
        np.add.at(total, group, within.sum)
        return HistogramArrays(
            scale, zero, total, merge_buckets(within.buckets, group, self.scale - scale[group], n_groups)
        )

    def _within_bounds(self, group: Ints, n_groups: int) -> HistogramArrays:
        """Return the histograms, scaled down in groups whose count exceeds `MAX_COUNT`, by one divisor for each group."""
        held = np.bincount(group, self.count, n_groups)
        if held.max(initial=0) <= MAX_COUNT:
            return self
        parts = np.ceil(np.maximum(held / MAX_COUNT, 1)).astype(np.int64)[group]
        offsets, index, amount = self.buckets.offsets, self.buckets.index, self.buckets.amount
        less = Buckets(offsets, index, amount // np.repeat(parts, self.buckets.lengths))
        return HistogramArrays(self.scale, self.zero // parts, self.sum / parts, less)


class PointKey(NamedTuple):
    """Key of a row within one tier, in the order of the table's key, so that sorted rows are appended.

    Args:
        service_id: Id of the service.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Id of the series or total.
        stage: Stage, or dominant stage.
    """

    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str

    def at_tier(self, width: int) -> PointKey:
        """Return the key of the row in the tier of *width* seconds that includes this row."""
        return self._replace(bucket=floor_to(self.bucket, width))


class PointRow(NamedTuple):
    """Row of `points`, in the order of the table's columns.

    Args:
        tier: Width of the bucket of time. [seconds]
        service_id: Id of the service.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket of time. [Unix seconds]
        series_id: Id of the series or total.
        stage: Stage, or dominant stage.
        part: Number of the write that added the row.
        scale: Scale of the histogram.
        zero: Number of values below a nanosecond.
        count: Sum of the counts, or microseconds.
        sum: Sum of the values. [seconds]
        histogram: Encoded buckets.
    """

    tier: int
    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str
    part: int
    scale: int
    zero: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - the column has this name, and rows are not searched
    sum: float
    histogram: bytes

    @property
    def key(self) -> PointKey:
        """Key of the row within its tier."""
        return PointKey(self.service_id, self.metric, self.bucket, self.series_id, self.stage)

    def in_total(self, total_id: int) -> PointRow:
        """Return the row as a row of the total *total_id*."""
        return self._replace(metric=-self.metric, series_id=total_id)


def point_rows(tier: int, keys: Iterable[PointKey], part: int, histograms: HistogramArrays) -> list[PointRow]:
    """Return the *histograms* as rows with the keys *keys*."""
    values = zip(
        histograms.scale.tolist(),
        histograms.zero.tolist(),
        histograms.count.tolist(),
        histograms.sum.tolist(),
        encode_buckets(histograms.buckets),
        strict=True,
    )
    return [PointRow(tier, *key, part, *one) for key, one in zip(keys, values, strict=True)]


def histograms_of(rows: Sequence[PointRow]) -> HistogramArrays:
    """Return the decoded histograms of *rows*."""
    return HistogramArrays(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode_buckets([row.histogram for row in rows]),
    )


def sum_rows(rows: Sequence[PointRow], width: int, part: int) -> list[PointRow]:
    """Return the sums of *rows*: one row for each key and bucket of *width* seconds, with the write number *part*."""
    groups: dict[PointKey, int] = {}
    group = np.array([groups.setdefault(row.key.at_tier(width), len(groups)) for row in rows], np.int64)
    return point_rows(width, groups, part, histograms_of(rows).added_up(group, len(groups)))


def take_part(connection: Connection) -> int:
    """Return a new write number, for the write that begins."""
    table = schema.store
    connection.execute(update(table).values(last_part=table.c.last_part + 1))
    return connection.execute(select(table.c.last_part)).scalar_one()


def add_to_ledger(connection: Connection, rows: Iterable[PointRow]) -> None:
    """Add the number and size of *rows* to the ledger."""
    entries: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = entries[row.tier, floor_to(row.bucket, schema.SLOT_SECONDS[row.tier])]
        entry[0] += 1
        entry[1] += len(row.histogram)
    table = schema.ledger
    for (tier, slot), (count, size) in sorted(entries.items()):
        grown = connection.execute(
            update(table)
            .where(table.c.tier == tier, table.c.slot == slot)
            .values(rows=table.c.rows + count, bytes=table.c.bytes + size)
        )
        if not grown.rowcount:
            connection.execute(insert(table).values(tier=tier, slot=slot, rows=count, bytes=size))


def ledger_ends(connection: Connection, tier: int) -> tuple[int, int]:
    """Return the starts of the oldest and the newest non-empty slot of *tier*, in Unix seconds; (0, 0) if there is none."""
    table = schema.ledger
    first, last = connection.execute(
        select(func.min(table.c.slot), func.max(table.c.slot)).where(table.c.tier == tier)
    ).one()
    return first or 0, last or 0


def cut_ledger(connection: Connection, tier: int, until: int) -> None:
    """Remove the slots of *tier* before *until*, the start of a slot, from the ledger."""
    table = schema.ledger
    connection.execute(delete(table).where(table.c.tier == tier, table.c.slot < until))


def subtract_from_ledger(connection: Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Subtract deleted *rows*, given as (tier, bucket, number of rows), from the ledger, at the mean row size of their slot."""
    gone: Counter[tuple[int, int]] = Counter()
    for tier, bucket, number in rows:
        gone[tier, floor_to(bucket, schema.SLOT_SECONDS[tier])] += number
    table = schema.ledger
    for (tier, slot), number in sorted(gone.items()):
        here = (table.c.tier == tier, table.c.slot == slot)
        connection.execute(delete(table).where(*here, table.c.rows <= number))
        left = table.c.bytes - table.c.bytes * number / table.c.rows
        connection.execute(update(table).where(*here).values(rows=table.c.rows - number, bytes=left))


class InUseError(StoreError):
    """The data to delete are being read; deletion can be retried later."""


@dataclass(frozen=True, slots=True)
class PointQuery:
    """Query for points.

    Args:
        selection: Selection of the requests.
        metrics: Metrics to read, from `names.METRICS`.
        by: Whether the result must separate totals or series; None for the cheapest.
    """

    selection: Selection
    metrics: Sequence[str]
    by: Literal["series", "total"] | None = None

    def asks_totals(self, tier: int) -> bool:
        """Return whether the query can read totals: *tier* has totals, and neither query nor selection needs single series."""
        return tier != schema.FINEST and self.by != "series" and not self.selection.is_fine

    def codes(self, tier: int) -> list[int]:
        """Return the codes of the metrics to read in *tier*; codes of totals are negative."""
        sign = -1 if self.asks_totals(tier) else 1
        return [sign * schema.METRIC_CODES[name] for name in self.metrics]


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """Contents of one series in a segment.

    Args:
        series_id: Id of the series or total.
        requests: Sum of the counts.
        first: Start of the first bucket with data. [Unix seconds]
        last: Start of the last bucket with data. [Unix seconds]
    """

    series_id: int
    requests: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PreparedWrite:
    """Prepared write of rows of `points` and of everything that belongs to the same transaction.

    Args:
        part: Number of the write.
        rows: Rows of `points`, in the order of their key.
        finish: Function that writes all other changes of the transaction.
    """

    part: int
    rows: Sequence[PointRow]
    finish: Callable[[Connection], None]

    def also(self, more: Callable[[Connection], None]) -> PreparedWrite:
        """Return the write with *more* called at the end of *finish*."""

        def finish(connection: Connection) -> None:
            self.finish(connection)
            more(connection)

        return replace(self, finish=finish)


class Points(Protocol):
    """Storage of the rows of `points`. Thread-safe.

    Every method raises StoreError if the operation fails; *connection* is in a transaction of the database.
    """

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Apply the write that *prepare* returns: its rows and its other changes, exactly once and never only one of them.

        Returns:
            Whether *prepare* returned a write.
        """
        ...

    def read(
        self, connection: Connection, question: PointQuery, segment: Segment, steps: Steps | None
    ) -> Iterator[Columns]:
        """Yield the points of *segment*, in pieces.

        Points of one step, metric, stage and scale (and series or total, if the query separates them) may be added up into one
        point, at the last of their times.

        Args:
            connection: The snapshot to read.
            question: The query.
            segment: Tier and stretch of time.
            steps: Steps into which the time will be divided; None for one step.
        """
        ...

    def seen(self, connection: Connection, question: PointQuery, segment: Segment) -> list[SeriesSeen]:
        """Return the contents of each series that matches *question* in *segment*."""
        ...

    def number(self, connection: Connection, question: PointQuery, segment: Segment) -> int:
        """Return the number of stored rows that match *question* in *segment*."""
        ...

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> list[PointRow]:
        """Return all rows of *tier* in `[start, stop)`, in Unix seconds."""
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

    def freed_seconds(self, tier: int) -> int:
        """Return the length of time that is deleted at once in *tier*, in seconds."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the size of the points outside of the relational database, in bytes."""
        ...

    def tidy(self, connection: Connection, now: int) -> None:
        """Delete the remains of unfinished writes; *now* in Unix seconds."""
        ...

    def close(self) -> None:
        """Close all connections of the engine."""
        ...


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Consistent snapshot of the store.

    Args:
        connection: Connection in a transaction with a consistent snapshot.
        points: Storage of the points.
    """

    connection: Connection
    points: Points


def owner_numbers(connection: Connection, question: PointQuery, tier: int) -> tuple[list[int], list[int] | None]:
    """Return the ids of the services of *question*, and of their series or totals in *tier*; None for all of these."""
    series, selection = schema.series, question.selection
    number = series.c.total_id if question.asks_totals(tier) else series.c.id
    found = connection.execute(select(series.c.service_id, number).where(*selection.conditions())).all()
    services, numbers = {row[0] for row in found}, {row[1] for row in found}
    return sorted(services), None if selection.is_of_services else sorted(numbers)
