"""Values in columns: frozen dataclasses whose fields are arrays with one element for each row, histograms, and varints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .histogram import SCALE, Histogram
from .varint import BITS, CONTINUES, MAX_VARINT_BYTES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


# Metadata of a field whose value belongs to all rows, such as a list of names that rows refer to.
SHARED = {"shared": True}
# Larger than every bucket index.
_BEYOND = 1 << 62
# Limit of the counts of a row and of a result, so that sums fit into a signed 64-bit integer.
MAX_COUNT = 2**62


@cache
def _columns(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    return tuple((field.name, "shared" in field.metadata) for field in fields(kind))


class Columnar:
    """Base of dataclasses in columns. A field is an array, a list or `Columnar`, or `SHARED` by all rows."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, _columns(type(self))[0][0]))

    @classmethod
    def join(cls, pieces: Sequence[Self]) -> Self:
        """Return the rows of all *pieces*, at least one, in their order; shared fields are those of the first."""
        if len(pieces) == 1:
            return pieces[0]
        columns = ([getattr(piece, name) for piece in pieces] for name, _ in _columns(cls))
        return cls(
            *(
                column[0] if is_shared else _joined(column)
                for (_, is_shared), column in zip(_columns(cls), columns, strict=True)
            )
        )

    def where(self, chosen: Bools) -> Self:
        return self if chosen.all() else self.rows_at(chosen)

    def between(self, low: int, high: int) -> Self:
        return self.rows_at(slice(low, high))

    def take(self, places: Ints) -> Self:
        return self.rows_at(places)

    def rows_at(self, rows: Bools | Ints | slice) -> Self:
        columns = ((getattr(self, name), is_shared) for name, is_shared in _columns(type(self)))
        return type(self)(*(column if is_shared else _selected(column, rows) for column, is_shared in columns))

    @property
    def nbytes(self) -> int:
        columns = (getattr(self, name) for name, is_shared in _columns(type(self)) if not is_shared)
        return sum(column.nbytes for column in columns)


def _joined(column: list[Any]) -> Any:
    if isinstance(column[0], Columnar):
        return type(column[0]).join(column)
    if isinstance(column[0], np.ndarray):
        return np.concatenate(column)
    return [value for piece in column for value in piece]


def _selected(column: Any, rows: Bools | Ints | slice) -> Any:
    if isinstance(column, Columnar):
        return column.rows_at(rows)
    if isinstance(column, np.ndarray) or isinstance(rows, slice):
        return column[rows]
    return [column[row] for row in np.arange(len(column))[rows].tolist()]


