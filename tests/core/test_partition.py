"""Partition of a request into stages: every instant belongs to exactly one stage."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.partition import Interval, partition, segments
from stagelens.core.stages import ORDER, OVERHEAD

STAGES = ("forward", "preprocess", "tokenize", "queue", "rerank", "answer")
T0, T1 = 10, 40

intervals = st.tuples(st.sampled_from(STAGES), st.integers(0, 50), st.integers(0, 50))


@st.composite
def programs(draw: st.DrawFn, depth: int = 3, start: int = 0) -> list[Interval]:
    """Generate intervals of a program: nested, sequential and parallel stages in the order of their end.

    The clock is coarse, so that many times are equal. An interval of another thread may start at any time within its
    parent and end after it.
    """
    recorded: list[Interval] = []
    now = start
    for _ in range(draw(st.integers(0, 3))):
        started = now + draw(st.integers(0, 4))
        inside = draw(programs(depth - 1, started)) if depth else []
        last = max((end for _, _, end in inside), default=started)
        in_thread = draw(st.booleans())
        ended = started + draw(st.integers(0, 12)) if in_thread else last + draw(st.integers(0, 4))
        recorded += [*inside, (draw(st.sampled_from(STAGES)), started, ended)]
        now = started if in_thread else ended
    return draw(st.permutations(recorded)) if draw(st.booleans()) else recorded


requests = st.lists(intervals, max_size=12) | programs()


def owner(intervals: list[Interval], instant: int) -> str:
    """Return the stage of *instant* by definition: the innermost one, and among several the one that ends last."""
    clipped = {(stage, max(start, T0), min(end, T1)) for stage, start, end in intervals if start <= end}
    active = [item for item in clipped if item[1] <= instant < item[2]]
    innermost = [item for item in active if not any(_holds(item, other) for other in active)]
    if not innermost:
        return OVERHEAD
    # For stages with equal times: the first one in chart order, and for custom stages the one with the later name.
    return max(innermost, key=lambda item: (item[2], -ORDER.get(item[0], len(ORDER)), item[0]))[0]


def _holds(outer: Interval, inner: Interval) -> bool:
    return outer[1] <= inner[1] and inner[2] <= outer[2] and outer[1:] != inner[1:]


@given(requests)
def test_every_instant_is_assigned_by_the_partition_rule(request: list[Interval]) -> None:
    expected = {OVERHEAD: 0}
    for stage, start, end in request:
        if start <= end and start <= T1 and end >= T0:
            expected.setdefault(stage, 0)
    for instant in range(T0, T1):
        expected[owner(request, instant)] += 1

    assert partition(request, T0, T1) == expected


@given(requests)
def test_nested_intervals_give_the_same_result_without_the_sweep(request: list[Interval]) -> None:
    swept = {OVERHEAD: 0} | dict.fromkeys(
        (stage for stage, start, end in request if start <= end and start <= T1 and end >= T0), 0
    )
    for stage, start, end in segments(request, T0, T1):
        swept[stage] += end - start

    assert partition(request, T0, T1) == swept
    ended = sorted(request, key=lambda each: (each[2], -each[1]))
    assert partition(ended, T0, T1) == swept


@given(requests)
def test_a_request_without_duration_is_all_zero(request: list[Interval]) -> None:
    own = partition(request, T0, T0)

    assert set(own.values()) == {0}


@functools.total_ordering
class Tick:
    operations: ClassVar[int] = 0

    def __init__(self, value: int) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        Tick.operations += 1
        return self._value == int(other)  # pyright: ignore[reportArgumentType] - a time

    def __lt__(self, other: Any) -> bool:
        Tick.operations += 1
        return self._value < int(other)

    def __hash__(self) -> int:
        return hash(self._value)

    def __int__(self) -> int:
        return self._value

    def __neg__(self) -> Tick:
        Tick.operations += 1
        return Tick(-self._value)

    def __add__(self, other: Any) -> Tick:
        Tick.operations += 1
        return Tick(self._value + int(other))

    def __sub__(self, other: Any) -> Tick:
        Tick.operations += 1
        return Tick(self._value - int(other))

    __radd__ = __add__


def shuffled(size: int) -> list[tuple[int, int]]:
    rng = random.Random(size)
    return [(rng.randrange(2 * size), rng.randrange(2 * size)) for _ in range(size)]


SHAPES: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "one after the other": lambda size: [(2 * i, 2 * i + 1) for i in range(size)],
    "backwards": lambda size: [(2 * i, 2 * i + 1) for i in reversed(range(size))],
    "one inside the other": lambda size: [(i, 2 * size - i) for i in range(size)],
    "each ends after the one that began before it": lambda size: [(i, size + i) for i in range(size)],
    "all at once": lambda size: [(0, 2 * size)] * size,
    "without duration": lambda size: [(size, size)] * size,
    "one around many": lambda size: [(0, 2 * size), *((2 * i, 2 * i + 1) for i in range(size))],
    "at random": shuffled,
}


def operations(times: list[tuple[int, int]], size: int) -> int:
    recorded: list[Any] = [
        (STAGES[number % len(STAGES)], Tick(start), Tick(end)) for number, (start, end) in enumerate(times)
    ]
    Tick.operations = 0
    t0, t1 = Tick(0), Tick(2 * size)
    own: dict[str, Any] = partition(recorded, t0, t1)  # pyright: ignore[reportArgumentType] - times that count
    count = Tick.operations

    assert sum(int(spent) for spent in own.values()) == 2 * size

    return count


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_grows_like_a_sort(shape: str) -> None:
    small, large = 256, 2048
    steps, more_steps = (operations(SHAPES[shape](size), size) for size in (small, large))

    assert more_steps / steps <= 1.1 * (large * math.log2(large)) / (small * math.log2(small))
