"""Whole requests as points: what `core.counts` counts one by one, for many at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ...core import names
from ...core.bands import TOKENS
from ...core.counts import Counts
from ...core.histogram import SCALE, Histogram, bucket_index
from ..store import Point
from .gathering import Ints, groups
from .requests import Requests
from .splitting import split

_NS = 1_000_000_000
_WIDTH_SECONDS = 10
# Closer to the edge of a bucket than that, numpy's logarithm and Python's may see it from different sides.
_CLOSE = 1e-9


def points_of(requests: Requests) -> list[Point]:
    """Return the points of all *requests* that no agent has counted."""
    counted = np.flatnonzero(~requests.known)
    if not len(counted):
        return []
    at = (requests.start + requests.duration)[counted] // (_WIDTH_SECONDS * _NS)
    first, group = groups(requests.series[counted], at)
    series, times = requests.series[counted][first], at[first]
    own, present = requests.split.own[counted], requests.split.present[counted]
    duration, stages = requests.duration[counted], len(requests.stages)

    # Of equal ones the one charted first; `overhead` only where there is no other.
    seen = np.where(present, own, -1)[:, :-1]
    main = np.where(present[:, :-1].any(axis=1), seen.argmax(axis=1), stages - 1)
    request, stage = np.nonzero(present)
    found = [
        *_tagged(names.REQUEST_DURATION, _histograms(group * stages + main, duration)),
        *_tagged(names.STAGE_DURATION, _histograms(group[request] * stages + stage, own[request, stage])),
        *_tagged(names.STAGE_TIME, _spent(group, _buckets(duration), own)),
    ]
    kinds, starts = [requests.kinds[number] for number in series.tolist()], (times * _WIDTH_SECONDS).tolist()
    points = [
        Point(kinds[number // stages], metric, requests.stages[number % stages], starts[number // stages], histogram)
        for metric, number, histogram in found
    ]
    return [*points, *_answers(requests)]


def _tagged(metric: str, found: Iterator[tuple[int, Histogram]]) -> Iterator[tuple[str, int, Histogram]]:
    return ((metric, number, histogram) for number, histogram in found)


def _buckets(ns: Ints) -> Ints:
    """Return the bucket of each time in nanoseconds, as `bucket_index` does; of 0 some."""
    place = np.log2(np.maximum(ns, 1) / _NS) * 2**SCALE
    found = np.ceil(place).astype(np.int64) - 1
    for row in np.flatnonzero(np.abs(place - np.rint(place)) < _CLOSE).tolist():
        found[row] = bucket_index(max(int(ns[row]), 1) / _NS)
    return found


def _histograms(key: Ints, ns: Ints) -> Iterator[tuple[int, Histogram]]:
    """Yield each key with the histogram of its times, given in nanoseconds."""
    keys, group = np.unique(key, return_inverse=True)
    zero = np.bincount(group[ns == 0], minlength=len(keys)).tolist()
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, group, ns)
    timed = ns > 0
    owner, bucket = group[timed], _buckets(ns[timed])
    first, cell = groups(owner, bucket)
    counts = np.bincount(cell, minlength=len(first))
    buckets: list[dict[int, int]] = [{} for _ in keys]
    for number, index, count in zip(owner[first].tolist(), bucket[first].tolist(), counts.tolist(), strict=True):
        buckets[number][index] = count
    for number, found in enumerate(keys.tolist()):
        yield found, Histogram(buckets=buckets[number], zero=zero[number], sum=int(total[number]) / _NS)


def _spent(group: Ints, bucket: Ints, own: Ints) -> Iterator[tuple[int, Histogram]]:
    """Yield each group and stage with the microseconds its requests spent there, by the bucket of their latency.

    They are rounded as `core.counts.microseconds` does, so that the stages of a bucket add up to its rounded total.
    """
    timed = own.any(axis=1)
    group, bucket = group[timed], bucket[timed]
    first, cell = groups(group, bucket)
    total = np.zeros((len(first), own.shape[1]), np.int64)
    np.add.at(total, cell, own[timed])
    until = (np.cumsum(total, axis=1) + 500) // 1000
    microseconds = np.diff(until, axis=1, prepend=0)
    buckets: defaultdict[int, dict[int, int]] = defaultdict(dict)
    cells, stage = np.nonzero(microseconds)
    key, where = group[first][cells] * own.shape[1] + stage, bucket[first][cells]
    for number, index, count in zip(key.tolist(), where.tolist(), microseconds[cells, stage].tolist(), strict=True):
        buckets[number][index] = count
    for number, found in buckets.items():
        yield number, Histogram(buckets=found)


def _answers(requests: Requests) -> Iterator[Point]:
    """Yield the points of what came token by token."""
    counted = [number for number in sorted(requests.answers) if not requests.known[number]]
    by_group: defaultdict[tuple[int, int], Counts] = defaultdict(Counts)
    to_first = _to_first_token(requests, counted)
    for number in counted:
        end = int(requests.start[number] + requests.duration[number])
        counts = by_group[int(requests.series[number]), end // (_WIDTH_SECONDS * _NS)]
        _count_answer(counts, requests, number, to_first.get(number))
    for (series, at), counts in by_group.items():
        for metric, key, histogram in counts.histograms():
            yield Point(requests.kinds[series], metric, key, at * _WIDTH_SECONDS, histogram)


def _to_first_token(requests: Requests, counted: list[int]) -> dict[int, dict[str, int]]:
    """Return what each request that tells of its first token had spent in each stage by then."""
    firsts = {number: requests.answers[number].stream.first_token_ns for number in counted}
    chosen = [number for number in counted if 0 < firsts[number] <= int(requests.duration[number])]
    if not chosen:
        return {}
    ends = requests.start[chosen] + np.array([firsts[number] for number in chosen], np.int64)
    found = split(requests.intervals.of(np.array(chosen), ends), requests.stages, len(chosen))
    return {number: found.of(place, requests.stages) for place, number in enumerate(chosen)}


def _count_answer(counts: Counts, requests: Requests, number: int, own: dict[str, int] | None) -> None:
    answer = requests.answers[number]
    stream, definition = answer.stream, answer.definition
    if own is not None:
        first = stream.first_token_ns
        counts.add_first_token(own, first, definition)
        if stream.tokens_in:
            counts.add_stream(names.FIRST_TOKEN_BY_INPUT, TOKENS.of(stream.tokens_in), first / _NS)
        if stream.tokens_out > 1 and answer.last_ns > first:
            mean = (answer.last_ns - first) / (stream.tokens_out - 1) / _NS
            counts.add_stream(names.OUTPUT_TOKEN, definition, mean)
            counts.add_stream(names.OUTPUT_TOKEN_BY_OUTPUT, TOKENS.of(stream.tokens_out), mean)
    if stream.gap_ns:
        counts.add_stream(names.STREAM_GAP, definition, stream.gap_ns / _NS)
    for kind, tokens in ((names.TOKENS_IN, stream.tokens_in), (names.TOKENS_OUT, stream.tokens_out)):
        if tokens:
            counts.add_stream(names.TOKENS, kind, tokens)
