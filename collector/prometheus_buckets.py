"""Buckets of the latency histograms for Prometheus.

Values are counted in a fixed range of the buckets of `core.histogram`. A classic bucket counts the values up to its bound. Bounds of
the ladder are powers of two, which are edges of these buckets, so their counts are exact. Another bound splits a bucket log-linearly;
its count is wrong by at most the values of that bucket, which is 2.2 % wide.
"""

from __future__ import annotations

import numpy as np

from ..core.histogram import SCALE
from ..store.points import Ints

BUCKETS_PER_DOUBLING = 2**SCALE
# From a microsecond to a day and a half. Shorter values count in the first bucket, longer values in the last bucket.
_LOWEST, _HIGHEST = -20, 17
LOWEST_SECONDS, HIGHEST_SECONDS = 2.0**_LOWEST, 2.0**_HIGHEST
# Index of the first bucket in `core.histogram`.
FIRST_INDEX = _LOWEST * BUCKETS_PER_DOUBLING
BUCKETS = (_HIGHEST - _LOWEST) * BUCKETS_PER_DOUBLING


def bucket_positions(index: Ints, scale: Ints) -> Ints:
    """Return the positions of buckets of *scale*; coarser buckets map to their upper edge, so no cumulative count is too high."""
    finer, coarser = np.maximum(SCALE - scale, 0), np.maximum(scale - SCALE, 0)
    ours = ((index >> coarser) + 1 << finer) - 1
    return np.clip(ours - FIRST_INDEX, 0, BUCKETS - 1)


def cumulative_counts(counts: Ints, bounds: tuple[float, ...]) -> Ints:
    """Return the number of values up to each bound, rounded down.

    Args:
        counts: Counts by bucket; shape (n, BUCKETS).
        bounds: Ascending bounds. [seconds]

    Returns:
        Cumulative counts; shape (n, len(bounds)).
    """
    position = np.log2(np.array(bounds)) * BUCKETS_PER_DOUBLING - FIRST_INDEX
    whole = np.floor(position).astype(np.int64)
    below = np.zeros((len(counts), BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    split = counts[:, np.minimum(whole, BUCKETS - 1)] * (position - whole)
    return below[:, whole] + split.astype(np.int64)