def offsets_of(lengths: Ints | Bools) -> Ints:
    """Return where each of consecutive pieces with these *lengths* begins, and where the last one ends; shape (n + 1,)."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class Buckets(Columnar):
    """Buckets of many histograms, concatenated."""

    offsets: Ints  # Position of the first bucket of each histogram, and the number of all buckets; shape (n + 1,)
    index: Ints
    amount: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def join(cls, pieces: Sequence[Self]) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride] - of its own class
        return cls(
            offsets_of(np.concatenate([piece.lengths for piece in pieces])),
            np.concatenate([piece.index for piece in pieces]),
            np.concatenate([piece.amount for piece in pieces]),
        )

    @property
    def lengths(self) -> Ints:
        """Number of buckets of each histogram; shape (n,)."""
        return np.diff(self.offsets)

    @classmethod
    def of_gaps(cls, gaps: Ints, offsets: Ints, amount: Ints) -> Buckets:
        """Return the buckets with these `gaps`."""
        running = np.cumsum(gaps)
        before = np.append(0, running)[offsets[:-1]]
        return cls(offsets, running - np.repeat(before, np.diff(offsets)), amount)

    @property
    def gaps(self) -> Ints:
        """Distance of each bucket to the previous one; for the first bucket of a histogram its index."""
        gaps = np.diff(self.index, prepend=0)
        first = self.offsets[:-1][self.lengths > 0]
        gaps[first] = self.index[first]
        return gaps

    @property
    def totals(self) -> Ints:
        """Sum of the counts of each histogram; shape (n,)."""
        return self.sums(self.amount)

    def sums(self, values: Ints | Bools) -> Ints:
        """Return the sum of *values*, one for each bucket, over each histogram; shape (n,)."""
        return np.diff(offsets_of(values)[self.offsets])

    def rows_at(self, rows: Bools | Ints | slice) -> Buckets:
        if isinstance(rows, slice):
            first, last = self.offsets[rows.start], self.offsets[rows.stop]
            return Buckets(
                self.offsets[rows.start : rows.stop + 1] - first, self.index[first:last], self.amount[first:last]
            )
        lengths = self.lengths
        offsets = offsets_of(lengths[rows])
        if rows.dtype == np.bool_:
            of_rows = np.repeat(rows, lengths)
        else:
            of_rows = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths[rows])
        return Buckets(offsets, self.index[of_rows], self.amount[of_rows])


def no_buckets(number: int) -> Buckets:
    """Return the buckets of *number* empty histograms."""
    return Buckets(np.zeros(number + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


# Maximum number of table cells per summed bucket. Beyond it the used cells are determined first, because most of a larger
# table would be empty and initialising it would take longer.
_CELLS_A_BUCKET, _CELLS = 16, 1 << 20


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
    cells, amount = _sum_cells(np.repeat(base[group], lengths) + index, buckets.amount, int(width.sum()))
    offsets = np.searchsorted(cells, offsets_of(width))
    return Buckets(offsets, cells - np.repeat(base, np.diff(offsets)), amount)


def _sum_cells(cell: Ints, amount: Ints, n_cells: int) -> tuple[Ints, Ints]:
    used: Ints | None = None
    if n_cells > max(_CELLS, _CELLS_A_BUCKET * len(cell)):
        used, cell = np.unique(cell, return_inverse=True)
        n_cells = len(used)
    total = np.zeros(n_cells, np.int64)
    np.add.at(total, cell, amount)
    nonzero = np.flatnonzero(total)
    return nonzero if used is None else used[nonzero], total[nonzero]


@dataclass(frozen=True, slots=True)
class HistogramArrays(Columnar):
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
            Buckets(offsets_of(np.array(sizes, np.int64)), index, amount),
        )

    def __iter__(self) -> Iterator[Histogram]:
        index, amount = self.buckets.index.tolist(), self.buckets.amount.tolist()
        numbers = zip(self.scale.tolist(), self.zero.tolist(), self.sum.tolist(), strict=True)
        for (scale, zero, total), (low, high) in zip(numbers, pairwise(self.buckets.offsets.tolist()), strict=True):
            histogram = Histogram(scale, zero=zero, sum=total)
            for bucket, count in zip(index[low:high], amount[low:high], strict=True):
                histogram.buckets[bucket] = histogram.buckets.get(bucket, 0) + count
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
        """Return the histograms, scaled down in groups whose count exceeds `MAX_COUNT`, by one divisor for each group."""
        held = np.bincount(group, self.count, n_groups)
        if held.max(initial=0) <= MAX_COUNT:
            return self
        parts = np.ceil(np.maximum(held / MAX_COUNT, 1)).astype(np.int64)[group]
        offsets, index, amount = self.buckets.offsets, self.buckets.index, self.buckets.amount
        less = Buckets(offsets, index, amount // np.repeat(parts, self.buckets.lengths))
        return HistogramArrays(self.scale, self.zero // parts, self.sum / parts, less)


def encode_varints(values: NDArray[np.uint64]) -> tuple[bytes, Ints]:
    """Return the encoding of *values*, and the end of each in it; shape (n,)."""
    size = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        size += values >= np.uint64(1 << bits)
    ends = np.cumsum(size)
    starts = ends - size
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for byte_number in range(int(size.max(initial=0))):
        longer = np.flatnonzero(size > byte_number)
        byte = (values[longer] >> np.uint64(7 * byte_number)) & np.uint64(BITS)
        more = np.where(size[longer] > byte_number + 1, CONTINUES, 0).astype(np.uint64)
        data[starts[longer] + byte_number] = byte | more
    return data.tobytes(), ends


def varints_ending_at(data: Bytes, last: Ints) -> Ints:
    """Return the numbers whose last bytes are at *last*, -1 for those with more than ten bytes; *data* ends with a last byte."""
    values = data[last].astype(np.int64)
    before = last - 1
    longer = np.flatnonzero(data[before] >= CONTINUES)
    before = before[longer]
    for _ in range(MAX_VARINT_BYTES - 1):
        if not len(longer):
            return values
        values[longer] = values[longer] << 7 | data[before] & BITS
        before = before - 1
        continues = data[before] >= CONTINUES
        longer, before = longer[continues], before[continues]
    values[longer] = -1
    return values
