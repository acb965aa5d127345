"""Verdict on a latency regression: its size and onset, the release at that time, and changes of the traffic.

A change of the mix or the load may explain a regression, so the latency is also compared on a common mix.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ...core.histogram import Estimate, Histogram
from ..attributes import AttributeCounts
from ..comparison import compare_means, compare_quantile, largest_share_change, mean_latency
from .policy import At, Confounders, WatchPolicy, Window
from .scoring import Reference, TailScore, WindowScore
from .statistic import MEAN, Expectation, Floats, PrefixSums, Row, TailCounts, block_excess, bucket_middles

# Attributes that describe what is asked of the service, and minimum number of requests of a value.
_BATCH = "batch_size"
_TRAFFIC = ("route", "model", "caller", "request_size", "input_tokens", "output_tokens", _BATCH)
_MIN_OF_VALUE = 50
# Requests by dimension (route, model, status, device, batch, cold …) and value, as returned by `Reader.dimensions`.
Traffic = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TailVerdict:
    """Measured latency regression: latencies [seconds] and their ratio with its bounds, None without requests.

    *on_common_mix* is after / before on a common mix; None without traffic changes or common groups.
    """

    at: At
    before: float | None
    after: float | None
    change: Estimate | None
    requests: int
    z: float
    shifts: tuple[TrafficShift, ...] = ()
    on_common_mix: float | None = None


def make_verdict(
    row: Row,
    cell: WindowScore,
    before: Histogram,
    after: Histogram,
    *,
    shifts: tuple[TrafficShift, ...] = (),
    mixed: tuple[float, float] | None = None,
) -> TailVerdict:
    """Combine the measurements of a regression into a verdict; *mixed* is the result of `on_common_mix`."""
    ratio = mixed[1] / mixed[0] if mixed and mixed[0] > 0 else None
    return TailVerdict(row.at, *_compare(before, after, row.at), after.count, cell.z, shifts, ratio)


def _compare(before: Histogram, after: Histogram, at: At) -> tuple[float | None, float | None, Estimate | None]:
    if at == MEAN:
        return mean_latency(before), mean_latency(after), compare_means(before, after)
    comparison = compare_quantile(before, after, float(at))
    if comparison.ratio is None or comparison.ratio_low is None or comparison.ratio_high is None:
        return comparison.a_value, comparison.b_value, None
    return (
        comparison.a_value,
        comparison.b_value,
        Estimate(comparison.ratio, comparison.ratio_low, comparison.ratio_high),
    )


def strongest_window(tail_score: TailScore | None, rows: Sequence[Row]) -> tuple[int, WindowScore, Row] | None:
    """Return index, score and row of the window with the highest score."""
    if tail_score is None or tail_score.best is None:
        return None
    cell = tail_score.cells[tail_score.best]
    return None if cell is None else (tail_score.best, cell, rows[cell.row])


def regression_onset(reference: Reference, recent: TailCounts, window: Window, cell: WindowScore) -> int:
    """Return the minute of the onset: the start of the latest stretch of blocks with at least half the excess."""
    ends = np.arange(len(recent), window.block - 1, -window.block)
    asked = Expectation(reference.model, reference.rows, (cell.row,))
    _, logs, _ = block_excess(PrefixSums(recent), asked, ends, np.full(len(ends), window.block))
    out = logs[0] >= cell.excess / 2
    # Two consecutive blocks below that level end the stretch; a single one may be chance.
    calm = np.flatnonzero(~out & ~np.append(out[1:], False))
    blocks = max(int(calm[0]) if len(calm) else len(ends), 1)
    return recent.end - blocks * window.block


def release_at_onset(watching: WatchPolicy, releases: Mapping[str, int], began: tuple[int, int]) -> str:
    """Return the newest version if its first request is near the onset and an older version exists; else "".

    *began* are the bounds of the onset in minutes since the epoch.
    """
    if len(releases) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    version, first = max(releases.items(), key=lambda item: item[1])
    before, after = (
        tolerance / timedelta(minutes=1) for tolerance in (watching.released_before, watching.released_after)
    )
    return version if is_near_onset(first, began, before, after) else ""


def is_near_onset(released: float, began: tuple[float, float], before: float, after: float) -> bool:
    """Return whether a release at *released* may have caused a problem that began within *began*; all in the same unit.

    *before* and *after* are the maximum times from the release to the earliest onset, and from the latest onset to the release.
    """
    return began[0] - before <= released <= began[1] + after


@dataclass(frozen=True, slots=True)
class TrafficShift:
    """Change of the traffic in one dimension: share of the value that changed most; for `load`, requests per minute and their limit."""

    dimension: str
    value: str
    before: float
    after: float


def traffic_shifts(policy: Confounders, before: Traffic, after: Traffic) -> tuple[TrafficShift, ...]:
    """Return the significant changes of the mix, one per dimension, each for the value that changed most."""
    changes = ((name, largest_share_change(before[name], after[name])) for name in before if name in after)
    return tuple(
        TrafficShift(name, change.value, change.before, change.after)
        for name, change in changes
        if change is not None and change.is_more(policy.share, policy.errors)
    )


def share_explained_by_traffic(
    before: Sequence[AttributeCounts], after: AttributeCounts, quantile: float, pooled: str = ""
) -> tuple[float, str]:
    """Return how much of a growth different traffic explains, and the attribute that explains most; (0, "") without either.

    The latency that is expected of the traffic of *after* is that of *before*, weighted value by value so that each value has its
    share of *after* (direct standardization). A value with too few requests before is expected to have the latency of all. The batch
    size adds its share to that of the others, which depend on each other; *pooled* attributes (`strata`) explain nothing.
    """
    shares = {key: _share_explained_by(key, before, after, quantile) for key in _TRAFFIC if key != pooled}
    batch = shares.pop(_BATCH)
    key = max(shares, key=lambda cause: shares[cause])
    share = max(shares[key], 0.0) + max(batch, 0.0)
    return (share, key if shares[key] >= batch else _BATCH) if share else (0.0, "")


def _share_explained_by(key: str, before: Sequence[AttributeCounts], after: AttributeCounts, quantile: float) -> float:
    usual, now = _requests_by_value(before, key), _requests_by_value([after], key)
    if not usual or not now:
        return 0.0
    everything = sum(usual.values(), Counter[int]())
    expected: dict[int, float] = {}
    for value, counts in now.items():
        like = usual.get(value, everything)
        like = like if like.total() >= _MIN_OF_VALUE else everything
        for bucket, count in like.items():
            expected[bucket] = expected.get(bucket, 0.0) + count * counts.total() / like.total()
    reached = sum(now.values(), Counter[int]())
    first, middle, last = (_bucket_of_quantile(counts, quantile) for counts in (everything, expected, reached))
    return (middle - first) / (last - first) if last > first else 0.0


def _requests_by_value(tables: Sequence[AttributeCounts], key: str) -> dict[str, Counter[int]]:
    by_value: dict[str, Counter[int]] = {}
    for table in tables:
        for value, counts in table.requests.get(key, {}).items():
            amounts = counts.sum(axis=0).tolist()
            buckets = {index: count for index, count in zip(table.index.tolist(), amounts, strict=True) if count}
            by_value.setdefault(value, Counter()).update(buckets)
    return {value: counts for value, counts in by_value.items() if counts}


def _bucket_of_quantile(counts: Mapping[int, float], quantile: float) -> float:
    """Return the position of *quantile* in buckets, which are equally wide in the logarithm of the latency."""
    index = sorted(counts)
    sums = np.cumsum([counts[bucket] for bucket in index])
    position = int(np.searchsorted(sums, quantile * sums[-1]))
    below = sums[position - 1] if position else 0.0
    return index[position] + (quantile * float(sums[-1]) - float(below)) / counts[index[position]]


def load_shift(load: tuple[float, float, float], requests: float, minutes: int) -> TrafficShift | None:
    """Return the change of the load; None if it is within *load*, the lowest, median and highest log of requests per minute before."""
    now = requests / minutes
    low, _, high = (math.exp(value) for value in load)
    if low <= now <= high:
        return None
    return TrafficShift("load", "", high if now > high else low, now)


def on_common_mix(
    before: Mapping[str, Histogram], after: Mapping[str, Histogram], quantile: float
) -> tuple[float, float] | None:
    """Return a quantile before and after [seconds] on a common mix: each group, such as a route, has the weight it had before.

    None if no group has requests on both sides.
    """
    common = [group for group in before if before[group].count and group in after and after[group].count]
    if not common:
        return None
    weights = {group: before[group].count / after[group].count for group in common}
    return (
        _quantile({group: before[group] for group in common}, dict.fromkeys(common, 1.0), quantile),
        _quantile({group: after[group] for group in common}, weights, quantile),
    )


def _quantile(groups: Mapping[str, Histogram], weights: Mapping[str, float], quantile: float) -> float:
    amounts: dict[int, float] = {}
    zero = 0.0
    for group, histogram in groups.items():
        zero += histogram.zero * weights[group]
        for index, count in histogram.buckets.items():
            amounts[index] = amounts.get(index, 0.0) + count * weights[group]
    index = np.array(sorted(amounts), np.int64)
    sums: Floats = zero + np.cumsum([amounts[bucket] for bucket in index.tolist()])
    whole = float(sums[-1]) if len(sums) else zero
    position = int(np.searchsorted(sums, quantile * whole * (1 - 1e-12)))
    return (
        0.0
        if quantile * whole <= zero or not len(index)
        else float(bucket_middles(index)[min(position, len(index) - 1)])
    )
