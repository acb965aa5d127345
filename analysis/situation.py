"""Situation of a service: what changed, in the order no data, failures, release, latency, objective, replica.

The decision is for pages and messages that name one thing first. A failing service is never described by a stage, and a change
within its confidence interval is no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from .comparison import MIN_SHARE, FailureDifference, QuantileComparison, StageGrowth, rank_stage_growth

# Smaller changes of the latency are listed, but do not stand out. [ratio]
MATERIAL = 1.1
# Failures stand out from this share of the requests on; from the smaller one on if they have become more. [ratio]
_MANY_FAILURES, _MORE_FAILURES = 0.01, 0.001
# Minimum ratio of the share of a value in the failed requests to its share in all requests.
_MIN_LIFT = 1.3

# What stands out; `faster` is an improvement, and `none` means that nothing stands out.
Kind = Literal["no_data", "failures", "release", "first_token", "latency", "burning", "replica", "faster", "none"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts about a service in a window; a missing one is None.

    Args:
        is_silent: Whether the service stopped sending data.
        failure_ratio: Share of failed requests in the window. [ratio]
        failures: The same, compared with the compared window.
        latency: Latency, compared with the compared window.
        first_token: Time to the first token, compared with the compared window.
        release: Latency of the newest version, compared with the version before, if it is clearly slower.
        is_burning: Whether an objective of the service is burning, or an incident is open.
        has_slow_replica: Whether one replica is slower than the others.
    """

    is_silent: bool
    failure_ratio: float
    failures: FailureDifference | None = None
    latency: QuantileComparison | None = None
    first_token: QuantileComparison | None = None
    release: QuantileComparison | None = None
    is_burning: bool = False
    has_slow_replica: bool = False

    @property
    def kind(self) -> Kind:
        """The first fact that stands out."""
        found = self.latency
        by_order: dict[Kind, bool] = {
            "no_data": self.is_silent,
            "failures": self._fails,
            "release": self.release is not None,
            "first_token": _growth(self.first_token) > _growth(found),
            "latency": _growth(found) > 0,
            "burning": self.is_burning,
            "replica": self.has_slow_replica,
            "faster": found is not None and found.kind == "improvement" and (found.ratio or 1.0) <= 1 / MATERIAL,
            "none": True,
        }
        return next(kind for kind, holds in by_order.items() if holds)

    @property
    def _fails(self) -> bool:
        more = self.failures
        is_more = self.is_burning or (more is not None and more.are_more and more.difference >= _MORE_FAILURES)
        return self.failure_ratio >= (_MORE_FAILURES if is_more else _MANY_FAILURES)


def _growth(found: QuantileComparison | None) -> float:
    """Return the ratio of a regression that stands out; 0 for any other change."""
    is_slower = found is not None and found.kind == "regression" and (found.ratio or 0.0) >= MATERIAL
    return (found.ratio or 0.0) if found is not None and is_slower else 0.0


def stage_growth(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[StageGrowth, ...]:
    """Return the stages that grew from *before* to *now*, largest growth first; empty if their sum did not grow.

    Args:
        before: Time by stage at a percentile. [seconds]
        now: The same, later.

    >>> stage_growth({"forward": 1.0, "queue": 1.0}, {"forward": 1.0, "queue": 3.0})
    (StageGrowth(stage='queue', seconds=2.0, share=1.0),)
    """
    stages = sorted({*before, *now})
    added = [now.get(stage, 0.0) - before.get(stage, 0.0) for stage in stages]
    return rank_stage_growth(pd.DataFrame({"stage": stages, "delta_seconds": added}))


def failing_value(
    failed: Mapping[str, Mapping[str, int]], every: Mapping[str, Mapping[str, int]]
) -> tuple[str, str, float, float] | None:
    """Return the dimension and value that failed requests have most often beyond its share in all; None if there is none.

    Args:
        failed: Failed requests by dimension and value. [count]
        every: All requests by dimension and value. [count]

    Returns:
        Dimension, value, share of the failed requests, and share of all requests.

    >>> failing_value({"route": {"/a": 9, "/b": 1}}, {"route": {"/a": 50, "/b": 50}})
    ('route', '/a', 0.9, 0.5)
    """
    found = [
        (
            dimension,
            value,
            number / sum(numbers.values()),
            every[dimension].get(value, 0) / sum(every[dimension].values()),
        )
        for dimension, numbers in failed.items()
        if sum(every.get(dimension, {}).values())
        for value, number in numbers.items()
    ]
    standing_out = [each for each in found if each[2] >= MIN_SHARE and each[2] >= _MIN_LIFT * each[3]]
    return max(standing_out, key=lambda each: each[2] - each[3], default=None)
