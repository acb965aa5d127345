"""Aggregation of complete requests into points: the vectorized form of `core.request_histograms`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import names
from ...core.histogram import SCALE, TOKEN_COUNTS, ZERO_THRESHOLD, bucket_index
from ...store.columns import Buckets
from ...store.points import HistogramArrays
from ...store.records import Identity, PointColumns
from .assembly import Bools, Ints, group_rows
from .requests import Requests, split_by_stage

Floats = NDArray[np.float64]

_NS = 1_000_000_000
_WIDTH_SECONDS = 10
# Closer to a bucket edge than this, the logarithms of numpy and Python may round to different buckets.
_CLOSE = 1e-9


class _MetricHistograms(NamedTuple):
    """HistogramArrays of a metric; *key* is the group of requests times the number of *names*, plus the index of the name."""

    metric: str
    names: Sequence[str]
    key: Ints
    histograms: HistogramArrays


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of requests of the same series and ten seconds.

    Args:
        of_request: Group of each request, -1 for one that an agent has counted.
        series: Series of each group; index of the kinds of the requests.
        at: Time of each group. [Unix seconds]
    """

    of_request: Ints
    series: Ints
    at: Ints


def points_of(requests: Requests) -> PointColumns:
    """Return the points of all *requests* that no Stagelens agent has counted."""
    counted = np.flatnonzero(~requests.known)
    if not len(counted):
        return PointColumns.of([])
    together = _groups(requests, counted)
    found = [*_time_histograms(requests, counted, together.of_request[counted]), *_token_histograms(requests, together)]
    series, at = [requests.kinds[number] for number in together.series.tolist()], together.at
    columns: list[PointColumns] = []
    for metric, by, key, histograms in found:
        group, name = np.divmod(key, len(by))
        identities = [
            Identity(series[of], metric, by[int(which)])
            for of, which in zip(group.tolist(), name.tolist(), strict=True)
        ]
        columns.append(PointColumns(identities, at[group], histograms))
    return PointColumns.join(columns)


def _groups(requests: Requests, counted: Ints) -> _Groups:
    at = (requests.start + requests.duration)[counted] // (_WIDTH_SECONDS * _NS)
    first, group = group_rows(requests.series[counted], at)
    of_request = np.full(len(requests.known), -1)
    of_request[counted] = group
    return _Groups(of_request, requests.series[counted][first], at[first] * _WIDTH_SECONDS)


def _time_histograms(requests: Requests, counted: Ints, group: Ints) -> Iterator[_MetricHistograms]:
    """Yield the histograms of durations and stage times."""
    stages, duration = requests.stages, requests.duration[counted]
    own, present = requests.split.own[counted], requests.split.present[counted]
    main = requests.split.main[counted]
    request, stage = np.nonzero(present)
    yield _histograms(names.REQUEST_DURATION, stages, group, main, duration / _NS, duration)
    yield _histograms(
        names.STAGE_DURATION, stages, group[request], stage, own[request, stage] / _NS, own[request, stage]
    )
    yield _stage_time_histograms(names.STAGE_TIME, stages, group, _buckets(duration / _NS), own)


