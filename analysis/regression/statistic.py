"""Statistics of the regression search: counts beyond fixed thresholds, and their excess over the expected counts.

A `Row` is one statistic: the requests whose end-to-end latency or time in one stage exceeds one quantile of the reference, or the
mean of that time, as seconds divided by (mean square / mean): a number that scatters like a count of requests. Values beyond the
99th percentile count as that percentile, because a few cold starts would outweigh thousands of requests.

The excess of a block of minutes is the log ratio of the requests beyond the threshold to those expected at this load and time of
day. The statistic of a block is its excess divided by its scatter (that of the reference, and of counting). The statistic of a
window is the mean of its blocks without the largest, so that one spike cannot change it much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.histogram import BUCKETS_A_DOUBLING, Histogram
from .policy import At, TailPolicy, Window

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Stage key of the rows for end-to-end latency.
END_TO_END = ""
MEAN = "mean"
# Latencies are capped at this quantile of the reference when the mean is computed.
MOST = 0.99
DAY, WEEK = 1440, 7
# Half a request added to both counts keeps the log finite and nearly unbiased (Anscombe, Haldane).
HALF_REQUEST = 0.5
# Growth of latencies for which the change of each count is learned. [ratio]
SMALL_GROWTH = 0.05
LEAST_SENSITIVITY = 1e-3
# Fit of the time of day: block length in minutes, iterations, and the limit of outliers in spreads (Huber).
FIT_BLOCK, FIT_ROUNDS, HUBER = 10, 3, 1.5
# Minimum number of these blocks with requests for a day to count in the effects of weekdays: six hours.
LEAST_BLOCKS = 36
# Minimum ratio of the variance of weekdays to that of chance: F(6, 7) at 5 %, rounded up.
LEAST_F = 4
# Initial and minimum scatter.
FIRST_SCATTER, LEAST_SCATTER = 0.2, 0.02
# Scatter is larger near the limits of a service: the busiest tenth has its own scatter if it has enough blocks.
PEAK, LEAST_PEAKS = 0.9, 20
# Minimum distance between the times at which the statistic is sampled. [minutes]
LEAST_STEP = 2


@dataclass(frozen=True, slots=True)
class MinuteHistograms:
    """Request counts of one series by minute since the epoch and latency bucket: `total` (minutes, k) and `own` (stages, minutes, k)."""

    start: int
    index: Ints
    total: NDArray[Any]
    stages: tuple[str, ...]
    own: NDArray[Any]

    def __len__(self) -> int:
        return len(self.total)

    @property
    def end(self) -> int:
        return self.start + len(self)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Time in each stage of one series by end-to-end latency, in steps of *step* minutes.

    *total* (steps, k) are counts, *seconds* (stages, steps, k) the time of the requests of a bucket.
    """

    start: int
    step: int
    index: Ints
    total: NDArray[Any]
    stages: tuple[str, ...]
    seconds: NDArray[Any]

    def between(self, start: int, end: int) -> StageSeconds:
        """Return the steps within [start, end), in minutes since the epoch."""
        low = min(max(-((self.start - start) // self.step), 0), len(self.total))
        high = max(min((end - self.start) // self.step, len(self.total)), low)
        part = slice(low, high)
        first = self.start + low * self.step
        return StageSeconds(first, self.step, self.index, self.total[part], self.stages, self.seconds[:, part])


def bucket_middles(index: Ints) -> Floats:
    """Return the middle of each bucket of *index* in seconds, like `core.histogram.bucket_middle`."""
    return (np.exp2(index / BUCKETS_A_DOUBLING) + np.exp2((index + 1) / BUCKETS_A_DOUBLING)) / 2


@dataclass(frozen=True, slots=True)
class Row:
    """Statistic of the latency (`END_TO_END`) or of one stage: the number of requests beyond a quantile, or the mean.

    *edge* is the last bucket below the threshold, for the mean that at which values are capped; *unit* [seconds] that of the mean.
    *expected* is the share of the reference's requests beyond the threshold, or the units per request; *sensitivity* the log ratio of
    the count if all latencies grow by `SMALL_GROWTH`.
    """

    stage: str
    at: At
    edge: int
    unit: float
    expected: float
    sensitivity: float


@dataclass(frozen=True, slots=True)
class TailCounts:
    """Request counts by minute since the epoch: all (minutes,), and by row (rows, minutes) those with its stage and beyond its threshold."""

    start: int
    requests: Floats
    n: Floats
    beyond: Floats

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def end(self) -> int:
        return self.start + len(self)

    def last(self, minutes: int) -> TailCounts:
        first = max(len(self) - minutes, 0)
        return TailCounts(self.start + first, self.requests[first:], self.n[:, first:], self.beyond[:, first:])


def rows_of(policy: TailPolicy, total: Histogram, by_stage: dict[str, Histogram]) -> tuple[Row, ...]:
    """Return the rows for the histograms of the reference, end-to-end latency first."""
    rows = [_row(END_TO_END, at, total) for at in policy.at]
    key = policy.stage_key
    for stage in sorted(by_stage):
        if stage not in key.left_out:
            rows += [_row(stage, at, by_stage[stage]) for at in key.quantiles(stage)]
    return tuple(row for row in rows if row is not None)


def count_beyond(rows: Sequence[Row], minutes: MinuteHistograms) -> TailCounts:
    """Count the requests of *minutes* beyond the threshold of each of *rows*."""
    whole, stage_counts = _from_above(minutes.total), _from_above(minutes.own)
    width = len(minutes.index)
    firsts = np.searchsorted(minutes.index, [row.edge for row in rows], side="right").tolist()
    n = np.zeros((len(rows), len(minutes)))
    beyond = np.zeros_like(n)
    for number, (row, first) in enumerate(zip(rows, firsts, strict=True)):
        if row.stage and row.stage not in minutes.stages:
            continue
        counts = stage_counts[minutes.stages.index(row.stage)] if row.stage else whole
        n[number] = counts[:, width]
        if row.at == MEAN:
            beyond[number] = minutes.total @ bucket_middles(np.minimum(minutes.index, row.edge)) / row.unit
        else:
            beyond[number] = counts[:, width - first]
    return TailCounts(minutes.start, whole[:, width].astype(np.float64), n, beyond)


def join_tallies(first: TailCounts, second: TailCounts) -> TailCounts:
    """Return the counts of *first* followed by *second*; gaps are zeros, and *second* replaces minutes in both."""
    retained = max(min(second.start - first.start, len(first)), 0)
    gap = max(second.start - first.end, 0)
    parts = [
        np.concatenate((a[..., :retained], np.zeros((*a.shape[:-1], gap)), b), axis=-1)
        for a, b in ((first.requests, second.requests), (first.n, second.n), (first.beyond, second.beyond))
    ]
    return TailCounts(min(first.start, second.start), *parts)


def _from_above(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return cumulative sums from the last bucket down; *counts* has shape (..., k), the result (..., k + 1)."""
    sums = np.zeros((*counts.shape[:-1], counts.shape[-1] + 1), np.int64)
    np.cumsum(counts[..., ::-1], axis=-1, out=sums[..., 1:])
    return sums


def _row(stage: str, at: At, histogram: Histogram) -> Row | None:
    return _mean_row(stage, histogram) if at == MEAN else _quantile_row(stage, float(at), histogram)


def _sorted_counts(histogram: Histogram) -> tuple[Ints, Floats]:
    index = np.array(sorted(histogram.buckets), np.int64)
    return index, np.array([histogram.buckets[bucket] for bucket in index.tolist()], np.float64)


def _quantile_row(stage: str, quantile: float, histogram: Histogram) -> Row | None:
    """Return the row whose threshold is the bucket edge nearest to *quantile* of *histogram*; None without one."""
    index, amount = _sorted_counts(histogram)
    share = 1 - (histogram.zero + np.cumsum(amount)) / histogram.count
    usable = share > 0
    if not usable.any():
        return None
    best = int(np.argmin(np.where(usable, np.abs(np.log(np.maximum(share, 1e-12) / (1 - quantile))), np.inf)))
    return _with_sensitivity(Row(stage, quantile, int(index[best]), 1.0, float(share[best]), 0.0), histogram)


def _mean_row(stage: str, histogram: Histogram) -> Row | None:
    index, amount = _sorted_counts(histogram)
    if not len(index):
        return None
    position = np.searchsorted(histogram.zero + np.cumsum(amount), MOST * histogram.count)
    edge = int(index[min(int(position), len(index) - 1)])
    seconds = bucket_middles(np.minimum(index, edge))
    unit = float(amount @ seconds**2 / (amount @ seconds))
    return _with_sensitivity(
        Row(stage, MEAN, edge, unit, float(amount @ seconds) / histogram.count / unit, 0.0), histogram
    )


def _with_sensitivity(row: Row, histogram: Histogram) -> Row:
    # Above 0, although a narrow latency may lie entirely in the bucket beyond the threshold.
    return replace(row, sensitivity=max(growth_to_count(row, histogram, SMALL_GROWTH), LEAST_SENSITIVITY))


def growth_to_count(row: Row, histogram: Histogram, growth: float) -> float:
    """Return the log ratio by which the requests beyond the threshold increase if all latencies grow by *growth*."""
    if row.at == MEAN or not growth:
        return float(np.log1p(growth))
    index, amount = _sorted_counts(histogram)
    share = 1 - (histogram.zero + np.cumsum(amount)) / histogram.count
    moved = row.edge - BUCKETS_A_DOUBLING * np.log2(1 + growth)
    return float(np.log(np.interp(moved, index, share, left=1.0) / np.interp(row.edge, index, share)))


@dataclass(frozen=True, slots=True)
class ExpectationModel:
    """Model of the expected counts of all rows, by load [log of requests per minute], time of day and weekday.

    *load* has the lowest, median and highest load for which it is valid; from *peak* on, *strained* replaces *scatter*, the
    over-dispersion (rows, blocks). *weights* are those of `model_features`; *weekdays* the effects from Monday on, each beginning at
    the minute *night* of the day (UTC).
    """

    blocks: tuple[int, ...]
    load: tuple[float, float, float]
    weights: tuple[tuple[float, ...], ...]
    scatter: tuple[tuple[float, ...], ...]
    strained: tuple[tuple[float, ...], ...] = ()
    peak: float = math.inf
    weekdays: tuple[tuple[float, ...], ...] = ()
    night: int = 0


class Expectation:
    def __init__(self, model: ExpectationModel, rows: Sequence[Row], chosen: Sequence[int]) -> None:
        self.chosen: Ints = np.array(chosen, np.int64)
        self.load = model.load
        self.share: Floats = np.array([rows[number].expected for number in chosen]).reshape(-1, 1)
        self.weights: Floats = np.array([model.weights[number] for number in chosen])
        self.scatter: Floats = np.array([model.scatter[number] for number in chosen])
        self.strained: Floats = np.array([(model.strained or model.scatter)[number] for number in chosen])
        self.peak = model.peak - model.load[1]
        self.blocks: Ints = np.array(model.blocks)
        none = ((0.0,) * WEEK,) * len(rows)
        self.weekdays: Floats = np.array([(model.weekdays or none)[number] for number in chosen])
        self.night = model.night

    def usual_excess(self, features: Floats, starts: Ints) -> Floats:
        """Return the log ratio that load, time of day and weekday explain in blocks; shape (rows, blocks)."""
        return self.weights @ features.T + self.weekdays[:, _weekdays((starts - self.night) // DAY)]


class PrefixSums:
    """Prefix sums of counts, from which the count of any block of minutes is one subtraction."""

    def __init__(self, counts: TailCounts) -> None:
        self.start = counts.start
        self.minutes = len(counts)
        self._requests = _running(counts.requests)
        self._n = _running(counts.n)
        self._beyond = _running(counts.beyond)

    def of(self, ends: Ints, lengths: Ints, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Return requests (blocks,), and counts n and beyond (rows, blocks), of the blocks that end before *ends*."""
        starts = np.maximum(ends - lengths, 0)
        n, beyond = self._n[rows], self._beyond[rows]
        return (
            self._requests[ends] - self._requests[starts],
            n[:, ends] - n[:, starts],
            beyond[:, ends] - beyond[:, starts],
        )


def fit_model(
    rows: Sequence[Row],
    counts: TailCounts,
    blocks: tuple[int, ...],
    *,
    rhythm: bool,
    week: bool = False,
    load: float = 0.0,
) -> ExpectationModel:
    """Fit the expectation model to the reference: the effects of load, time of day and weekday, and the scatter."""
    sums = PrefixSums(counts)
    every = np.arange(len(rows))
    ends = np.arange(FIT_BLOCK, len(counts) + 1, FIT_BLOCK)
    lengths = np.full(len(ends), FIT_BLOCK)
    requests, n, beyond = sums.of(ends, lengths, every)
    busy = requests > 0
    logs = np.log(np.maximum(requests, 1) / FIT_BLOCK)
    low, middle, peak, high = np.quantile(logs[busy], (0.01, 0.5, PEAK, 0.99)) if busy.any() else np.zeros(4)
    bounds = (float(low) - load, float(middle), float(high) + load)
    features = model_features(bounds, requests, lengths, counts.start + ends)
    if not rhythm:
        features[:, 3:] = 0
    starts = (counts.start + ends - lengths)[busy]
    night = _find_night(features[busy], n[0][busy], beyond[0][busy], rows[0], starts) if week else 0
    days = (starts - night) // DAY
    weights, weekdays = np.zeros((len(rows), features.shape[1])), np.zeros((len(rows), WEEK))
    for r, row in enumerate(rows):
        observed = features[busy], n[r][busy], beyond[r][busy], row
        if week:
            weekdays[r] = _fit_weekdays(*observed, days)
        weights[r] = _fit_row(*observed, weekdays[r][_weekdays(days)])[0]
    least = _table(np.full((len(rows), len(blocks)), LEAST_SCATTER))
    week_effects = _table(weekdays) if week else ()
    model = ExpectationModel(
        blocks, bounds, _table(weights), least, peak=float(peak), weekdays=week_effects, night=night
    )
    scatter, strained = np.stack([_scatter(sums, model, rows, block, len(counts)) for block in blocks], axis=-1)
    return replace(model, scatter=_table(scatter), strained=_table(strained))


def model_features(load: tuple[float, float, float], requests: Floats, lengths: Ints, ends: Ints) -> Floats:
    """Return the model features of blocks: constant, load, its square and the time of day; shape (blocks, 7)."""
    low, middle, high = load
    busy = np.clip(np.log(np.maximum(requests, 1) / lengths), low, high) - middle
    day = 2 * np.pi * (ends - lengths / 2) / DAY
    parts = (np.ones_like(busy), busy, busy**2, np.sin(day), np.cos(day), np.sin(2 * day), np.cos(2 * day))
    return np.stack(parts, axis=1)


def block_excess(sums: PrefixSums, asked: Expectation, ends: Ints, lengths: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the excess of blocks in units of scatter, as log ratio, and the expected requests beyond the threshold; each (rows, b).

    *ends* are the minutes after each block relative to the start of *sums*, *lengths* block lengths of the model; shape (b,).
    """
    requests, n, beyond = sums.of(ends, lengths, asked.chosen)
    expected = n * asked.share
    features = model_features(asked.load, requests, lengths, sums.start + ends)
    normal = asked.usual_excess(features, sums.start + ends - lengths)
    difference = np.log((beyond + HALF_REQUEST) / (expected + HALF_REQUEST)) - normal
    position = np.searchsorted(asked.blocks, lengths)
    scatter = np.where(features[:, 1] >= asked.peak, asked.strained[:, position], asked.scatter[:, position])
    return difference / np.sqrt(scatter**2 + 1 / (expected * np.exp(normal) + HALF_REQUEST)), difference, expected


def trimmed_mean(window: Window, values: Floats) -> Floats:
    """Return the mean of the blocks of *window* without its largest ones; *values* has shape (..., blocks)."""
    averaged = window.blocks - window.drop
    return np.partition(values, averaged - 1, axis=-1)[..., :averaged].mean(axis=-1)


def sliding_statistic(
    window: Window, model: ExpectationModel, rows: Sequence[Row], counts: TailCounts, chosen: Sequence[int]
) -> Floats:
    """Return the statistic of *window* every half block (at least two minutes) of *counts*; shape (rows, times)."""
    ends = np.arange(window.block, len(counts) + 1)
    lengths = np.full(len(ends), window.block)
    values, _, _ = block_excess(PrefixSums(counts), Expectation(model, rows, chosen), ends, lengths)
    moments = np.arange(window.length - window.block, len(ends), max(window.block // 2, LEAST_STEP))
    back = moments[:, None] - window.block * np.arange(window.blocks)
    return trimmed_mean(window, values[:, back])


def _fit_row(features: Floats, n: Floats, beyond: Floats, row: Row, usual: Floats | float = 0.0) -> tuple[Floats, ...]:
    """Return the weights of the features *features*, and the residuals and weights of the blocks; *usual* is subtracted."""
    expected = n * row.expected
    wanted = np.log((beyond + HALF_REQUEST) / (expected + HALF_REQUEST)) - usual
    sure = 1 / (FIRST_SCATTER**2 + 1 / (expected + HALF_REQUEST))
    weight = sure
    coefficients: Floats = np.zeros(features.shape[1])
    for _ in range(FIT_ROUNDS):
        weighted = features * weight[:, None]
        coefficients = np.asarray(
            np.linalg.lstsq(features.T @ weighted, weighted.T @ wanted, rcond=1e-9)[0], np.float64
        )
        left = (wanted - features @ coefficients) * np.sqrt(sure)
        spread = 1.4826 * np.median(np.abs(left)) + 1e-9
        weight = sure * np.minimum(1, HUBER * spread / np.maximum(np.abs(left), 1e-9))
    return coefficients, wanted - features @ coefficients, weight


def _fit_weekdays(features: Floats, n: Floats, beyond: Floats, row: Row, days: Ints) -> Floats:
    """Return the effect of each weekday, shrunk to zero by as much as days of the same weekday differ; shape (7,).

    Two days of a weekday cannot distinguish a weekday from a slow day, so these are random effects: each is multiplied by its share of the
    variance that is due to weekdays, or by zero if chance explains them (C. N. Morris, JASA 78 (1983), 47-55).
    """
    coefficients, left, weight = _fit_row(np.hstack((features, np.eye(WEEK)[_weekdays(days)])), n, beyond, row)
    distinct_days, day, blocks = np.unique(days, return_inverse=True, return_counts=True)
    rest = np.bincount(day, left * weight) / np.bincount(day, weight)
    usable = blocks >= LEAST_BLOCKS
    of_day = _weekdays(distinct_days[usable])
    times = np.bincount(of_day, minlength=WEEK)
    repeated = int(np.maximum(times - 1, 0).sum())
    if repeated < WEEK // 2 or (times > 0).sum() <= WEEK // 2:
        return np.zeros(WEEK)
    means = np.bincount(of_day, rest[usable], WEEK) / np.maximum(times, 1)
    within = float(((rest[usable] - means[of_day]) ** 2).sum()) / repeated / np.maximum(times, 1)
    effects = np.where(times > 0, coefficients[-WEEK:], 0.0)
    effects[times > 0] -= effects[times > 0].mean()
    whole, chance = float(np.var(effects[times > 0], ddof=1)), float(within[times > 0].mean())
    if whole < LEAST_F * chance:
        return np.zeros(WEEK)
    return effects * (whole - chance) / np.maximum(whole - chance + within, 1e-12)


def _find_night(features: Floats, n: Floats, beyond: Floats, row: Row, starts: Ints) -> int:
    """Return the minute of the day (UTC), a full hour, from which on weekdays explain the blocks at *starts* best."""
    error: dict[int, float] = {}
    for night in range(0, DAY, 60):
        of_week = np.eye(WEEK)[_weekdays((starts - night) // DAY)]
        _, left, weight = _fit_row(np.hstack((features, of_week)), n, beyond, row)
        error[night] = float((np.abs(left) * np.sqrt(weight)).sum())
    return min(error, key=lambda night: error[night])


def _weekdays(days: Ints) -> Ints:
    """Return the weekday of each day since the epoch, a Thursday; Monday is 0."""
    return (days + 3) % WEEK


def _scatter(sums: PrefixSums, model: ExpectationModel, rows: Sequence[Row], block: int, minutes: int) -> Floats:
    """Return the scatter of each row beyond counting noise in blocks of *block* minutes: usual, and at load peaks; shape (2, rows)."""
    ends = np.arange(block, minutes + 1, block)
    lengths = np.full(len(ends), block)
    asked = Expectation(model, rows, range(len(rows)))
    requests, _, _ = sums.of(ends, lengths, asked.chosen)
    _, difference, expected = block_excess(sums, asked, ends, lengths)
    around = difference - np.median(difference, axis=1, keepdims=True)
    counting = 1 / (expected + HALF_REQUEST)
    usual = _beyond_counting(1.4826 * np.median(np.abs(around), axis=1), counting)
    at_peak = np.log(np.maximum(requests, 1) / block) >= model.peak
    if at_peak.sum() < LEAST_PEAKS:
        return np.stack((usual, usual))
    # Upward scatter only: near its limits a service is sometimes much slower, but never much faster.
    above = np.quantile(around[:, at_peak], 0.9, axis=1) / NormalDist().inv_cdf(0.9)
    return np.stack((usual, np.maximum(usual, _beyond_counting(np.maximum(above, 0), counting[:, at_peak]))))


def _beyond_counting(spread: Floats, counting: Floats) -> Floats:
    return np.sqrt(np.maximum(spread**2 - np.median(counting, axis=1), LEAST_SCATTER**2))


def _running(values: Floats) -> Floats:
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def _table(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{value:.6g}") for value in row) for row in values)
