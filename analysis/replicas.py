"""The replica that is slower than the others of its service, found in requests counted by replica.

Each replica is compared with all others together (leave-one-out), by the decision rule of `comparison`:

- The others' requests are weighted so that they have the replica's number of requests in each step of time, so a burst that reaches
  all replicas, or an uneven load, makes no replica slow.
- Requests of one minute of one replica are not independent. The counts are divided by their dispersion between steps and replicas
  (quasi-binomial) before they are compared.
- One step must not decide: without the most extreme step, the replica must still be more likely slow than not (20 to 1).
- The confidence is corrected for the number of replicas, percentiles and time ranges that are looked at (Bonferroni).
- The replica must also stand out from the spread between the others, and few others may be as slow: half of a fleet on older
  machines has no outlier.

Processes of one host are also compared as one, because a slow machine slows all of its processes.

Source: P. McCullagh, J. A. Nelder, Generalized Linear Models, 2nd ed., section 4.5 (dispersion of binomial counts); E. S. Page,
Continuous inspection schemes, Biometrika 41 (1954), 100-115 (the onset is the start of the largest sum of log-likelihood ratios).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import hardware as measures
from ..core.hardware import Measure, host_of
from ..core.histogram import Histogram, has_enough_samples
from .comparison import CONFIDENCE, StageGrowth, compare_quantile, growth_of

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

# Replicas beyond the maximum of a service share this place.
OTHER_PLACES = "__other__"
QUANTILES = (0.5, 0.9, 0.99)
# Minimum number of steps of a compared time range; ranges are halved down to it.
_MIN_STEPS = 3
# Dispersion that is assumed of services before any data, and its weight. [steps of a replica]
_PRIOR_DISPERSION, _PRIOR_WEIGHT = 2.0, 4.0
# Distance from the others' median, in robust standard deviations of the others, and least number of requests of a level.
_MIN_DISTANCE, _MIN_LEVEL_REQUESTS = 4.0, 8
# Standard deviation of a normal distribution, in median absolute deviations.
_MAD = 1.4826
# Log-likelihood ratio that must be left without the step that contributes most: 20 to 1.
_MIN_GAIN = math.log(20)
# Share of the others that may be about as slow.
_ALSO_SLOW = 0.2


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Requests of one replica by step and latency bucket (t, k), and its time by stage and step (t,) in microseconds."""

    place: str
    requests: Ints
    stages: Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """Requests of a service by replica; *starts* are ascending Unix seconds (t,), of which equal ones are strata of one step."""

    scale: int
    index: Ints
    starts: Ints
    replicas: Sequence[ReplicaCounts]


@dataclass(frozen=True, slots=True)
class HardwareDifference:
    """Measure of the machine of a replica that differs from the median of the machines of the others."""

    measure: Measure
    own: float
    others: float


@dataclass(frozen=True, slots=True)
class ReplicaOutlier:
    """Replica, or host of which all processes are slow, that is slower than the others.

    *quantile* is the median if that differs, else a higher one. *others_seconds* is the latency of the others at the same times. If it
    *is_dated*, there are requests before the onset, the start of the first slow step. *growth* and *hardware* are by importance.
    """

    place: str
    name: str
    others: int
    quantile: float
    seconds: float
    others_seconds: float
    requests: int
    onset: int
    is_dated: bool
    growth: tuple[StageGrowth, ...]
    hardware: tuple[HardwareDifference, ...]

    @property
    def ratio(self) -> float:
        return self.seconds / self.others_seconds


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """Latency of one replica [seconds], None with too few requests; *ratio* of the median to that of the others at the same times.

    *medians* are by step (t,), NaN without requests.
    """

    place: str
    name: str
    requests: int
    p50: float | None
    p99: float | None
    ratio: float | None
    medians: Floats


