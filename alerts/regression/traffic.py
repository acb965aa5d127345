"""Traffic changes: compares mix and load of a window with the same hours of the days before, and latency on equal mixes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...analysis.regression.policy import Confounders, TailPolicy
from ...analysis.regression.statistic import Floats, bucket_middles
from ...core.histogram import Histogram
from ...store import Group, Reader, Selection
from .. import formatting
from .series import DAY, SPENT_STEP, select_minutes

# Requests by dimension (route, model, status, device, batch, cold …) and value, as returned by `Reader.dimensions`.
Traffic = Mapping[str, Mapping[str, float]]
# Compared dimensions, without the version, because releases are reported separately.
_DIMENSIONS = ("route", "model", "device", "status")


@dataclass(frozen=True, slots=True)
class TrafficShift:
    """Change of the traffic in one dimension.

    Args:
        dimension: Name of the dimension: `route`, `model`, `batch`, `load` …
        value: Value whose share changed most; empty for the load.
        before: Share of that value before; for the load, the limit of the reference in requests per minute.
        after: Share of that value now; for the load, the requests per minute.
    """

    dimension: str
    value: str
    before: float
    after: float


def traffic_shifts(policy: Confounders, before: Traffic, after: Traffic) -> tuple[TrafficShift, ...]:
    """Return the significant changes, one per dimension, each for the value that changed most."""
    found = (_largest_shift(policy, name, before[name], after[name]) for name in before if name in after)
    return tuple(shift for shift in found if shift is not None)


def load_shift(load: tuple[float, float, float], requests: float, minutes: int) -> TrafficShift | None:
    """Return the change of the load; None if the load is within the range of the reference.

    Args:
        load: Lowest, median and highest log of requests per minute in the reference, see `statistic.Model`.
        requests: Requests in the window. [count]
        minutes: Length of the window. [minutes]
    """
    now = requests / minutes
    low, _, high = (math.exp(value) for value in load)
    if low <= now <= high:
        return None
    return TrafficShift("load", "", high if now > high else low, now)


def on_common_mix(
    before: Mapping[str, Histogram], after: Mapping[str, Histogram], quantile: float
) -> tuple[float, float] | None:
    """Compare a quantile on a common mix: each group has the weight it had before.

    Args:
        before: Latency histograms by group, such as by route.
        after: Current latency histograms by group.
        quantile: Quantile. [0..1]

    Returns:
        The quantile before and after; None if no group has requests on both sides. [seconds]
    """
    common = [group for group in before if before[group].count and group in after and after[group].count]
    if not common:
        return None
    weights = {group: before[group].count / after[group].count for group in common}
    return (
        _quantile({group: before[group] for group in common}, dict.fromkeys(common, 1.0), quantile),
        _quantile({group: after[group] for group in common}, weights, quantile),
    )


def _largest_shift(
    policy: Confounders, dimension: str, before: Mapping[str, float], after: Mapping[str, float]
) -> TrafficShift | None:
    a_n, b_n = sum(before.values()), sum(after.values())
    if not a_n or not b_n:
        return None
    shares = {value: (before.get(value, 0) / a_n, after.get(value, 0) / b_n) for value in sorted({*before, *after})}
    grown = {value: round(b - a, 9) for value, (a, b) in shares.items()}
    # With two values, one grows by as much as the other shrinks: the growing value is reported.
    value = max(grown, key=lambda each: (abs(grown[each]), grown[each]))
    a, b = shares[value]
    both = (before.get(value, 0) + after.get(value, 0)) / (a_n + b_n)
    noise = policy.errors * math.sqrt(both * (1 - both) * (1 / a_n + 1 / b_n))
    if abs(b - a) < policy.share or abs(b - a) <= noise:
        return None
    return TrafficShift(dimension, value, a, b)


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
    return (
        0.0 if quantile * whole <= zero or not len(index) else float(bucket_middles(index)[min(place, len(index) - 1)])
    )


def same_hours_before(group: Group, start: int, end: int, began: int, days: int, *, since: int = 0) -> list[Selection]:
    """Return selections of the same hours on the *days* before, without times after the onset.

    Args:
        group: The group of requests.
        start: Start of the hours. [minutes since the epoch]
        end: End of the hours. [minutes since the epoch]
        began: Onset. [minutes since the epoch]
        days: Maximum number of days.
        since: First minute of the current baseline. [minutes since the epoch]
    """
    calm = [day for day in range(1, days + 1) if end - day * DAY <= began and start - day * DAY >= since]
    return [select_minutes(group, start - day * DAY, end - day * DAY) for day in calm]


def merged_latency(read: Reader, selections: Sequence[Selection]) -> Histogram:
    """Return the merged latency histogram of all *selections*."""
    whole = Histogram()
    for each in selections:
        whole.merge(read.latency(each))
    return whole


def stage_means(read: Reader, selections: Sequence[Selection]) -> dict[str, float]:
    """Return the mean seconds per request in each stage."""
    counted = [read.spent(each, SPENT_STEP) for each in selections]
    requests = max(sum(int(each.total.sum()) for each in counted), 1)
    found: dict[str, float] = {}
    for each in counted:
        for stage, seconds in zip(each.stages, each.seconds.sum(axis=(1, 2)).tolist(), strict=True):
            found[stage] = found.get(stage, 0.0) + seconds / requests
    return found


def requests_by_dimension(read: Reader, selections: Sequence[Selection], group: Group) -> Traffic:
    """Return the number of requests of *selections* by dimension and value."""
    found: dict[str, dict[str, float]] = {}
    for selection in selections:
        for name, values in read.dimensions(selection).items():
            if name in _DIMENSIONS and name != group.dimension:
                for value, n in values.items():
                    mine = found.setdefault(name, {})
                    mine[value] = mine.get(value, 0) + n
    return found


def quantile_on_common_mix(
    read: Reader, at: float, dimension: str, before: Sequence[Selection], after: Sequence[Selection]
) -> tuple[float, float] | None:
    """Return quantile *at* before and after, on the earlier mix of *dimension*, which is `route` or `model`."""
    values = {value for each in before for value in read.dimensions(each).get(dimension, {})}
    sides = [
        {value: merged_latency(read, [_filter_by(each, dimension, value) for each in side]) for value in values}
        for side in (before, after)
    ]
    return on_common_mix(sides[0], sides[1], at)


def all_shifts(
    policy: TailPolicy, before: Traffic, after: Traffic, load: TrafficShift | None
) -> tuple[TrafficShift, ...]:
    """Return all significant changes of the traffic, including *load*."""
    found = traffic_shifts(policy.confounders, before, after)
    return found if load is None else (*found, load)


def describe_shifts(shifts: Sequence[TrafficShift], mixed: float | None) -> str:
    """Return the traffic changes as text, with the latency change on a common mix.

    >>> describe_shifts([TrafficShift("route", "/search", 0.12, 0.41)], 1.02)
    'route /search has 41 % of requests, had 12 %; with the same mix the change is +2 %'
    """
    said = [_describe_shift(shift) for shift in shifts]
    if shifts and mixed is not None:
        sign = "+" if mixed >= 1 else ""
        said.append(f"with the same mix the change is {sign}{formatting.percent(formatting.whole(mixed - 1))}")
    return "; ".join(said)


def _filter_by(selection: Selection, dimension: str, value: str) -> Selection:
    return replace(selection, route=value) if dimension == "route" else replace(selection, model=value)


def _describe_shift(shift: TrafficShift) -> str:
    if shift.dimension == "load":
        limit = "up to" if shift.after > shift.before else "at least"
        return f"{formatting.count(shift.after)} requests a minute, usual is {limit} {formatting.count(shift.before)}"
    now, was = formatting.percent(formatting.whole(shift.after)), formatting.percent(formatting.whole(shift.before))
    return f"{shift.dimension} {shift.value} has {now} of requests, had {was}"
