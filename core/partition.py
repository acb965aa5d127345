"""Attribution of request time: every instant belongs to exactly one stage, or to `overhead`.

An instant belongs to the innermost stage active at that time. If overlapping stages do not contain each other, it belongs to the
stage that ends last, because the request waited for that stage.

Both rules select the stage that *started last*. Let X be the active interval that started last (of intervals that started
together, the one that ends first). No other active interval lies inside X, so X is innermost. Of two innermost intervals neither
contains the other, so the one that started later also ends later. Sorted by start, the active intervals are therefore a stack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from .stages import ORDER, OVERHEAD

# stage, start, end
Interval: TypeAlias = tuple[str, int, int]


def partition(intervals: Collection[Interval], t0: int, t1: int) -> dict[str, int]:
    """Return the time of [t0, t1) that belongs to each stage, `overhead` included, in nanoseconds; it adds up to t1 - t0 exactly.

    The parts of intervals outside the request are cut off. A stage that is completely covered by stages inside it has 0.

    >>> partition([("preprocess", 0, 6), ("tokenize", 2, 5), ("forward", 6, 9)], 0, 10)
    {'overhead': 1, 'preprocess': 3, 'tokenize': 3, 'forward': 3}
    """
    # Most requests have only consecutive and nested intervals, recorded in the order of their end, which need no sweep.
    exclusive: dict[str, int] = {OVERHEAD: 0}
    outermost: list[tuple[int, int]] = []
    now = t0
    for stage, start, end in intervals:
        spent = end - start
        if start >= now:
            if not start <= end <= t1:
                return _swept(intervals, t0, t1)
        elif not (t0 <= start and now <= end <= t1):
            return _swept(intervals, t0, t1)
        else:
            while outermost and outermost[-1][0] >= start:
                started, ended = outermost.pop()
                if started == start and ended == end:
                    # The order of charts decides.
                    return _swept(intervals, t0, t1)
                spent -= ended - started
            if outermost and outermost[-1][1] > start:
                return _swept(intervals, t0, t1)
        outermost.append((start, end))
        exclusive[stage] = exclusive.get(stage, 0) + spent
        now = end
    exclusive[OVERHEAD] += t1 - t0 - sum(exclusive.values())
    return exclusive


def segments(intervals: Iterable[Interval], t0: int, t1: int) -> list[Interval]:
    """Return the consecutive intervals that `partition` adds up: they cover [t0, t1) in order of time, each with its stage.

    >>> segments([("preprocess", 0, 6), ("tokenize", 2, 5)], 0, 7)
    [('preprocess', 0, 2), ('tokenize', 2, 5), ('preprocess', 5, 6), ('overhead', 6, 7)]
    """
    pieces: list[Interval] = []
    active: list[tuple[int, str]] = []
    now = t0
    for start, minus_end, _, stage in _in_sweep_order(intervals, t0, t1):
        now = _advance(pieces, active, now, start)
        active.append((-minus_end, stage))
    _advance(pieces, active, now, t1)
    return pieces


def _swept(intervals: Collection[Interval], t0: int, t1: int) -> dict[str, int]:
    exclusive = {OVERHEAD: 0}
    for stage, start, end in intervals:
        if start <= end and start <= t1 and end >= t0:
            exclusive[stage] = 0
    for stage, start, end in segments(intervals, t0, t1):
        exclusive[stage] += end - start
    return exclusive


def _in_sweep_order(intervals: Iterable[Interval], t0: int, t1: int) -> list[tuple[int, int, int, str]]:
    # The owner of an instant comes last in the order. Of two stages with the same times the owner is the stage charted first, of
    # custom stages the later name, so that the order of recording has no influence.
    # Plain tuples are sorted, because a key function would take as long as the rest of the sweep.
    return sorted(
        (start if start > t0 else t0, -(end if end < t1 else t1), -ORDER.get(stage, len(ORDER)), stage)  # noqa: FURB136 - calls cost more
        for stage, start, end in intervals
        if start <= end and start <= t1 and end >= t0
    )


def _advance(intervals: list[Interval], active: list[tuple[int, str]], now: int, until: int) -> int:
    """Assign the time from *now* to *until* to the active stages, innermost first, and drop the stages that end in it."""
    while active:
        end, stage = active[-1]
        if end > until:
            if until > now:
                intervals.append((stage, now, until))
            return until
        active.pop()
        if end > now:
            intervals.append((stage, now, end))
            now = end
    if until > now:
        intervals.append((OVERHEAD, now, until))
    return until