def stratified(tables: Sequence[ReplicaTable]) -> ReplicaTable:
    """Return the tables of several routes, models or versions as one, in which each is compared with itself only."""
    scale = min(table.scale for table in tables)
    buckets = [table.index >> (table.scale - scale) for table in tables]
    index = np.unique(np.concatenate(buckets))
    starts = np.concatenate([table.starts for table in tables])
    order = np.argsort(starts, kind="stable")
    replicas: list[ReplicaCounts] = []
    for instance in dict.fromkeys(replica.place for table in tables for replica in table.replicas):
        of_tables = [
            next((replica for replica in table.replicas if replica.place == instance), None) for table in tables
        ]
        requests = np.zeros((len(starts), len(index)), np.int64)
        stages: dict[str, Ints] = {}
        first = 0
        for table, of_table, bucket in zip(tables, of_tables, buckets, strict=True):
            rows = slice(first, first := first + len(table.starts))
            if of_table is not None:
                np.add.at(requests[rows].T, np.searchsorted(index, bucket), of_table.requests.T)
                for stage, spent in of_table.stages.items():
                    stages.setdefault(stage, np.zeros(len(starts), np.int64))[rows] = spent
        replicas.append(
            ReplicaCounts(instance, requests[order], {stage: spent[order] for stage, spent in stages.items()})
        )
    return ReplicaTable(scale, index, starts[order], replicas)


