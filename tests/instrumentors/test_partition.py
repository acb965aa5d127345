"""Every instant of a request belongs to exactly one stage, and which one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.stages import ORDER, OVERHEAD
from stagelens.instrumentors.partition import Interval, partition

STAGES = ("forward", "preprocess", "tokenize", "queue", "rerank", "answer")
T0, T1 = 10, 40

intervals = st.tuples(st.sampled_from(STAGES), st.integers(0, 50), st.integers(0, 50))
requests = st.lists(intervals, max_size=12)


def owner(intervals: list[Interval], instant: int) -> str:
    """Say who owns *instant*, by the words of the rule: innermost; of those, the one that ends last."""
    clipped = {(stage, max(start, T0), min(end, T1)) for stage, start, end in intervals if start <= end}
    active = [item for item in clipped if item[1] <= instant < item[2]]
    innermost = [item for item in active if not any(_holds(item, other) for other in active)]
    if not innermost:
        return OVERHEAD
    # Stages with the very same times: the one charted first, of the user's own the later name.
    return max(innermost, key=lambda item: (item[2], -ORDER.get(item[0], len(ORDER)), item[0]))[0]


def _holds(outer: Interval, inner: Interval) -> bool:
    return outer[1] <= inner[1] and inner[2] <= outer[2] and outer[1:] != inner[1:]


@given(requests)
def test_the_parts_add_up_to_the_request_and_none_is_negative(request: list[Interval]) -> None:
    """Whatever was recorded, the parts are complete and disjoint, in whole nanoseconds."""
    own = partition(request, T0, T1)

    assert sum(own.values()) == T1 - T0
    assert all(spent >= 0 for spent in own.values())


@given(requests)
def test_every_instant_belongs_to_the_stage_the_rule_names(request: list[Interval]) -> None:
    """The sweep gives each instant to the stage that the rule, applied instant by instant, gives it to."""
    expected = {OVERHEAD: 0}
    for stage, start, end in request:
        if start <= end and start <= T1 and end >= T0:
            expected.setdefault(stage, 0)
    for instant in range(T0, T1):
        expected[owner(request, instant)] += 1

    assert partition(request, T0, T1) == expected


@given(requests, st.randoms(use_true_random=False))
def test_the_order_of_recording_does_not_matter(request: list[Interval], rng: random.Random) -> None:
    """Threads record in any order; the answer is the same."""
    shuffled = rng.sample(request, len(request))

    assert partition(shuffled, T0, T1) == partition(request, T0, T1)


@given(requests, st.integers(-(2**70), 2**70))
def test_where_the_clock_started_does_not_matter(request: list[Interval], offset: int) -> None:
    """Only differences of times count, also of times that no float could hold."""
    moved = [(stage, start + offset, end + offset) for stage, start, end in request]

    assert partition(moved, T0 + offset, T1 + offset) == partition(request, T0, T1)


@given(requests)
def test_a_request_without_duration_is_all_zero(request: list[Interval]) -> None:
    """Start and end may be the same tick of the clock."""
    own = partition(request, T0, T0)

    assert set(own.values()) == {0}


def test_of_two_parallel_stages_the_one_that_ends_last_owns_the_overlap() -> None:
    """The request waited for the later one."""
    own = partition([("queue", 10, 25), ("forward", 20, 40)], T0, T1)

    assert own == {"overhead": 0, "queue": 10, "forward": 20}


def test_a_stage_covered_by_what_runs_inside_it_keeps_nothing_but_its_name() -> None:
    """A wrapper around the whole of another stage has no time of its own."""
    own = partition([("preprocess", 10, 40), ("tokenize", 10, 40), ("tokenize", 10, 30), ("forward", 30, 40)], T0, T1)

    assert own["tokenize"] + own["forward"] == T1 - T0
    assert own["preprocess"] == 0


def test_recursion_counts_once() -> None:
    """A stage inside a stage of the same name adds nothing."""
    own = partition([("forward", 10, 40), ("forward", 15, 30), ("forward", 20, 25)], T0, T1)

    assert own == {"overhead": 0, "forward": 30}


def test_ten_thousand_intervals_take_no_quadratic_time() -> None:
    """A deep stack and a long row of siblings are both worked off in one sweep (a quadratic one would hit the timeout)."""
    deep: list[Interval] = [("forward", start, 200_000 - start) for start in range(100_000)]
    row: list[Interval] = [("queue", 2 * start, 2 * start + 1) for start in range(100_000)]

    own = partition(deep + row, 0, 200_000)

    assert own == {"overhead": 0, "forward": 100_000, "queue": 100_000}
