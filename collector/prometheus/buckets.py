"""The buckets that are counted in, a fixed stretch of those of `core.histogram`, and what classic buckets are made of.

A classic bucket counts what is at most its bound. Bounds of the ladder are powers of two, which are edges of our own buckets:
their counts are exact. A bound between two edges splits its bucket log-linearly, as everywhere: its count is wrong by the
requests of that one bucket, 2.2 % wide, at most.
"""

from __future__ import annotations

import numpy as np

from ...core.histogram import SCALE
from ...store.encoding import Ints

A_DOUBLING = 2**SCALE
# From a microsecond to a day and a half. What is shorter counts in the first bucket, what is longer in the last.
_LOWEST, _HIGHEST = -20, 17
LOWEST_SECONDS, HIGHEST_SECONDS = 2.0**_LOWEST, 2.0**_HIGHEST
# The index that the first of them has in `core.histogram`.
FIRST_INDEX = _LOWEST * A_DOUBLING
NUMBER = (_HIGHEST - _LOWEST) * A_DOUBLING
# From a millisecond to four minutes.
LADDER = tuple(2.0**power for power in range(-10, 9))


def place(index: Ints, scale: Ints) -> Ints:
    """Return where buckets of *scale* count: coarser ones at their upper edge, so that no count below it is too high."""
    finer, coarser = np.maximum(SCALE - scale, 0), np.maximum(scale - SCALE, 0)
    ours = ((index >> coarser) + 1 << finer) - 1
    return np.clip(ours - FIRST_INDEX, 0, NUMBER - 1)


def at_most(counts: Ints, bounds: tuple[float, ...]) -> Ints:
    """Return how many values are at most each bound, rounded down.

    Args:
        counts: By bucket; shape (n, NUMBER).
        bounds: Rising. [seconds]

    Returns:
        Shape (n, len(bounds)).
    """
    position = np.log2(np.array(bounds)) * A_DOUBLING - FIRST_INDEX
    whole = np.floor(position).astype(np.int64)
    below = np.zeros((len(counts), NUMBER + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    split = counts[:, np.minimum(whole, NUMBER - 1)] * (position - whole)
    return below[:, whole] + split.astype(np.int64)
