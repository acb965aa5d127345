"""Why requests violate an objective, or are slower than usual: no data, failures, or latency, stated in this order.

One function decides for messages, pages and the API. A failed request violates an objective on requests in whatever stage it spent
its time, so no stage is blamed for failures: stages explain only the requests that succeeded and were too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import pandas as pd

from ..analysis.comparison import MIN_SHARE, StageGrowth, dominant_growth, rank_stage_growth
from ..core.names import STATUS_ERROR, STATUS_OK
from ..store import Indicator, Reader, Selection

# `none`: nothing stands out.
CauseKind = Literal["no_data", "failures", "latency", "none"]
# Minimum share of the bad requests for failures to be stated beside slow requests, and the reverse. [ratio]
_MIN_STATED = 0.1


@dataclass(frozen=True, slots=True)
class FailureShare:
    """Most frequent value among failed requests, which at least `MIN_SHARE` of them have.

    Args:
        requests: Failed requests with it. [count]
        of: Failed requests that were looked at: all for a route; for the others, the retained ones of the route. [count]
    """

    value: str
    requests: int
    of: int


@dataclass(frozen=True, slots=True)
class Failures:
    """Failed requests among those that violated an objective; *bad*: requests that violated the objective [count]."""

    # Integers stay integers in JSON.
    failed: int | float
    bad: int | float
    requests: int | float
    error: FailureShare | None = None
    route: FailureShare | None = None
    dependency: FailureShare | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why requests are bad; *bad*: requests that violated the objective, or are slower than usual [count]."""

    kind: CauseKind
    requests: float = 0.0
    bad: float = 0.0
    failures: Failures | None = None
    growth: tuple[StageGrowth, ...] = ()


def explain_violations(
    read: Reader, selection: Selection, indicator: Indicator, good_since: datetime | None = None
) -> Explanation:
    if indicator.kind == "freshness":
        return Explanation("no_data")
    every, failed = read.tallies([selection, replace(selection, status=STATUS_ERROR)], indicator)
    if indicator.kind == "coverage":
        # Its unit is time, not requests.
        return Explanation("none" if every.requests else "no_data", every.requests)

    def growth() -> tuple[StageGrowth, ...]:
        if indicator.kind != "latency":
            return ()
        compared = replace(selection, start=good_since or selection.start)
        return excess_by_stage(slow_breakdown(read, compared, indicator))

    return _decide(read, selection, (every.requests, every.bad, failed.bad), growth)


def explain_regression(
    read: Reader, selection: Selection, usual_seconds: float, growth: tuple[StageGrowth, ...]
) -> Explanation:
    every, failed = (read.latency(side) for side in (selection, replace(selection, status=STATUS_ERROR)))
    bad = [latency.count_above(usual_seconds).value if latency.count else 0.0 for latency in (every, failed)]
    return _decide(read, selection, (every.count, bad[0], bad[1]), lambda: growth)


def _decide(
    read: Reader,
    selection: Selection,
    counts: tuple[float, float, float],
    growth: Callable[[], tuple[StageGrowth, ...]],
) -> Explanation:
    requests, bad, failed = counts
    if not requests:
        return Explanation("no_data")
    share = failed / bad if bad > 0 else 0.0
    grown = growth() if 1 - share >= _MIN_STATED else ()
    failures = _failures(read, selection, counts) if share >= _MIN_STATED else None
    if share >= MIN_SHARE:
        return Explanation("failures", requests, bad, failures, grown if dominant_growth(grown) else ())
    return Explanation("latency" if dominant_growth(grown) else "none", requests, bad, failures, grown)


def _failures(read: Reader, selection: Selection, counts: tuple[float, float, float]) -> Failures:
    requests, bad, failed = counts
    lost = replace(selection, status=STATUS_ERROR)
    route = None if selection.route else _most_frequent(read.dimensions(lost).get("route", {}))
    # Agents retain as many requests of a rare series as of a frequent one, so those of the dominant route are looked at.
    retained = read.retained_failures(replace(lost, route=route.value) if route else lost)
    return Failures(
        failed,
        bad,
        requests,
        error=_most_frequent(retained.errors, retained.requests),
        route=route,
        dependency=_most_frequent(retained.called, retained.requests),
    )


def _most_frequent(counts: Mapping[str, int], of: int | None = None) -> FailureShare | None:
    of = sum(counts.values()) if of is None else of
    value = max(counts, key=lambda name: counts[name], default="")
    return FailureShare(value, counts[value], of) if value and counts[value] >= MIN_SHARE * of else None


def slow_breakdown(read: Reader, selection: Selection, indicator: Indicator) -> pd.DataFrame:
    """Return `Reader.bad_breakdown` of the requests that succeeded: of the bad ones, those that were too slow."""
    return read.bad_breakdown(replace(selection, status=STATUS_OK), indicator.threshold_seconds)


def excess_by_stage(breakdown: pd.DataFrame) -> tuple[StageGrowth, ...]:
    return rank_stage_growth(breakdown.rename(columns={"excess_seconds": "delta_seconds"}))
