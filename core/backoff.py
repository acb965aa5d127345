"""Delays before retries."""

from __future__ import annotations

import random


def backoff_seconds(failures: int, first: float, longest: float, rng: random.Random) -> float:
    """Return the delay after *failures* in a row: exponential from *first* up to *longest* seconds, with equal jitter.

    Source:
        AWS Architecture Blog, "Exponential Backoff And Jitter". Equal jitter has a minimum wait.

    >>> backoff_seconds(3, 1.0, 30.0, random.Random(7)) <= 4.0
    True
    """
    # The bound keeps the power small.
    limit = min(longest, first * 2 ** min(failures - 1, 30))
    return rng.uniform(limit / 2, limit)