def _token_histograms(requests: Requests, together: _Groups) -> Iterator[_MetricHistograms]:
    """Yield the histograms of streamed responses and tokens."""
    answers = requests.answers
    group = together.of_request[answers.request]
    counted = group >= 0

    def told(  # noqa: PLR0917 - as `_histograms`
        metric: str, by: Sequence[str], which: Bools, name: Ints, values: Floats, ns: Ints | None = None
    ) -> _MetricHistograms:
        exact = None if ns is None else ns[which]
        return _histograms(metric, by, group[which], name[which], values[which], exact)

    first, definition = answers.first_token, answers.definition
    timed = counted & (first > 0) & (first <= requests.duration[answers.request])
    if timed.any():
        yield told(names.FIRST_TOKEN, answers.definitions, timed, definition, first / _NS, first)
        chosen = answers.request[timed]
        until = requests.intervals.of(chosen, requests.start[chosen] + first[timed])
        own = split_by_stage(until, requests.stages, len(chosen)).own
        yield _stage_time_histograms(
            names.FIRST_TOKEN_TIME, requests.stages, group[timed], _buckets(first[timed] / _NS), own
        )
        yield told(
            names.FIRST_TOKEN_BY_INPUT,
            TOKEN_COUNTS.names,
            timed & (answers.tokens_in > 0),
            _token_buckets(answers.tokens_in),
            first / _NS,
            first,
        )
        flowed = timed & (answers.tokens_out > 1) & (answers.last > first)
        mean = (answers.last - first) / np.maximum(answers.tokens_out - 1, 1) / _NS
        yield told(names.OUTPUT_TOKEN, answers.definitions, flowed, definition, mean)
        yield told(names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.names, flowed, _token_buckets(answers.tokens_out), mean)
    gap = answers.gap
    yield told(names.STREAM_GAP, answers.definitions, counted & (gap > 0), definition, gap / _NS, gap)
    for place, tokens in enumerate((answers.tokens_in, answers.tokens_out)):
        yield told(
            names.TOKENS,
            (names.TOKENS_IN, names.TOKENS_OUT),
            counted & (tokens > 0),
            np.full(len(tokens), place),
            tokens.astype(np.float64),
        )


def _token_buckets(tokens: Ints) -> Ints:
    """Return the bucket of `TOKEN_COUNTS` of each number, as `SizeBuckets.bucket_of` does."""
    return (
        np.minimum(np.frexp(np.maximum(tokens, 1).astype(np.float64))[1], len(TOKEN_COUNTS.names)).astype(np.int64) - 1
    )


def _buckets(values: Floats) -> Ints:
    """Return the bucket of each value, as `bucket_index` does; arbitrary below a nanosecond."""
    values = np.maximum(values, ZERO_THRESHOLD)
    place = np.log2(values) * 2**SCALE
    found = np.ceil(place).astype(np.int64) - 1
    for row in np.flatnonzero(np.abs(place - np.rint(place)) < _CLOSE).tolist():
        found[row] = bucket_index(float(values[row]))
    return found


def _histograms(  # noqa: PLR0917 - what is counted, of whom, and the numbers
    metric: str, by: Sequence[str], group: Ints, name: Ints, values: Floats, ns: Ints | None
) -> _MetricHistograms:
    """Aggregate *values* by *group* and *name*, an index of *by*; *ns* has exact nanoseconds of durations."""
    keys, owner = np.unique(group * len(by) + name, return_inverse=True)
    is_zero = values < ZERO_THRESHOLD
    zero = np.bincount(owner[is_zero], minlength=len(keys))
    exact = values if ns is None else ns
    total = np.zeros(len(keys), exact.dtype)
    np.add.at(total, owner, exact)
    sums = total.astype(np.float64) if ns is None else np.array([each / _NS for each in total.tolist()], np.float64)
    owner, bucket = owner[~is_zero], _buckets(values[~is_zero])
    first, cell = group_rows(owner, bucket)
    sizes = np.bincount(owner[first], minlength=len(keys))
    counts = np.bincount(cell, minlength=len(first))
    buckets = Buckets(np.append(0, np.cumsum(sizes)), bucket[first], counts)
    return _MetricHistograms(metric, by, keys, HistogramArrays(np.full(len(keys), SCALE), zero, sums, buckets))


def _stage_time_histograms(
    metric: str, stages: Sequence[str], group: Ints, bucket: Ints, own: Ints
) -> _MetricHistograms:
    """Sum the microseconds of each group and stage, by the latency bucket of the requests.

    Rounding follows `core.request_histograms.round_to_microseconds`, so that the stages of a bucket add up to its rounded total.
    """
    timed = own.any(axis=1)
    group, bucket = group[timed], bucket[timed]
    first, cell = group_rows(group, bucket)
    total = np.zeros((len(first), own.shape[1]), np.int64)
    np.add.at(total, cell, own[timed])
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
