"""Points as numpy columns: their sums, and the encoding of their histogram buckets as blobs of varints.

Counts are summed as integers at the coarsest scale of their group, so that the result is exact and independent of the order
of rows, tiers and parts.

A blob is a format byte, followed for each bucket in ascending order by the distance to the previous bucket and the count, both
as varints (7 bits a byte, least significant first). The first distance is the bucket index, zigzag-encoded. Twenty requests in
ten seconds take about 36 bytes. numpy processes whole columns, about 0.3 µs a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import StoreError
from ..core.histogram import MAX_SCALE, ZERO_THRESHOLD, Estimate, Histogram, bucket_bounds, bucket_middle, rank_of
from . import schema

Ints = NDArray[np.int64]

BLOB_FORMAT = 1
_BLOB_FORMAT_BYTE = bytes([BLOB_FORMAT])
_CONTINUES = 0x80
_BITS = 0x7F
# Number of rows decoded at once: their columns stay in the CPU cache, which makes decoding three times as fast.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of many histograms, concatenated.

    Args:
        offsets: Start of each histogram's buckets, and the end of the last; shape (n + 1,).
        index: Bucket indices, ascending within a histogram; shape (m,).
        amount: Counts of the buckets, all above zero; shape (m,).
    """

    offsets: Ints
    index: Ints
    amount: Ints

    @property
    def lengths(self) -> Ints:
        """Number of buckets of each histogram; shape (n,)."""
        return np.diff(self.offsets)

    def between(self, low: int, high: int) -> Buckets:
        """Return the buckets of the histograms with indexes in `[low, high)`."""
        first, last = self.offsets[low], self.offsets[high]
        return Buckets(self.offsets[low : high + 1] - first, self.index[first:last], self.amount[first:last])


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

    Raises:
        StoreError: A blob is damaged or has a format that this version does not know.

    >>> decode_buckets([b'\x01\x01\x05\x04\xac\x02']).amount.tolist()
    [5, 300]
    """
    blocks = [_decode_block(blobs[start : start + _BLOCK_ROWS]) for start in range(0, len(blobs), _BLOCK_ROWS)]
    if not blocks:
        return Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    lengths = np.concatenate([block.lengths for block in blocks])
    return Buckets(
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
        index=np.concatenate([block.index for block in blocks]),
        amount=np.concatenate([block.amount for block in blocks]),
    )


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
    """Return *values* encoded as varints, and the end of each varint."""
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
    """Return the values of the varints in *data*, and the start of each varint."""
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


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """Division of a stretch of time into steps that start at multiples of *width* since the epoch.

    Args:
        start: Start of the stretch, and of its first step. [Unix seconds]
        width: Width of a step; None for one step over the whole stretch. [seconds]
    """

    start: int
    width: int | None

    def of(self, at: Ints) -> Ints:
        """Return the start of the step that contains each time in *at*."""
        if self.width is None:
            return np.full(len(at), self.start)
        return np.maximum(at - at % self.width, self.start)

    def number(self, at: Ints) -> Ints:
        """Return the number of the step that contains each time in *at*; the first step is number 0."""
        return np.zeros_like(at) if self.width is None else at // self.width - self.start // self.width


@dataclass(frozen=True, slots=True)
class Columns:
    """Points in columns, sorted by time.

    Args:
        times: Start of the bucket of time; shape (n,). [Unix seconds]
        series: Id of the series or total; shape (n,).
        metric: Metric code; shape (n,).
        stage: Position in `stages`; shape (n,).
        stages: Stages that occur.
        scale: Scale of the histogram; shape (n,).
        zero: Number of values below a nanosecond; shape (n,).
        sum: Sum of the values; shape (n,).
        buckets: Buckets of each point.
    """

    times: Ints
    series: Ints
    metric: Ints
    stage: Ints
    stages: tuple[str, ...]
    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    def __len__(self) -> int:
        return len(self.times)

    @property
    def counts(self) -> Ints:
        """Sum of the counts (or microseconds) of each point; shape (n,)."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.buckets.amount)))
        return self.zero + np.diff(running[self.buckets.offsets])

    def where(self, chosen: NDArray[np.bool_]) -> Columns:
        """Return the points in the mask *chosen*, of shape (n,)."""
        lengths = self.buckets.lengths
        chosen_buckets = np.repeat(chosen, lengths)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[chosen])))
        buckets = Buckets(offsets, self.buckets.index[chosen_buckets], self.buckets.amount[chosen_buckets])
        return self._with(chosen, buckets)

    def of(self, metric: str) -> Columns:
        """Return the points of *metric*."""
        return self.where(self.metric == schema.METRIC_CODES[metric])

    def between(self, low: int, high: int) -> Columns:
        """Return the points with indexes in `[low, high)`."""
        return self._with(slice(low, high), self.buckets.between(low, high))

    def _with(self, chosen: Any, buckets: Buckets) -> Columns:
        return Columns(
            times=self.times[chosen],
            series=self.series[chosen],
            metric=self.metric[chosen],
            stage=self.stage[chosen],
            stages=self.stages,
            scale=self.scale[chosen],
            zero=self.zero[chosen],
            sum=self.sum[chosen],
            buckets=buckets,
        )


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Table of summed points, with a row for each stage and a column for each bucket.

    Args:
        scale: Scale of the buckets, the coarsest scale of the points.
        index: Non-empty buckets, ascending; shape (k,).
        amount: Number of requests, or microseconds; shape (stages, k).
        zero: Number of values below a nanosecond; shape (stages,).
        sum: Sum of the values; shape (stages,). [seconds]
    """

    scale: int
    index: Ints
    amount: Ints
    zero: Ints
    sum: Floats

    @property
    def total(self) -> int:
        """Sum of all counts."""
        return int(self.amount.sum() + self.zero.sum())

    def histogram(self, stage: int | None = None) -> Histogram:
        """Return the counts of one stage, or of all stages together, as a histogram."""
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


def bucket_table(columns: Columns, place: Ints, n_rows: int, scale: int) -> tuple[Ints, Ints]:
    """Sum the buckets of *columns* into a table.

    Args:
        columns: The points.
        place: Row of each point; shape (n,).
        n_rows: Number of rows.
        scale: Scale of the table's buckets.

    Returns:
        The non-empty buckets, ascending, shape (k,); and the table of sums, shape (n_rows, k).
    """
    lengths = columns.buckets.lengths
    index = columns.buckets.index >> np.repeat(columns.scale - scale, lengths)
    low = int(index.min(initial=0))
    present = np.zeros(int(index.max(initial=0)) - low + 1, bool)
    present[index - low] = True
    filled = np.flatnonzero(present)
    position = np.cumsum(present) - 1
    amount = np.zeros(n_rows * len(filled), np.int64)
    np.add.at(amount, np.repeat(place, lengths) * len(filled) + position[index - low], columns.buckets.amount)
    return filled + low, amount.reshape(n_rows, len(filled))


def add_up(columns: Columns, scale: int | None = None) -> StageCounts:
    """Sum *columns*, of one metric, by stage at their coarsest scale, or at *scale* if that is coarser."""
    coarsest = int(columns.scale.min(initial=MAX_SCALE if scale is None else scale))
    index, amount = bucket_table(columns, columns.stage, len(columns.stages), coarsest)
    zero = np.zeros(len(columns.stages), np.int64)
    np.add.at(zero, columns.stage, columns.zero)
    total = np.zeros(len(columns.stages), np.float64)
    np.add.at(total, columns.stage, columns.sum)
    return StageCounts(coarsest, index, amount, zero, total)


# Maximum number of table cells per summed bucket. Beyond it the used cells are determined first, because most of a larger
# table would be empty and initialising it would take longer.
_CELLS_A_BUCKET, _CELLS = 16, 1 << 20
# Larger than every bucket index.
_BEYOND = 1 << 62
# Limit of the counts of a row and of a result, so that sums fit into a signed 64-bit integer.
MAX_COUNT = 2**62
# Scales lie within -10..20.
_SCALE_OFFSET = 10


NO_POINTS = Columns(
    times=np.zeros(0, np.int64),
    series=np.zeros(0, np.int64),
    metric=np.zeros(0, np.int64),
    stage=np.zeros(0, np.int64),
    stages=(),
    scale=np.zeros(0, np.int64),
    zero=np.zeros(0, np.int64),
    sum=np.zeros(0, np.float64),
    buckets=Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)),
)


def merge_buckets(buckets: Buckets, group: Ints, shift: Ints, n_groups: int) -> Buckets:
    """Sum the histograms of each group.

    Args:
        buckets: Buckets of n histograms.
        group: Group of each histogram; shape (n,). [0..n_groups)
        shift: Difference by which the scale of each histogram is reduced; shape (n,).
        n_groups: Number of groups.
    """
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
    """Return the non-empty cells, ascending, and the sum of each cell."""
    used: Ints | None = None
    if n_cells > max(_CELLS, _CELLS_A_BUCKET * len(cell)):
        used, cell = np.unique(cell, return_inverse=True)
        n_cells = len(used)
    total = np.zeros(n_cells, np.int64)
    np.add.at(total, cell, amount)
    found = np.flatnonzero(total)
    return found if used is None else used[found], total[found]


def sum_points(columns: Columns, steps: Steps | None = None, *, apart: bool = True) -> Columns:
    """Sum *columns* into one point for each step, metric, stage and scale, at the last of their times; sorted by step.

    Args:
        columns: The points.
        steps: Steps that are summed separately; None for one step.
        apart: Whether series are summed separately.

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


def join_columns(pieces: Sequence[Columns]) -> Columns:
    """Return the points of all *pieces*, in their order."""
    if not pieces:
        return NO_POINTS
    stages = tuple(sorted({stage for piece in pieces for stage in piece.stages}))
    places = [np.array([stages.index(stage) for stage in piece.stages], np.int64) for piece in pieces]
    lengths = np.concatenate([piece.buckets.lengths for piece in pieces])
    return Columns(
        times=np.concatenate([piece.times for piece in pieces]),
        series=np.concatenate([piece.series for piece in pieces]),
        metric=np.concatenate([piece.metric for piece in pieces]),
        stage=np.concatenate([place[piece.stage] for place, piece in zip(places, pieces, strict=True)]),
        stages=stages,
        scale=np.concatenate([piece.scale for piece in pieces]),
        zero=np.concatenate([piece.zero for piece in pieces]),
        sum=np.concatenate([piece.sum for piece in pieces]),
        buckets=Buckets(
            np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
            np.concatenate([piece.buckets.index for piece in pieces]),
            np.concatenate([piece.buckets.amount for piece in pieces]),
        ),
    )
