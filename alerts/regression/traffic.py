"""Has the traffic itself changed? Then slower requests may be nobody's fault, and must be compared like with like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core.histogram import Histogram
from .minutes import Floats, middles
from .policy import Confounders

# Requests by dimension (route, model, status, device, batch, cold …) and value, as `Reader.dimensions` gives them.
Traffic = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Shift:
    """A share of the requests that is not what it was.

    Args:
        dimension: Of what: `route`, `model`, `batch`, `load` …
        value: Whose share moved most; of the load, empty.
        before: Its share; of the load, the requests a minute the reference ends at.
        after: Its share now; of the load, the requests a minute.
    """

    dimension: str
    value: str
    before: float
    after: float


def shifts(policy: Confounders, before: Traffic, after: Traffic) -> tuple[Shift, ...]:
    """Return the dimensions in which the requests differ by more than chance, each by the value that moved most."""
    found = (_largest(policy, name, before[name], after[name]) for name in before if name in after)
    return tuple(shift for shift in found if shift is not None)


def load_shift(load: tuple[float, float, float], requests: float, minutes: int) -> Shift | None:
    """Return the load as a shift when it is outside what the reference knows.

    Args:
        load: Lowest, middle and highest log of requests a minute in the reference, see `statistic.Model`.
        requests: In the window. [count]
        minutes: How long it is.
    """
    now = requests / minutes
    low, _, high = (math.exp(value) for value in load)
    if low <= now <= high:
        return None
    return Shift("load", "", high if now > high else low, now)


def on_common_mix(
    before: Mapping[str, Histogram], after: Mapping[str, Histogram], quantile: float
) -> tuple[float, float] | None:
    """Compare a quantile as if the requests had been the same: each group counts as much as it did before.

    Args:
        before: Latencies by group, such as by route.
        after: The same, now.
        quantile: Which. [0..1]

    Returns:
        Before and after, None when no group has requests on both sides. [seconds]
    """
    common = [group for group in before if before[group].count and group in after and after[group].count]
    if not common:
        return None
    weights = {group: before[group].count / after[group].count for group in common}
    return (
        _quantile({group: before[group] for group in common}, dict.fromkeys(common, 1.0), quantile),
        _quantile({group: after[group] for group in common}, weights, quantile),
    )


def _largest(
    policy: Confounders, dimension: str, before: Mapping[str, float], after: Mapping[str, float]
) -> Shift | None:
    a_n, b_n = sum(before.values()), sum(after.values())
    if not a_n or not b_n:
        return None
    shares = {value: (before.get(value, 0) / a_n, after.get(value, 0) / b_n) for value in sorted({*before, *after})}
    grown = {value: round(b - a, 9) for value, (a, b) in shares.items()}
    # Of two values one grows as the other shrinks: the one that has more now is the news.
    value = max(grown, key=lambda each: (abs(grown[each]), grown[each]))
    a, b = shares[value]
    both = (before.get(value, 0) + after.get(value, 0)) / (a_n + b_n)
    noise = policy.errors * math.sqrt(both * (1 - both) * (1 / a_n + 1 / b_n))
    if abs(b - a) < policy.share or abs(b - a) <= noise:
        return None
    return Shift(dimension, value, a, b)


def _quantile(groups: Mapping[str, Histogram], weights: Mapping[str, float], quantile: float) -> float:
    amounts: dict[int, float] = {}
    zero = 0.0
    for group, histogram in groups.items():
        zero += histogram.zero * weights[group]
        for index, count in histogram.buckets.items():
            amounts[index] = amounts.get(index, 0.0) + count * weights[group]
    index = np.array(sorted(amounts), np.int64)
    sums: Floats = zero + np.cumsum([amounts[each] for each in index.tolist()])
    whole = float(sums[-1]) if len(sums) else zero
    place = int(np.searchsorted(sums, quantile * whole * (1 - 1e-12)))
    return 0.0 if quantile * whole <= zero or not len(index) else float(middles(index)[min(place, len(index) - 1)])
