"""Points of complete requests: the vectorized form of `core.request_histograms`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...core import names
from ...core.attributes import ATTRIBUTE_SCALE, REPLICA, attribute_key, replica_stage_key
from ...core.columns import Bools, Buckets, Floats, HistogramArrays, Ints
from ...core.histogram import SCALE, TOKEN_COUNTS, ZERO_THRESHOLD, bucket_index
from ...core.stages import UNTIMED
from ...store.points import Identity, PointColumns
from ...store.series import Series
from .assembly import group_rows
from .requests import Requests, split_by_stage

_NS = 1_000_000_000
_WIDTH_SECONDS, _MINUTE = 10, 60
# Distance to a bucket edge below which the logarithms of numpy and Python may round to different buckets.
_CLOSE = 1e-9
_MAX_SERIES = 2000


class _MetricHistograms(NamedTuple):
    """Histograms of one metric; *key* is the group of requests times the number of *names*, plus the index of the name."""

    metric: str
    names: Sequence[str]
    key: Ints
    histograms: HistogramArrays


@dataclass(frozen=True, slots=True)
class _Groups:
    of_request: Ints  # group of each request; -1 if an agent has counted the request
    series: Ints  # series of each group; index of `Requests.kinds`
    at: Ints  # time of each group [Unix seconds]


class _SeriesIdentities(dict[tuple[str, str], Identity]):
    def __init__(self, series: Series) -> None:
        super().__init__()
        self._series = series

    def __missing__(self, key: tuple[str, str]) -> Identity:
        identity = self[key] = Identity(self._series, *key)
        return identity


# The store caches what it knows about an identity, so each is created once. A bounded number of series is cached.
_IDENTITIES: dict[Series, _SeriesIdentities] = {}


def _identities_of(series: Series) -> _SeriesIdentities:
    if series not in _IDENTITIES and len(_IDENTITIES) >= _MAX_SERIES:
        _IDENTITIES.clear()
    return _IDENTITIES.setdefault(series, _SeriesIdentities(series))


def points_of(requests: Requests) -> PointColumns:
    counted, probes = requests.counted, np.flatnonzero(~requests.by_agent & requests.probe)
    columns: list[PointColumns] = []
    if len(counted):
        groups = _groups(requests, counted)
        times = _time_histograms(requests, counted, groups.of_request[counted])
        columns += _columns(requests, groups, [*times, *_token_histograms(requests, groups)])
        columns += _replica_points(requests, counted)
    if len(probes):
        groups, ns = _groups(requests, probes), requests.duration[probes]
        stage = np.zeros_like(probes)
        group = groups.of_request[probes]
        untimed = _histograms(names.PROBE_DURATION, (UNTIMED,), group, stage, ns / _NS, ns)
        columns += _columns(requests, groups, [untimed])
    return PointColumns.join(columns) if columns else PointColumns.of([])


def _columns(
    requests: Requests, groups: _Groups, metric_histograms: Sequence[_MetricHistograms]
) -> Iterator[PointColumns]:
    of_kind = [_identities_of(series) for series in requests.kinds]
    series = [of_kind[number] for number in groups.series.tolist()]
    for metric, by, key, histograms in metric_histograms:
        group, name = np.divmod(key, len(by))
        pairs = zip(group.tolist(), name.tolist(), strict=True)
        identities = [series[of][metric, by[int(which)]] for of, which in pairs]
        yield PointColumns(identities, groups.at[group], histograms)


def _groups(requests: Requests, counted: Ints) -> _Groups:
    at = (requests.start + requests.duration)[counted] // (_WIDTH_SECONDS * _NS)
    first, group = group_rows(requests.series[counted], at)
    of_request = np.full(len(requests.by_agent), -1)
    of_request[counted] = group
    return _Groups(of_request, requests.series[counted][first], at[first] * _WIDTH_SECONDS)


def _time_histograms(requests: Requests, counted: Ints, group: Ints) -> Iterator[_MetricHistograms]:
    stages, duration = requests.stages, requests.duration[counted]
    self_ns, present = requests.split.own[counted], requests.split.present[counted]
    main = requests.split.main[counted]
    request, stage = np.nonzero(present)
    yield _histograms(names.REQUEST_DURATION, stages, group, main, duration / _NS, duration)
    yield _histograms(
        names.STAGE_DURATION, stages, group[request], stage, self_ns[request, stage] / _NS, self_ns[request, stage]
    )
    yield _stage_time_histograms(names.STAGE_TIME, stages, group, _buckets(duration / _NS), self_ns)


def _replica_points(requests: Requests, counted: Ints) -> Iterator[PointColumns]:
    batch = requests.assembled.batch
    named = [source.place or source.instance for source in batch.sources]
    places = sorted({*named})
    replica = np.array([places.index(name) for name in named], np.int64)[batch.source[requests.assembled.roots]]
    counted = counted[np.array([bool(place_name) for place_name in places], np.bool_)[replica[counted]]]
    duration = requests.duration[counted]
    minute = (requests.start[counted] + duration) // (_MINUTE * _NS)
    first, group = group_rows(requests.series[counted], replica[counted], minute)
    of_kind = [_identities_of(series) for series in requests.kinds]
    series = [of_kind[number] for number in requests.series[counted][first].tolist()]
    replicas = [places[number] for number in replica[counted][first].tolist()]
    seconds = duration / _NS
    latency = _histograms(names.REQUEST_BY_ATTRIBUTE, ("",), group, np.zeros_like(group), seconds, duration)
    self_ns = requests.split.own[counted]
    spent = _stage_time_histograms(names.REPLICA_STAGE_TIME, requests.stages, group, _buckets(seconds), self_ns)
    for metric, by, key, fine_histograms in (latency, spent):
        of, name = np.divmod(key, len(by))
        stages = [by[int(which)] for which in name.tolist()]
        keys = [
            replica_stage_key(stage, replicas[number]) if stage else attribute_key(REPLICA.key, replicas[number])
            for number, stage in zip(of.tolist(), stages, strict=True)
        ]
        identities = [series[number][metric, key_name] for number, key_name in zip(of.tolist(), keys, strict=True)]
        buckets = replace(fine_histograms.buckets, index=fine_histograms.buckets.index >> SCALE - ATTRIBUTE_SCALE)
        histograms = replace(fine_histograms, scale=np.full(len(fine_histograms), ATTRIBUTE_SCALE), buckets=buckets)
        yield PointColumns(identities, minute[first][of] * _MINUTE, histograms)


def _token_histograms(requests: Requests, groups: _Groups) -> Iterator[_MetricHistograms]:
    responses = requests.responses
    group = groups.of_request[responses.request]
    counted = group >= 0

    def histograms(  # noqa: PLR0917 - as `_histograms`
        metric: str, by: Sequence[str], which: Bools, name: Ints, values: Floats, ns: Ints | None = None
    ) -> _MetricHistograms:
        exact = None if ns is None else ns[which]
        return _histograms(metric, by, group[which], name[which], values[which], exact)

    first, definition = responses.first_token, responses.definition
    timed = counted & (first > 0) & (first <= requests.duration[responses.request])
    if timed.any():
        yield histograms(names.FIRST_TOKEN, responses.definitions, timed, definition, first / _NS, first)
        chosen = responses.request[timed]
        until = requests.intervals.of(chosen, requests.start[chosen] + first[timed])
        self_ns = split_by_stage(until, requests.stages, len(chosen)).own
        yield _stage_time_histograms(
            names.FIRST_TOKEN_TIME, requests.stages, group[timed], _buckets(first[timed] / _NS), self_ns
        )
        yield histograms(
            names.FIRST_TOKEN_BY_INPUT,
            TOKEN_COUNTS.names,
            timed & (responses.tokens_in > 0),
            _token_buckets(responses.tokens_in),
            first / _NS,
            first,
        )
        flowed = timed & (responses.tokens_out > 1) & (responses.last > first)
        mean = (responses.last - first) / np.maximum(responses.tokens_out - 1, 1) / _NS
        yield histograms(names.OUTPUT_TOKEN, responses.definitions, flowed, definition, mean)
        yield histograms(
            names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.names, flowed, _token_buckets(responses.tokens_out), mean
        )
    gap = responses.gap
    yield histograms(names.STREAM_GAP, responses.definitions, counted & (gap > 0), definition, gap / _NS, gap)
    for direction, tokens in enumerate((responses.tokens_in, responses.tokens_out)):
        yield histograms(
            names.TOKENS,
            (names.TOKENS_IN, names.TOKENS_OUT),
            counted & (tokens > 0),
            np.full(len(tokens), direction),
            tokens.astype(np.float64),
        )


def _token_buckets(tokens: Ints) -> Ints:
    return (
        np.minimum(np.frexp(np.maximum(tokens, 1).astype(np.float64))[1], len(TOKEN_COUNTS.names)).astype(np.int64) - 1
    )


def _buckets(values: Floats) -> Ints:
    """Return the bucket of each value, as `bucket_index` does; the bucket of values below a nanosecond is arbitrary."""
    values = np.maximum(values, ZERO_THRESHOLD)
    exponent = np.log2(values) * 2**SCALE
    indexes = np.ceil(exponent).astype(np.int64) - 1
    for row in np.flatnonzero(np.abs(exponent - np.rint(exponent)) < _CLOSE).tolist():
        indexes[row] = bucket_index(float(values[row]))
    return indexes


def _histograms(  # noqa: PLR0917 - metric, groups and values
    metric: str, by: Sequence[str], group: Ints, name: Ints, values: Floats, ns: Ints | None
) -> _MetricHistograms:
    """Aggregate *values* by *group* and *name* (an index of *by*); *ns* has the exact nanoseconds of durations."""
    keys, owner = np.unique(group * len(by) + name, return_inverse=True)
    is_zero = values < ZERO_THRESHOLD
    zero = np.bincount(owner[is_zero], minlength=len(keys))
    exact = values if ns is None else ns
    total = np.zeros(len(keys), exact.dtype)
    np.add.at(total, owner, exact)
    sums = (
        total.astype(np.float64)
        if ns is None
        else np.array([total_ns / _NS for total_ns in total.tolist()], np.float64)
    )
    owner, bucket = owner[~is_zero], _buckets(values[~is_zero])
    first, cell = group_rows(owner, bucket)
    sizes = np.bincount(owner[first], minlength=len(keys))
    counts = np.bincount(cell, minlength=len(first))
    buckets = Buckets(np.append(0, np.cumsum(sizes)), bucket[first], counts)
    return _MetricHistograms(metric, by, keys, HistogramArrays(np.full(len(keys), SCALE), zero, sums, buckets))


def _stage_time_histograms(
    metric: str, stages: Sequence[str], group: Ints, bucket: Ints, self_ns: Ints
) -> _MetricHistograms:
    """Sum the microseconds of each group and stage, by the latency bucket of the requests.

    Rounding follows `core.request_histograms.round_to_microseconds`, so that the stages of a bucket add up to its rounded total.
    """
    timed = self_ns.any(axis=1)
    group, bucket = group[timed], bucket[timed]
    first, cell = group_rows(group, bucket)
    total = np.zeros((len(first), self_ns.shape[1]), np.int64)
    np.add.at(total, cell, self_ns[timed])
    until = (np.cumsum(total, axis=1) + 500) // 1000
    microseconds = np.diff(until, axis=1, prepend=0)
    cells, stage = np.nonzero(microseconds)
    key = group[first][cells] * len(stages) + stage
    # The cells are ordered by group and bucket; the stable sort keeps that order within a key.
    order = np.argsort(key, kind="stable")
    keys, sizes = np.unique(key, return_counts=True)
    buckets = Buckets(np.append(0, np.cumsum(sizes)), bucket[first][cells][order], microseconds[cells, stage][order])
    nothing = np.zeros(len(keys), np.int64)
    return _MetricHistograms(
        metric, stages, keys, HistogramArrays(np.full(len(keys), SCALE), nothing, nothing.astype(np.float64), buckets)
    )
