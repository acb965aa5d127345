"""Learning what is normal for a series from its last days, day by day, so that never more than one is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...core.histogram import Histogram
from .minutes import Minutes
from .policy import TailPolicy
from .reference import Reference, learn
from .tally import Tally, join, rows_of, tally


def learn_from(policy: TailPolicy, days: Callable[[], Iterable[Minutes]]) -> Reference | None:
    """Learn from the minutes of the last days.

    Args:
        policy: What matters.
        days: Gives them, oldest first; asked twice: for the thresholds, and for what was beyond.

    Returns:
        None when there is too little to learn from.
    """
    total, own = add_up(days())
    rows = rows_of(policy, total, own)
    kept: Tally | None = None
    for day in days():
        counted = tally(rows, day)
        kept = counted if kept is None else join(kept, counted)
    return None if kept is None else learn(policy, rows, kept, total)


def add_up(days: Iterable[Minutes]) -> tuple[Histogram, dict[str, Histogram]]:
    """Return the histogram of all requests and that of each stage's own time."""
    total: Histogram = Histogram()
    own: dict[str, Histogram] = {}
    for day in days:
        total.merge(_histogram(day, day.total))
        for stage, counts in zip(day.stages, day.own, strict=True):
            own.setdefault(stage, Histogram()).merge(_histogram(day, counts))
    return total, {stage: histogram for stage, histogram in own.items() if histogram.count}


def _histogram(day: Minutes, counts: np.ndarray) -> Histogram:
    amounts = counts.sum(axis=0, dtype=np.int64)
    return Histogram(
        buckets={index: count for index, count in zip(day.index.tolist(), amounts.tolist(), strict=True) if count}
    )
