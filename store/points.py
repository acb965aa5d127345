"""Points as they are written: histograms in numpy arrays, their encoding as blobs, and the rows of `points`.

Exports of one service repeat the same few identities. An `Identity` is therefore one object, created once and shared by all
points with the same series, metric and stage; points compare by the identity of that object.

A blob is a format byte, followed for each bucket in ascending order by the distance to the previous bucket and the count, both
as varints (7 bits a byte, least significant first). The first distance is the bucket index, zigzag-encoded. Twenty requests in
ten seconds take about 36 bytes. numpy processes whole columns, about 0.3 µs a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.attributes import REPLICA, split_attribute_key
from ..core.errors import StoreError
from ..core.histogram import SCALE, Histogram
from ..core.names import OPEN_TIME, REPLICA_STAGE_TIME
from .schema import METRIC_CODES, WITHOUT_TOTALS, tier_code
from .series import Series

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BLOB_FORMAT = 1
_BLOB_FORMAT_BYTE = bytes([BLOB_FORMAT])
_CONTINUES = 0x80
_BITS = 0x7F
# Number of rows decoded at once: their columns stay in the CPU cache, which makes decoding three times as fast.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of many histograms, concatenated."""

    offsets: Ints
    index: Ints
    amount: Ints

    @classmethod
    def join(cls, pieces: Sequence[Buckets]) -> Buckets:
        lengths = np.concatenate([piece.lengths for piece in pieces])
        return cls(
            np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
            np.concatenate([piece.index for piece in pieces]),
            np.concatenate([piece.amount for piece in pieces]),
        )

    @property
    def lengths(self) -> Ints:
        """Number of buckets of each histogram; shape (n,)."""
        return np.diff(self.offsets)

    @property
    def totals(self) -> Ints:
        """Sum of the counts of each histogram; shape (n,)."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.amount)))
        return np.diff(running[self.offsets])

    def where(self, chosen: NDArray[np.bool_]) -> Buckets:
        lengths = self.lengths
        of_chosen = np.repeat(chosen, lengths)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[chosen])))
        return Buckets(offsets, self.index[of_chosen], self.amount[of_chosen])

    def between(self, low: int, high: int) -> Buckets:
        first, last = self.offsets[low], self.offsets[high]
        return Buckets(self.offsets[low : high + 1] - first, self.index[first:last], self.amount[first:last])


def no_buckets(number: int) -> Buckets:
    return Buckets(np.zeros(number + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def encode_buckets(buckets: Buckets) -> list[bytes]:
    r"""Return one blob for each histogram.

    >>> encode_buckets(Buckets(np.array([0, 2]), np.array([-1, 3]), np.array([5, 300])))
    [b'\x01\x01\x05\x04\xac\x02']
    """
    gap = np.diff(buckets.index, prepend=0)
    first = buckets.offsets[:-1][buckets.lengths > 0]
    gap[first] = _zigzag(buckets.index[first])
    values = np.empty(2 * len(gap), np.uint64)
    values[0::2] = gap
    values[1::2] = buckets.amount
    data, ends = _encode_varints(values)
    edges = np.concatenate((np.zeros(1, np.int64), ends))[2 * buckets.offsets].tolist()
    return [_BLOB_FORMAT_BYTE + data[low:high] for low, high in pairwise(edges)]


def decode_buckets(blobs: Sequence[bytes]) -> Buckets:
    r"""Return the buckets of each blob.

    >>> decode_buckets([b'\x01\x01\x05\x04\xac\x02']).amount.tolist()
    [5, 300]
    """
    blocks = [_decode_block(blobs[start : start + _BLOCK_ROWS]) for start in range(0, len(blobs), _BLOCK_ROWS)]
    if not blocks:
        return no_buckets(0)
    return Buckets.join(blocks)


def _decode_block(blobs: Sequence[bytes]) -> Buckets:
    size = np.fromiter(map(len, blobs), np.int64, len(blobs))
    data = np.frombuffer(b"".join(blobs), np.uint8)
    _check_blobs(data, size)
    values, starts = _decode_varints(data)
    # The format byte decodes as a varint, so a blob has one value more than two for each bucket.
    heads = np.searchsorted(starts, np.cumsum(size) - size)
    body = np.ones(len(values), bool)
    body[heads] = False
    pairs = values[body].view(np.int64)
    length = np.diff(heads, append=len(values)) - 1
    if np.any(length % 2):
        _raise_damaged()
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(length // 2)))
    return Buckets(offsets, _undo_gaps(pairs[0::2], offsets), pairs[1::2])


def _check_blobs(data: NDArray[np.uint8], size: Ints) -> None:
    ends = np.cumsum(size)
    if np.any(size == 0) or np.any(data[ends - 1] & _CONTINUES):
        _raise_damaged()
    formats = data[ends - size]
    if np.any(formats != BLOB_FORMAT):
        msg = f"a stored histogram has format {int(formats[formats != BLOB_FORMAT][0])}, this version reads {BLOB_FORMAT}; upgrade Stagelens"
        raise StoreError(msg)


def _raise_damaged() -> None:
    msg = "a stored histogram is damaged; check the disk, and restore the database from a backup"
    raise StoreError(msg)


def _undo_gaps(gap: Ints, offsets: Ints) -> Ints:
    lengths = np.diff(offsets)
    first = offsets[:-1][lengths > 0]
    gap = gap.copy()
    gap[first] = (gap[first] >> 1) ^ -(gap[first] & 1)
    running = np.cumsum(gap)
    return running - np.repeat(running[first] - gap[first], lengths[lengths > 0])


def _zigzag(values: Ints) -> Ints:
    return (values << 1) ^ (values >> 63)


def _encode_varints(values: NDArray[np.uint64]) -> tuple[bytes, Ints]:
    size = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        size += values >= np.uint64(1 << bits)
    ends = np.cumsum(size)
    starts = ends - size
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(size.max(initial=0))):
        here = np.flatnonzero(size > place)
        byte = (values[here] >> np.uint64(7 * place)) & np.uint64(_BITS)
        more = np.where(size[here] > place + 1, _CONTINUES, 0).astype(np.uint64)
        data[starts[here] + place] = byte | more
    return data.tobytes(), ends


def _decode_varints(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], Ints]:
    last = np.flatnonzero(data < _CONTINUES)
    starts = np.concatenate((np.zeros(1, np.int64), last[:-1] + 1))
    size = last - starts + 1
    if size.max() > 10:  # noqa: PLR2004 - ten bytes hold 64 bits
        _raise_damaged()
    values = (data[starts] & _BITS).astype(np.uint64)
    for place in range(1, int(size.max())):
        here = np.flatnonzero(size > place)
        byte = (data[starts[here] + place] & _BITS).astype(np.uint64)
        values[here] |= byte << np.uint64(7 * place)
    return values, starts


# Maximum number of table cells per summed bucket. Beyond it the used cells are determined first, because most of a larger
# table would be empty and initialising it would take longer.
_CELLS_A_BUCKET, _CELLS = 16, 1 << 20
# Larger than every bucket index.
_BEYOND = 1 << 62


def merge_buckets(buckets: Buckets, group: Ints, shift: Ints, n_groups: int) -> Buckets:
    """Sum the histograms of each group."""
    lengths = buckets.lengths
    index = buckets.index >> np.repeat(shift, lengths)
    filled = lengths > 0
    low, high = np.full(n_groups, _BEYOND), np.full(n_groups, -_BEYOND)
    np.minimum.at(low, group[filled], index[buckets.offsets[:-1][filled]])
    np.maximum.at(high, group[filled], index[buckets.offsets[1:][filled] - 1])
    # Each group has cells of its own, from its lowest to its highest bucket.
    width = np.maximum(high - low + 1, 0)
    ends = np.cumsum(width)
    base = ends - width - low
    found, amount = _sum_cells(np.repeat(base[group], lengths) + index, buckets.amount, int(width.sum()))
    offsets = np.searchsorted(found, np.concatenate((np.zeros(1, np.int64), ends)))
    return Buckets(offsets, found - np.repeat(base, np.diff(offsets)), amount)


def _sum_cells(cell: Ints, amount: Ints, n_cells: int) -> tuple[Ints, Ints]:
    used: Ints | None = None
    if n_cells > max(_CELLS, _CELLS_A_BUCKET * len(cell)):
        used, cell = np.unique(cell, return_inverse=True)
        n_cells = len(used)
    total = np.zeros(n_cells, np.int64)
    np.add.at(total, cell, amount)
    found = np.flatnonzero(total)
    return found if used is None else used[found], total[found]


_WITHOUT_TOTALS = frozenset(METRIC_CODES[name] for name in WITHOUT_TOTALS)
# Limit of the counts of a row and of a result, so that sums fit into a signed 64-bit integer.
MAX_COUNT = 2**62


@dataclass(frozen=True, slots=True)
class HistogramArrays:
    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    @classmethod
    def of(cls, histograms: Sequence[Histogram]) -> HistogramArrays:
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
        return cls(
            np.concatenate([piece.scale for piece in pieces]),
            np.concatenate([piece.zero for piece in pieces]),
            np.concatenate([piece.sum for piece in pieces]),
            Buckets.join([piece.buckets for piece in pieces]),
        )

    def where(self, chosen: NDArray[np.bool_]) -> HistogramArrays:
        return HistogramArrays(self.scale[chosen], self.zero[chosen], self.sum[chosen], self.buckets.where(chosen))

    def between(self, low: int, high: int) -> HistogramArrays:
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
        return self.zero + self.buckets.totals

    def added_up(self, group: Ints, n_groups: int) -> HistogramArrays:
        """Return the sum of each group of histograms, at the coarsest scale of the group and no finer than `SCALE`."""
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
        held = np.bincount(group, self.count, n_groups)
        if held.max(initial=0) <= MAX_COUNT:
            return self
        parts = np.ceil(np.maximum(held / MAX_COUNT, 1)).astype(np.int64)[group]
        offsets, index, amount = self.buckets.offsets, self.buckets.index, self.buckets.amount
        less = Buckets(offsets, index, amount // np.repeat(parts, self.buckets.lengths))
        return HistogramArrays(self.scale, self.zero // parts, self.sum / parts, less)


@dataclass(slots=True)
class Point:
    """One data point: a histogram of one series, metric and stage."""

    series: Series
    metric: str  # Name of the metric, one of `names.METRICS`
    stage: str  # The stage; for `inference.request.duration` the dominant stage
    at: int  # Time; the store rounds it down to the start of its bucket. [Unix seconds]
    histogram: Histogram  # Counts (or microseconds) by bucket


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """Series, metric and stage of points, as in `Point`; compared by identity."""

    series: Series
    metric: str
    stage: str


@dataclass(frozen=True, slots=True)
class PointColumns:
    identities: Sequence[Identity]  # Identity of each point
    at: Ints  # Time of each point; shape (n,). [Unix seconds]
    histograms: HistogramArrays  # Histogram of each point

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointColumns:
        known: dict[tuple[Series, str, str], Identity] = {}
        keys = [(point.series, point.metric, point.stage) for point in points]
        return cls(
            [known.setdefault(key, Identity(*key)) for key in keys],
            np.array([point.at for point in points], np.int64),
            HistogramArrays.of([point.histogram for point in points]),
        )

    @classmethod
    def join(cls, pieces: Sequence[PointColumns]) -> PointColumns:
        return cls(
            [identity for piece in pieces for identity in piece.identities],
            np.concatenate([piece.at for piece in pieces]),
            HistogramArrays.join([piece.histograms for piece in pieces]),
        )

    def between(self, low: int, high: int) -> PointColumns:
        return PointColumns(self.identities[low:high], self.at[low:high], self.histograms.between(low, high))

    def __len__(self) -> int:
        return len(self.identities)

    def __iter__(self) -> Iterator[Point]:
        for about, at, histogram in zip(self.identities, self.at.tolist(), self.histograms, strict=True):
            yield Point(about.series, about.metric, about.stage, at, histogram)


def as_columns(points: Sequence[Point] | PointColumns) -> PointColumns:
    return points if isinstance(points, PointColumns) else PointColumns.of(points)


class PointRow(NamedTuple):
    """Row of `points`, in the order of the table's columns: a point, or a block of points as `point_table` describes.

    Args:
        tier: Width of the bucket of time. [seconds]
        bucket: Start of the bucket of time. [Unix seconds]
        sum: Sum of the values. [seconds]
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
    def is_block(self) -> bool:
        return self.series_id <= 0

    @property
    def points(self) -> int:
        return self.zero if self.is_block else 1

    def in_total(self, total_id: int) -> PointRow | None:
        return None if self.metric in _WITHOUT_TOTALS else self._replace(metric=-self.metric, series_id=total_id)

    @property
    def is_of_replica(self) -> bool:
        """Whether the row describes one replica; see `schema.WITHOUT_REPLICAS`."""
        return is_kind_of_replica(self.metric, self.stage)


def is_kind_of_replica(metric: int, stage: str) -> bool:
    return metric in _WITHOUT_TOTALS and (
        metric in (METRIC_CODES[REPLICA_STAGE_TIME], METRIC_CODES[OPEN_TIME])
        or split_attribute_key(stage)[0] == REPLICA.key
    )


def stored_rows(rows: Sequence[PointRow]) -> Sequence[PointRow]:
    return [row if (code := tier_code(row.tier)) == row.tier else row._replace(tier=code) for row in rows]


def histograms_of(rows: Sequence[PointRow]) -> HistogramArrays:
    return HistogramArrays(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode_buckets([row.histogram for row in rows]),
    )
