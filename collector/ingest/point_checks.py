"""Which data points can be believed as they are: the checks of `points`, on columns.

A point that passes here passes there. One that does not may still do so, where a sum lies within a rounding of what is
possible; and why it does not is said there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.histogram import MAX_SCALE, MIN_SCALE, SCALE
from ...store.columns import Floats
from ...store.encoding import Buckets, Ints
from ...store.histograms import Histograms
from ...store.point_columns import Identity, PointColumns
from ..otlp.columns import HistogramColumns
from ..otlp.protobuf_scan import Flags, Unsigned
from .point_rules import MAX_BUCKETS, MAX_COUNT, NANOSECONDS, SUM_SLACK, Window

_EXACTLY = 1e-9
# Float64 ends at 2**1024 and, with its subnormals, begins at 2**-1074.
_MAX_EXPONENT = 1075


def believable(columns: HistogramColumns, timed: Flags, window: Window) -> Flags:
    """Return which points can be believed, but for what they are about, and hold anything; shape (n,).

    Args:
        columns: The points.
        timed: Which of them have a sum of what their buckets hold; shape (n,).
        window: Which times are plausible.
    """
    buckets, low, high = columns.buckets, *_outermost(columns)
    filled = _sums(buckets.amount, buckets)
    too_large = _sums((buckets.amount <= 0) | (buckets.amount > MAX_COUNT), buckets)
    scale = np.clip(columns.scale, MIN_SCALE, SCALE)
    with np.errstate(all="ignore"):
        fits = ~timed | _sum_fits(columns, filled, _edge(low, scale), _edge(high + 1, scale))
    return (
        ~columns.odd
        & _in_time(columns, window)
        & (columns.scale >= MIN_SCALE)
        & (columns.scale <= MAX_SCALE)
        & (columns.lengths <= MAX_BUCKETS)
        & (columns.count > 0)
        & (columns.count <= MAX_COUNT)
        & (columns.zero <= MAX_COUNT)
        & (too_large == 0)
        & (filled + columns.zero.view(np.int64) == columns.count.view(np.int64))
        & (np.maximum(high, -low) <= np.ldexp(float(_MAX_EXPONENT), scale))
        & fits
    )


def believed(columns: HistogramColumns, good: Flags, about: Sequence[Identity], timed: Flags) -> PointColumns:
    """Return the *good* points, at a scale no finer than ours; the others may hold anything."""
    buckets = columns.buckets
    finer = np.maximum(columns.scale - SCALE, 0)[good]
    kept, lengths = np.repeat(good, buckets.lengths), buckets.lengths[good]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    start_ns = _starts(columns)
    middle = (start_ns + (columns.time_ns - start_ns) // 2) // NANOSECONDS
    return PointColumns(
        about,
        middle[good].astype(np.int64),
        Histograms(
            np.minimum(columns.scale, SCALE)[good],
            columns.zero[good].astype(np.int64),
            np.where(timed, columns.sum, 0.0)[good],
            Buckets(offsets, buckets.index[kept] >> np.repeat(finer, lengths), buckets.amount[kept]),
        ),
    )


def _sums(values: Ints | Flags, buckets: Buckets) -> Ints:
    """Return what *values*, one for each bucket, add up to in each point."""
    running = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    return np.diff(running[buckets.offsets])


def _in_time(columns: HistogramColumns, window: Window) -> Flags:
    start_ns = _starts(columns)
    oldest, newest = (np.uint64(max(at, 0)) for at in (window.oldest, window.newest))
    return (
        (start_ns // NANOSECONDS >= oldest) & (columns.time_ns // NANOSECONDS <= newest) & (start_ns <= columns.time_ns)
    )


def _starts(columns: HistogramColumns) -> Unsigned:
    """Return where the interval of each begins, in Unix nanoseconds; shape (n,)."""
    return np.where(columns.start_ns == 0, columns.time_ns, columns.start_ns)


def _outermost(columns: HistogramColumns) -> tuple[Ints, Ints]:
    """Return the lowest and the highest bucket of each, at a scale no finer than ours; any where it has none."""
    index, offsets = np.append(columns.buckets.index, 0), columns.buckets.offsets
    finer = np.clip(columns.scale - SCALE, 0, MAX_SCALE)
    return index[offsets[:-1]] >> finer, index[offsets[1:] - 1] >> finer


def _sum_fits(columns: HistogramColumns, filled: Ints, low: Floats, high: Floats) -> Flags:
    """Return whose sum its values can have; they lie between *low* and *high*."""
    least = filled * low / SUM_SLACK * (1 + _EXACTLY)
    most = np.where(columns.zero > 0, np.inf, filled * high * SUM_SLACK * (1 - _EXACTLY))
    return columns.has_sum & np.isfinite(columns.sum) & (least <= columns.sum) & (columns.sum <= most)


def _edge(index: Ints, scale: Ints) -> Floats:
    """Return the lower edge of each bucket, at most the largest power of two there is."""
    return np.exp2(np.minimum(np.ldexp(index.astype(np.float64), -scale), 1023))
