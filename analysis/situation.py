"""Situation of a service: what changed, in the order no data, failures, release, latency, objective, replica.

A failing service is never described by a stage, and a change within its confidence interval is no change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .comparison import FailureDifference, QuantileComparison

# Smaller changes of the latency are listed, but do not stand out. [ratio]
MATERIAL = 1.1
# Failures stand out from this share of the requests on; from the smaller one on if they are a cause, or have become more. [ratio]
_MANY_FAILURES, _MORE_FAILURES = 0.01, 0.001

# What stands out; `faster` is an improvement, and `none` means that nothing stands out.
Kind = Literal["no_data", "failures", "release", "first_token", "latency", "burning", "replica", "faster", "none"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts about a service in a window, compared with another window; a missing one is None.

    *release* is the newest version compared with the version before, if it is clearly slower. *are_failures_cause* is whether failures
    are the cause of an incident, a burning objective or the higher latency.
    """

    is_silent: bool
    failure_ratio: float
    failures: FailureDifference | None = None
    latency: QuantileComparison | None = None
    first_token: QuantileComparison | None = None
    release: QuantileComparison | None = None
    is_burning: bool = False
    has_slow_replica: bool = False
    are_failures_cause: bool = False

    @property
    def kind(self) -> Kind:
        """The first fact that stands out."""
        latency = self.latency
        by_order: dict[Kind, bool] = {
            "no_data": self.is_silent,
            "failures": self._fails,
            "release": self.release is not None,
            "first_token": _growth(self.first_token) > _growth(latency),
            "latency": _growth(latency) > 0,
            "burning": self.is_burning,
            "replica": self.has_slow_replica,
            "faster": latency is not None and latency.kind == "improvement" and (latency.ratio or 1.0) <= 1 / MATERIAL,
            "none": True,
        }
        return next(kind for kind, holds in by_order.items() if holds)

    @property
    def _fails(self) -> bool:
        more = self.failures
        is_more = more is not None and more.are_more and more.difference >= _MORE_FAILURES
        return self.failure_ratio >= (_MORE_FAILURES if is_more or self.are_failures_cause else _MANY_FAILURES)


def _growth(comparison: QuantileComparison | None) -> float:
    is_slower = comparison is not None and comparison.kind == "regression" and (comparison.ratio or 0.0) >= MATERIAL
    return (comparison.ratio or 0.0) if comparison is not None and is_slower else 0.0
