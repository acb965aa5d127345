"""Rows of `points`: building, summing, and the ledger of how many rows each slot holds.

The ledger and the write numbers are updated in the transaction that writes the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from ..core.histogram import SCALE, Histogram
from . import schema
from .columns import MAX_COUNT, Floats, merge_buckets
from .encoding import Buckets, Ints, decode, encode
from .tiers import floor_to


@dataclass(frozen=True, slots=True)
class Histograms:
    """Histograms as arrays; the fields are those of `Histogram`.

    Args:
        scale: Shape (n,).
        zero: Shape (n,).
        sum: Shape (n,).
        buckets: Buckets of each; a bucket may occur several times until `added_up`.
    """

    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    @classmethod
    def of(cls, histograms: Sequence[Histogram]) -> Histograms:
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
    def join(cls, pieces: Sequence[Histograms]) -> Histograms:
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

    def between(self, low: int, high: int) -> Histograms:
        """Return the histograms with numbers *low* to *high*, exclusive."""
        chosen = slice(low, high)
        return Histograms(self.scale[chosen], self.zero[chosen], self.sum[chosen], self.buckets.between(low, high))

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
        """Sum of the counts (or microseconds) of each; shape (n,)."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.buckets.amount)))
        return self.zero + np.diff(running[self.buckets.offsets])

    def added_up(self, group: Ints, n_groups: int) -> Histograms:
        """Return one histogram for each group, at the coarsest scale of the group, and none finer than `SCALE`.

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
        return Histograms(scale, zero, total, merge_buckets(within.buckets, group, self.scale - scale[group], n_groups))

    def _within_bounds(self, group: Ints, n_groups: int) -> Histograms:
        """Return the histograms with groups above `MAX_COUNT` scaled down: every member is divided by the same number."""
        held = np.bincount(group, self.count, n_groups)
        if held.max(initial=0) <= MAX_COUNT:
            return self
        parts = np.ceil(np.maximum(held / MAX_COUNT, 1)).astype(np.int64)[group]
        offsets, index, amount = self.buckets.offsets, self.buckets.index, self.buckets.amount
        less = Buckets(offsets, index, amount // np.repeat(parts, self.buckets.lengths))
        return Histograms(self.scale, self.zero // parts, self.sum / parts, less)


class PointKey(NamedTuple):
    """Key of a row within one tier, in the order of the table's key, so that sorted rows are appended.

    Args:
        service_id: Service number.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Number of the series or total.
        stage: Stage, or dominant stage.
    """

    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str

    def at_tier(self, width: int) -> PointKey:
        """Return the key of the row of a tier of *width* seconds that includes this one."""
        return self._replace(bucket=floor_to(self.bucket, width))


class PointRow(NamedTuple):
    """A row, in the order of the table's columns.

    Args:
        tier: Width of its bucket. [seconds]
        service_id: Service number.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Number of the series or total.
        stage: Stage, or dominant stage.
        part: Number of the write it came with.
        scale: Scale of the buckets.
        zero: Values below a nanosecond.
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
        """Return the row as a row of total *total_id*."""
        return self._replace(metric=-self.metric, series_id=total_id)


def point_rows(tier: int, keys: Iterable[PointKey], part: int, histograms: Histograms) -> list[PointRow]:
    """Return *histograms* as rows of *keys*, one for each."""
    said = zip(
        histograms.scale.tolist(),
        histograms.zero.tolist(),
        histograms.count.tolist(),
        histograms.sum.tolist(),
        encode(histograms.buckets),
        strict=True,
    )
    return [PointRow(tier, *key, part, *one) for key, one in zip(keys, said, strict=True)]


def histograms_of(rows: Sequence[PointRow]) -> Histograms:
    """Return the histograms of *rows*, one for each."""
    return Histograms(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode([row.histogram for row in rows]),
    )


def sum_rows(rows: Sequence[PointRow], width: int, part: int) -> list[PointRow]:
    """Return the sums of *rows*: one row for each key and bucket of *width* seconds, as part *part*."""
    groups: dict[PointKey, int] = {}
    group = np.array([groups.setdefault(row.key.at_tier(width), len(groups)) for row in rows], np.int64)
    return point_rows(width, groups, part, histograms_of(rows).added_up(group, len(groups)))


def take_part(connection: Connection) -> int:
    """Return the number of the write that begins."""
    table = schema.store
    connection.execute(update(table).values(last_part=table.c.last_part + 1))
    return connection.execute(select(table.c.last_part)).scalar_one()


def add_to_ledger(connection: Connection, rows: Iterable[PointRow]) -> None:
    """Add *rows* to the ledger."""
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
    """Return the oldest and the newest non-empty slot of *tier*, in Unix seconds; 0 and 0 if there is none."""
    table = schema.ledger
    first, last = connection.execute(
        select(func.min(table.c.slot), func.max(table.c.slot)).where(table.c.tier == tier)
    ).one()
    return first or 0, last or 0


def cut_ledger(connection: Connection, tier: int, until: int) -> None:
    """Remove what *tier* held before *until*, the start of a slot, from the ledger."""
    table = schema.ledger
    connection.execute(delete(table).where(table.c.tier == tier, table.c.slot < until))


def subtract_from_ledger(connection: Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Subtract *rows*, given as (tier, bucket, rows), from the ledger, at the mean size of their slot."""
    gone: Counter[tuple[int, int]] = Counter()
    for tier, bucket, number in rows:
        gone[tier, floor_to(bucket, schema.SLOT_SECONDS[tier])] += number
    table = schema.ledger
    for (tier, slot), number in sorted(gone.items()):
        here = (table.c.tier == tier, table.c.slot == slot)
        connection.execute(delete(table).where(*here, table.c.rows <= number))
        left = table.c.bytes - table.c.bytes * number / table.c.rows
        connection.execute(update(table).where(*here).values(rows=table.c.rows - number, bytes=left))
