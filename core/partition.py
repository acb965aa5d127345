"""Whose time was it? Every instant of a request is given to exactly one stage, or to `overhead`.

Recorded intervals nest (a tokenizer inside preprocess), and those of parallel threads overlap. An instant belongs to the
innermost stage active then; of stages that overlap without one holding the other, to the one that ends last, because
that is what the request waited for.

Both rules are one: the stage that *started last*. Of the active intervals let X be the one that started last (of those
that started together, the one that ends first). No other active interval lies inside X, so X is innermost. Of two
innermost intervals neither holds the other, so the one that started later also ends later. Sorted by start, the active
intervals are therefore a stack, and the sweep costs O(n log n), the sort.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from .stages import ORDER, OVERHEAD

# stage, start, end
Interval: TypeAlias = tuple[str, int, int]


def partition(intervals: Collection[Interval], t0: int, t1: int) -> dict[str, int]:
    """Return how much of [t0, t1) belongs to each stage, `overhead` included; the values add up to t1 - t0 exactly.

    Args:
        intervals: In any order. What lies outside the request is cut off; a stage that lies outside it altogether, or
            ends before it starts, is not the request's. [nanoseconds]
        t0: When the request started. [nanoseconds]
        t1: When it ended; not before *t0*. [nanoseconds]

    Returns:
        Stage to its exclusive time: 0 for a stage whose whole time others inside it took. [nanoseconds]

    >>> partition([("preprocess", 0, 6), ("tokenize", 2, 5), ("forward", 6, 9)], 0, 10)
    {'overhead': 1, 'preprocess': 3, 'tokenize': 3, 'forward': 3}
    """
    # Most requests do one thing after the other: that needs no sweep.
    own: dict[str, int] = {OVERHEAD: 0}
    idle, now = 0, t0
    for stage, start, end in intervals:
        if not now <= start <= end <= t1:
            return _swept(intervals, t0, t1)
        idle += start - now
        own[stage] = own.get(stage, 0) + end - start
        now = end
    own[OVERHEAD] += idle + t1 - now
    return own


def segments(intervals: Iterable[Interval], t0: int, t1: int) -> list[Interval]:
    """Return what `partition` adds up: whose each part of [t0, t1) is, in the order of time, with nothing left out.

    >>> segments([("preprocess", 0, 6), ("tokenize", 2, 5)], 0, 7)
    [('preprocess', 0, 2), ('tokenize', 2, 5), ('preprocess', 5, 6), ('overhead', 6, 7)]
    """
    found: list[Interval] = []
    active: list[tuple[int, str]] = []
    now = t0
    for start, minus_end, _, stage in _in_sweep_order(intervals, t0, t1):
        now = _advance(found, active, now, start)
        active.append((-minus_end, stage))
    _advance(found, active, now, t1)
    return found


def _swept(intervals: Collection[Interval], t0: int, t1: int) -> dict[str, int]:
    own = {OVERHEAD: 0}
    for stage, start, end in intervals:
        if start <= end and start <= t1 and end >= t0:
            own[stage] = 0
    for stage, start, end in segments(intervals, t0, t1):
        own[stage] += end - start
    return own


def _in_sweep_order(intervals: Iterable[Interval], t0: int, t1: int) -> list[tuple[int, int, int, str]]:
    # The owner comes last. Two stages with the very same times: the one charted first, of the user's own the later name,
    # so that the order of recording never decides.
    # Tuples that sort by themselves: a key function would take as long as the rest of the sweep.
    return sorted(
        (start if start > t0 else t0, -(end if end < t1 else t1), -ORDER.get(stage, len(ORDER)), stage)  # noqa: FURB136 - calls cost more
        for stage, start, end in intervals
        if start <= end and start <= t1 and end >= t0
    )


def _advance(found: list[Interval], active: list[tuple[int, str]], now: int, until: int) -> int:
    """Give the time from *now* to *until* to the active stages, innermost first, and drop those that end in it."""
    while active:
        end, stage = active[-1]
        if end > until:
            if until > now:
                found.append((stage, now, until))
            return until
        active.pop()
        if end > now:
            found.append((stage, now, end))
            now = end
    if until > now:
        found.append((OVERHEAD, now, until))
    return until
