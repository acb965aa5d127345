"""Whose time was it, for many requests at once: `core.partition` where intervals overlap, plain subtraction where they do not.

The intervals of most requests lie within each other or follow each other, as their spans do. Then the time of each is its own
but for that of the intervals right inside it, and the sweep of `partition` comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.partition import Interval, partition
from ...core.stages import OVERHEAD
from .batching import Bools, Ints

# Starts within a request of up to 18 minutes fit beside the number of what they are in. [bits]
_START_BITS = 40


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of requests; the columns have shape (n,). The first are the requests themselves, in their order.

    Args:
        request: Which request it is of.
        start: [Unix nanoseconds]
        end: [Unix nanoseconds]
        stage: Counts into the stages, the last of which is `overhead`.
        within: The number of the interval it was recorded in; of a request its own.
    """

    request: Ints
    start: Ints
    end: Ints
    stage: Ints
    within: Ints

    def of(self, chosen: Ints, end: Ints) -> Intervals:
        """Return those of the requests *chosen*, in order, which now *end* earlier; in Unix nanoseconds."""
        number = np.full(int(self.request.max(initial=-1)) + 1, -1)
        number[chosen] = np.arange(len(chosen))
        stays = np.flatnonzero(number[self.request] >= 0)
        place = np.full(len(self.request), -1)
        place[stays] = np.arange(len(stays))
        ends = self.end[stays].copy()
        ends[: len(chosen)] = end
        return Intervals(
            number[self.request[stays]], self.start[stays], ends, self.stage[stays], place[self.within[stays]]
        )


@dataclass(frozen=True, slots=True)
class Split:
    """What each request spent in each stage; both of shape (requests, stages).

    Args:
        own: Adds up to the wall time of each request. [nanoseconds]
        present: Whether the request had the stage at all; `overhead` always.
    """

    own: Ints
    present: Bools

    @property
    def main(self) -> Ints:
        """The stage that took most of each request, of equal ones the first; `overhead` is the last."""
        return np.where(self.present, self.own, -1).argmax(axis=1)


def split(intervals: Intervals, stages: Sequence[str], requests: int) -> Split:
    """Give each instant of each request to one of its stages, as `partition` does.

    Args:
        intervals: Of all requests.
        stages: Their names, `overhead` last.
        requests: How many requests there are.
    """
    t0, t1 = intervals.start[:requests][intervals.request], intervals.end[:requests][intervals.request]
    is_request = np.arange(len(intervals.request)) < requests
    inside = (intervals.start <= intervals.end) & (intervals.start <= t1) & (intervals.end >= t0)
    start, end = np.clip(intervals.start, t0, t1), np.clip(intervals.end, t0, t1)
    simple = np.ones(requests, np.bool_)
    simple[intervals.request[_entangled(intervals, start, end, t0, inside, is_request, len(stages) - 1)]] = False

    counts = inside & simple[intervals.request]
    # Exact: the nanoseconds of a hundred days fit into a float.
    taken = np.bincount(
        intervals.within[counts & ~is_request], (end - start)[counts & ~is_request], minlength=len(start)
    ).astype(np.int64)
    own = np.zeros((requests, len(stages)), np.int64)
    present = np.zeros((requests, len(stages)), np.bool_)
    np.add.at(own, (intervals.request[counts], intervals.stage[counts]), (end - start - taken)[counts])
    present[intervals.request[counts], intervals.stage[counts]] = True
    present[:, -1] = True
    for request, found in _swept(intervals, np.flatnonzero(~simple), stages, is_request):
        own[request] = 0
        for stage, spent in found.items():
            place = len(stages) - 1 if stage == OVERHEAD else stages.index(stage)
            own[request, place], present[request, place] = spent, True
    return Split(own, present)


def _entangled(  # noqa: PLR0917 - columns
    intervals: Intervals, start: Ints, end: Ints, t0: Ints, inside: Bools, is_request: Bools, overhead: int
) -> Bools:
    """Return which intervals keep their request from being split by subtraction."""
    within = intervals.within
    bare = is_request[within] & (intervals.stage[within] == overhead)
    # Of two with the same times `partition` has an order of its own.
    same = (start == start[within]) & (end == end[within]) & ~bare
    sticks_out = (start < start[within]) | (end > end[within]) | ~inside[within]
    odd = inside & ~is_request & (same | sticks_out | ((start - t0) >> _START_BITS != 0))
    chosen = np.flatnonzero(inside & ~is_request)
    since = np.minimum(start - t0, (1 << _START_BITS) - 1)
    order = chosen[np.argsort((within[chosen] << _START_BITS) + since[chosen])]
    follows = within[order[1:]] == within[order[:-1]]
    odd[order[1:][follows & (start[order[1:]] < end[order[:-1]])]] = True
    return odd


def _swept(
    intervals: Intervals, requests: Ints, stages: Sequence[str], is_request: Bools
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield each of *requests*, and what `partition` makes of it."""
    wanted = np.zeros(int(intervals.request.max(initial=-1)) + 1, np.bool_)
    wanted[requests] = True
    # A request is an interval too, if it has a stage.
    chosen = np.flatnonzero(wanted[intervals.request] & ~(is_request & (intervals.stage == len(stages) - 1)))
    chosen = chosen[np.argsort(intervals.request[chosen], kind="stable")]
    bounds: NDArray[np.int64] = np.searchsorted(intervals.request[chosen], np.array([requests, requests + 1]))
    start, end = intervals.start[chosen].tolist(), intervals.end[chosen].tolist()
    of_stage = intervals.stage[chosen].tolist()
    times: list[Interval] = [(stages[int(stage)], t0, t1) for stage, t0, t1 in zip(of_stage, start, end, strict=True)]
    for request, first, last in zip(requests.tolist(), *bounds.tolist(), strict=True):
        yield request, partition(times[first:last], int(intervals.start[request]), int(intervals.end[request]))