def replica_names(places: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique name of each place: its host, unless several of *places* are on the host.

    >>> replica_names(["a:1", "b:1", "b:2", "10.0.0.1:80:10.0.0.1:80"])
    {'a:1': 'a', 'b:1': 'b:1', 'b:2': 'b:2', '10.0.0.1:80:10.0.0.1:80': '10.0.0.1:80'}
    """
    instances = list(places)
    hosts = [host_of(instance) for instance in instances]
    labels: dict[str, str] = {}
    for instance, host in zip(instances, hosts, strict=True):
        # A service instance without host and process is both.
        first, second = instance[: len(instance) // 2], instance[len(instance) // 2 + 1 :]
        labels[instance] = first if first == second else host if hosts.count(host) == 1 else instance
    return labels


def find_outlier(table: ReplicaTable, hardware: pd.DataFrame | None = None) -> ReplicaOutlier | None:
    """Return the replica that is certainly slower than the others until the end of *table*; None if there is none."""
    processes, hosts = (_units(table, by_host=by_host) for by_host in (False, True))
    for units in (hosts, processes):
        slow = _slowest(units) if units else None
        if units and slow and (units is processes or _are_all_slow(table, units, slow)):
            return _described(table, units, slow, hardware)
    return None


def latencies(table: ReplicaTable) -> list[ReplicaLatency]:
    """Return the latency of each replica of *table* with requests, slowest relative to the others first."""
    units = _units(table, by_host=False)
    if units is None:
        return []
    names, whole = replica_names(units.places), units.counts.sum(axis=0)
    replica_latencies = [_latency(units, names, at, whole) for at in range(len(units.places)) if units.counts[at].any()]
    return sorted(replica_latencies, key=lambda latency: (-(latency.ratio or 0.0), -latency.requests))


def _latency(units: _Units, names: Mapping[str, str], at: int, whole: Ints) -> ReplicaLatency:
    counts = units.counts[at]
    total, (expected, _) = counts.sum(axis=0), _weighted(counts, whole - counts)
    p50, p99 = (_value(total, units, quantile) for quantile in (0.5, 0.99))
    usual = None if expected is None else _value(expected, units, 0.5)
    medians = [2.0 ** _level(step_counts, units, 0.5) if step_counts.any() else math.nan for step_counts in counts]
    instance = units.places[at]
    ratio = p50 / usual if p50 and usual else None
    return ReplicaLatency(instance, names[instance], int(total.sum()), p50, p99, ratio, np.array(medians))


def _value(counts: NDArray[np.number], units: _Units, quantile: float) -> float | None:
    enough = has_enough_samples(int(counts.sum() + 0.5), quantile)
    return 2.0 ** _level(counts, units, quantile) if enough else None


@dataclass(frozen=True, slots=True)
class _Units:
    """Replicas, or hosts, that are compared; counts have the shape (v, t, k)."""

    places: Sequence[str]
    counts: Ints
    scale: int
    index: Ints
    starts: Ints


@dataclass(frozen=True, slots=True)
class _Slow:
    """Unit that is slower: its position, the percentile, the start of the slow time, and the strength of the evidence."""

    at: int
    quantile: float
    onset: int
    evidence: float


def _units(table: ReplicaTable, *, by_host: bool) -> _Units | None:
    if not table.replicas or not len(table.index):
        return None
    places = [replica.place for replica in table.replicas]
    counts = np.stack([replica.requests for replica in table.replicas])
    if by_host:
        hosts = [host_of(instance) for instance in places]
        names = list(dict.fromkeys(hosts))
        if len(names) in (1, len(places)):
            return None
        counts = np.stack([counts[[host == name for host in hosts]].sum(axis=0) for name in names])
        places = names
    return _Units(places, counts, table.scale, table.index, table.starts)


def _slowest(units: _Units) -> _Slow | None:
    _, step = np.unique(units.starts, return_inverse=True)
    ranges = list(_ranges(int(step.max()) + 1))
    candidates = [at for at, instance in enumerate(units.places) if OTHER_PLACES not in instance]
    comparisons = len(candidates) * len(ranges) * len(QUANTILES)
    confidence = 1 - (1 - CONFIDENCE) / max(comparisons, 1)
    gaps = {first: _gaps(units.counts[:, step >= first], units.index) for first in ranges}
    outliers = [_first_slow(units, step, at, gaps, confidence) for at in candidates]
    return max((outlier for outlier in outliers if outlier), key=lambda outlier: outlier.evidence, default=None)


def _first_slow(units: _Units, step: Ints, at: int, gaps: Mapping[int, Ints], confidence: float) -> _Slow | None:
    """Return the unit *at* if it is slower, at the lowest percentile and over the longest time range at which it is."""
    for row, quantile in enumerate(QUANTILES):
        for first, buckets in gaps.items():
            gap = int(buckets[row, at])
            if gap and (outlier := _slow_since(_UnitComparison(units, step, at, gap, quantile, first), confidence)):
                return outlier
    return None


def _ranges(steps: int) -> Iterator[int]:
    """Yield the first step of each compared time range: all of the time, its last half, its last quarter and so on.

    >>> list(_ranges(60))
    [0, 30, 45, 53, 57]
    """
    length = steps
    while length >= _MIN_STEPS:
        yield steps - length
        length //= 2


def _gaps(counts: Ints, index: Ints) -> Ints:
    """Return the first bucket above that of the others at each percentile; 0 unless a unit is beyond it; shape (quantiles, v)."""
    n = counts.sum(axis=2)
    others = n.sum(axis=0) - n
    weights = np.where(others > 0, n / np.maximum(others, 1), 0.0)
    expected = weights @ counts.sum(axis=0) - np.einsum("vt,vtk->vk", weights, counts)
    reweighted = np.einsum("vt,vtk->vk", (others > 0).astype(float), counts)
    gaps: list[Ints] = []
    for quantile in QUANTILES:
        usual, mine = (
            (np.cumsum(counts_of_side, axis=1) < quantile * counts_of_side.sum(axis=1, keepdims=True) - 1e-6).sum(
                axis=1
            )
            for counts_of_side in (expected, reweighted)
        )
        # In neighbouring buckets, both may have the same latency.
        gaps.append(np.where((index[mine] >= index[usual] + 2) & (expected.sum(axis=1) > 0), usual + 1, 0))
    return np.stack(gaps)


@dataclass(frozen=True, slots=True)
class _UnitComparison:
    """One comparison: a unit, the first bucket of its slow requests, the percentile, and the first step of the time range."""

    units: _Units
    step: Ints
    at: int
    threshold: int
    quantile: float
    first: int

    @property
    def own(self) -> Ints:
        return self.units.counts[self.at] * (self.others.sum(axis=1) > 0)[:, np.newaxis]

    @property
    def others(self) -> Ints:
        return self.units.counts.sum(axis=0) - self.units.counts[self.at]

    def above(self, counts: Ints) -> Ints:
        return counts[..., self.threshold :].sum(axis=-1)


def _slow_since(compared: _UnitComparison, confidence: float) -> _Slow | None:
    own_counts, others, units = compared.own, compared.others, compared.units
    usual = _shares(compared.above(others), others.sum(axis=1))
    onset = _onset(compared, own_counts, usual)
    if onset is None:
        return None
    since = compared.step >= onset
    spread = _dispersion(units.counts[:, since], compared.at, compared.threshold)
    expected, effective = _weighted(own_counts[since], others[since])
    if expected is None:
        return None
    a = _histogram(expected, units, effective / spread / expected.sum())
    b = _histogram(own_counts[since].sum(axis=0), units, 1 / spread)
    is_slower = compare_quantile(a, b, compared.quantile, confidence).kind == "regression"
    if not is_slower or not _stands_out(units, compared.at, since, compared.quantile):
        return None
    n = own_counts[since].sum(axis=1)
    variance = spread * float((n * usual[since] * (1 - usual[since])).sum())
    more = float(compared.above(own_counts[since]).sum()) - float((n * usual[since]).sum())
    return _Slow(compared.at, compared.quantile, int(units.starts[since][0]), more / math.sqrt(variance))


def _onset(compared: _UnitComparison, own_counts: Ints, usual: Floats) -> int | None:
    """Return the first step since which the unit is slow; None if it is not slow until now, or in one step only."""
    above, n = compared.above(own_counts), own_counts.sum(axis=1)
    gains = _gains(above, n, usual, compared.step >= compared.first)
    if gains is None:
        return None
    by_step = np.bincount(compared.step, gains)
    start = int(np.argmax(np.cumsum(by_step[::-1])[::-1]))
    active = np.unique(compared.step[n > 0])
    active = active[active >= start]
    if not len(active):
        return None
    recent, left = active[-max(len(active) // 3, 2) :], by_step[active].sum() - by_step[active].max()
    return int(active[0]) if by_step[recent].sum() > 0 and left >= _MIN_GAIN else None


def _weighted(own_counts: Ints, others: Ints) -> tuple[Floats | None, float]:
    """Return the others' requests as if they came when those of *own_counts* came, and the number of requests they are worth; shape (k,)."""
    n, whole = own_counts.sum(axis=1).astype(float), others.sum(axis=1).astype(float)
    both = (n > 0) & (whole > 0)
    if not both.any():
        return None, 0.0
    weights = n[both] / whole[both]
    effective = float((weights * whole[both]).sum() ** 2 / (weights**2 * whole[both]).sum())
    expected: Floats = weights @ others[both].astype(float)
    return expected, effective


def _shares(above: Ints, n: Ints) -> Floats:
    """Return the share of requests above the threshold; without any or with only such requests, half a request more."""
    return (above + 0.5) / (n + 1.0)


def _gains(above: Ints, n: Ints, usual: Floats, rows: NDArray[np.bool_]) -> Floats | None:
    """Return the log-likelihood ratio of each row of being as slow as in *rows*, rather than as the others; None if not slower."""
    share, expected = (
        float(_shares(above[rows].sum(), n[rows].sum())),
        float((n[rows] * usual[rows]).sum() / n[rows].sum()),
    )
    odds = share / (1 - share) / (expected / (1 - expected))
    if odds <= 1:
        return None
    slow = odds * usual / (1 - usual + odds * usual)
    gained: Floats = above.astype(float) * np.log(slow / usual) + (n - above).astype(float) * np.log(
        (1 - slow) / (1 - usual)
    )
    return gained


def _dispersion(counts: Ints, at: int, threshold: int) -> float:
    """Return how many times more the share above the threshold varies than that of independent requests; at least 1.

    *counts* have the shape (v, t, k); the unit *at* may be slower, by the same odds at all times.
    """
    above, n = counts[:, :, threshold:].sum(axis=2).astype(float), counts.sum(axis=2).astype(float)
    others = np.arange(len(counts)) != at
    usual = _shares(above[others].sum(axis=0), n[others].sum(axis=0))
    share = _shares(above[at].sum(), n[at].sum())
    expected = float(np.average(usual, weights=n[at])) if n[at].any() else 0.5
    odds = share / (1 - share) / (expected / (1 - expected))
    shares = np.tile(usual, (len(counts), 1))
    shares[at] = odds * usual / (1 - usual + odds * usual)
    misses = (above - n * shares) ** 2 / np.maximum(n * shares * (1 - shares), 1e-9)
    served = n > 0
    free = max(int(served.sum()) - int(served[others].any(axis=0).sum()) - 1, 0)
    return max(1.0, (float(misses[served].sum()) + _PRIOR_DISPERSION * _PRIOR_WEIGHT) / (free + _PRIOR_WEIGHT))


def _histogram(counts: NDArray[np.number], units: _Units, factor: float) -> Histogram:
    """Return *counts* times *factor* as a histogram; sums from the start are rounded, so that quantiles are kept."""
    rounded = np.diff(np.round(np.cumsum(counts) * factor).astype(np.int64), prepend=0)
    filled = {int(index): int(count) for index, count in zip(units.index, rounded, strict=True) if count > 0}
    return Histogram(units.scale, filled)


def _level(counts: NDArray[np.number], units: _Units, quantile: float) -> float:
    bucket = int(np.searchsorted(np.cumsum(counts.astype(float)), quantile * counts.sum() - 1e-9))
    below, within = float(counts[:bucket].sum()), float(counts[bucket])
    inside = (quantile * float(counts.sum()) - below) / within if within else 0.5
    return float((units.index[bucket] + min(max(inside, 0.0), 1.0)) / 2.0**units.scale)


def _stands_out(units: _Units, at: int, rows: NDArray[np.bool_], quantile: float) -> bool:
    """Return whether the unit *at* is beyond the spread of the others, few of which are about as slow."""
    counts = units.counts[:, rows].sum(axis=1)
    needed = max(_MIN_LEVEL_REQUESTS, 1 / (1 - quantile))
    levels = [
        _level(replica_counts, units, quantile)
        for index, replica_counts in enumerate(counts)
        if index != at and replica_counts.sum() >= needed
    ]
    if not levels:
        return False
    own_level, median = _level(counts[at], units, quantile), float(np.median(levels))
    spread = _MAD * float(np.median(np.abs(np.array(levels) - median)))
    as_slow = sum(level >= (own_level + median) / 2 for level in levels)
    return own_level - median > _MIN_DISTANCE * spread and as_slow <= round(_ALSO_SLOW * len(levels))


def _are_all_slow(table: ReplicaTable, hosts: _Units, slow: _Slow) -> bool:
    """Return whether most processes of a slow host are slow, rather than one that the host is not to blame for."""
    rows, host = table.starts >= slow.onset, hosts.places[slow.at]
    levels: dict[bool, list[float]] = {True: [], False: []}
    for replica in table.replicas:
        counts = replica.requests[rows].sum(axis=0)
        if counts.sum() >= _MIN_LEVEL_REQUESTS:
            levels[host_of(replica.place) == host].append(_level(counts, hosts, slow.quantile))
    inside, outside = levels[True], levels[False]
    if not inside or not outside:
        return False
    middle = (max(inside) + float(np.median(outside))) / 2
    return sum(level < middle for level in inside) <= (len(inside) - 1) // 2


def _described(table: ReplicaTable, units: _Units, slow: _Slow, hardware: pd.DataFrame | None) -> ReplicaOutlier:
    instance, rows = units.places[slow.at], units.starts >= slow.onset
    own_counts = units.counts[slow.at]
    others = units.counts.sum(axis=0) - own_counts
    expected, _ = _weighted(own_counts[rows], others[rows])
    mine = own_counts[rows].sum(axis=0)
    usual = mine if expected is None else expected
    return ReplicaOutlier(
        instance,
        replica_names(units.places)[instance],
        sum(other != instance for other in units.places if OTHER_PLACES not in other),
        slow.quantile,
        2.0 ** _level(mine, units, slow.quantile),
        2.0 ** _level(usual, units, slow.quantile),
        int(mine.sum()),
        slow.onset,
        bool(own_counts[~rows].sum()),
        _growth(table, instance, rows),
        hardware_differences(hardware, instance, units.places, slow.onset) if hardware is not None else (),
    )


def _growth(table: ReplicaTable, instance: str, rows: NDArray[np.bool_]) -> tuple[StageGrowth, ...]:
    inside, outside = (
        [replica for replica in table.replicas if (instance in (replica.place, host_of(replica.place))) == is_own]
        for is_own in (True, False)
    )
    n = sum((replica.requests[rows].sum(axis=1) for replica in inside), np.zeros(int(rows.sum())))
    whole = sum((replica.requests[rows].sum(axis=1) for replica in outside), np.zeros(int(rows.sum())))
    both = (n > 0) & (whole > 0)
    weights, requests = n[both] / whole[both], max(float(n[both].sum()), 1.0)
    stages = dict.fromkeys(stage for replica in table.replicas for stage in replica.stages)

    def spent(replicas: Iterable[ReplicaCounts], stage: str) -> Floats:
        times = (replica.stages[stage][rows][both].astype(float) for replica in replicas if stage in replica.stages)
        return sum(times, np.zeros(len(weights)))

    return growth_of(
        {
            stage: (float(spent(inside, stage).sum()) - float(weights @ spent(outside, stage))) / requests / 1e6
            for stage in stages
        }
    )


# Measures that explain a slow replica, most important first, with the least difference: of a ratio for shares, relative otherwise.
# A slower clock is no cause if the GPU is idle for longer, because idle GPUs lower their clock.
_LESS, _MORE, _MUCH_MORE = -0.1, 0.1, 0.2
_EXPLAINING: Mapping[Measure, float] = {
    measures.GPU_CLOCK: _LESS,
    measures.GPU_HOT: _MORE,
    measures.GPU_CAPPED: _MUCH_MORE,
    measures.THROTTLED: _MORE,
    measures.HOST_CPU: _MUCH_MORE,
    measures.GPU: _MUCH_MORE,
    measures.CPU_SHARE: _MUCH_MORE,
    measures.GPU_MEMORY_SHARE: _MUCH_MORE,
    measures.MEMORY: 0.5,
}


def hardware_differences(
    frame: pd.DataFrame, instance: str, places: Sequence[str], since: int
) -> tuple[HardwareDifference, ...]:
    """Return the measures at *instance*, in a result of `Reader.hardware`, that differ much from the others *since* a time in Unix seconds.

    Machines and GPUs that several of *places* share explain none of them and are left out.
    """
    recent = frame[frame["at"] >= pd.Timestamp(since, unit="s", tz="UTC")]
    differences: list[HardwareDifference] = []
    idle = _pair(recent, measures.GPU, instance, places)
    for measure, least in _EXPLAINING.items():
        pair = _pair(recent, measure, instance, places)
        if pair is None:
            continue
        own_value, others = pair
        change = own_value - others if measure.unit == "1" else own_value / others - 1 if others > 0 else 0.0
        is_idler = measure is measures.GPU_CLOCK and idle is not None and idle[0] < idle[1] + _LESS / 2
        if (change <= least if least < 0 else change >= least) and not is_idler:
            differences.append(HardwareDifference(measure, own_value, others))
    return tuple(differences)


def _pair(
    frame: pd.DataFrame, measure: Measure, own_instance: str, places: Sequence[str]
) -> tuple[float, float] | None:
    """Return the mean of *measure* at *own_instance*, and the median of its means at the other instances; None if one is unknown."""
    rows = frame[frame["measure"] == measure.key]
    means = {str(where): float(value) for where, value in rows.groupby("place")["mean"].mean().items()}
    values = {instance: _mean_at(means, measure, instance, places) for instance in places}
    own_value = values.pop(own_instance)
    measured = [value for value in values.values() if value is not None]
    return (own_value, float(np.median(measured))) if own_value is not None and measured else None


def _mean_at(means: Mapping[str, float], measure: Measure, instance: str, places: Sequence[str]) -> float | None:
    host = host_of(instance)
    if measure.of != "process" and sum(host_of(other) == host for other in places) > 1:
        return None
    # A place without a process is a host: the mean of its processes.
    exact = measure.of == "process" and ":" in instance
    inside = [value for where, value in means.items() if (where == instance if exact else host_of(where) == host)]
    return sum(inside) / len(inside) if inside else None
