"""Snapshots of a target: all counters and histograms that the rules of its engine name, and the difference between two of them.

A summary, or a pair of sum and count, is a histogram with one bucket from zero to infinity. A snapshot is stored as bytes for the
next scrape, by this or another collector.

Counters only grow while a process lives. A counter that is smaller than before, or has a later start, was reset: its whole value
is new. Counts from before the first snapshot have no known time, so the first snapshot adds nothing. After a failed scrape the
previous snapshot stays valid, and the interval becomes longer.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

from prometheus_client.samples import Sample

from .config import Engine, SourceMetric
from .exposition import PROCESS_START, Samples

# Maximum number of streams of a target; each scrape writes a point for each stream. [count]
MAX_STREAMS = 2000
# Far above any real count; the sum of thousands of such points fits into a signed 64-bit integer.
MAX_COUNT = 2**48
ONE_BUCKET = (0.0, math.inf)
# Labels that distinguish the samples of one histogram or summary.
_NO_LABELS = ("le", "quantile")

Kind = Literal["request", "stage", "first_token", "output_token", "tokens", "batch"]
Labels = tuple[tuple[str, str], ...]
# Non-cumulative count by bucket (low, high], in seconds.
Buckets = Mapping[tuple[float, float], int]
# A snapshot in another format is ignored.
_FORMAT = 1
# Counts of a longer interval are dropped: a single point for the interval would look like a burst in charts and alerts. [seconds]
MAX_GAP_SECONDS = 600.0
# Tolerance for the clock difference of two machines and the start-up time of a process. [seconds]
_SKEW_SECONDS = 30.0
# Tolerance for rounded start times. [seconds]
_ROUNDED_SECONDS = 1.0


class MetricStream(NamedTuple):
    kind: Kind
    key: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Counts of one metric stream since `created`, in Unix seconds; 0 if unknown."""

    buckets: Buckets
    sum: float
    created: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())


Streams: TypeAlias = Mapping[MetricStream, StreamCounts]


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float  # time of the request, by the clock of the collector [Unix seconds]
    rules: str  # hash of the rules; snapshots with other rules are not comparable
    started: float = 0.0  # start of the process, by the clock of its machine; 0 if unknown [Unix seconds]
    streams: Streams = field(default_factory=dict[MetricStream, StreamCounts])
    beyond: int = 0

    def with_streams(self, more: Streams, beyond: int = 0) -> Snapshot:
        streams = dict(islice(chain(self.streams.items(), more.items()), MAX_STREAMS))
        left_out = len(self.streams) + len(more) - len(streams)
        return replace(self, streams=streams, beyond=self.beyond + left_out + beyond)


def read_snapshot(samples: Samples, engine: Engine, at: float, rules: str) -> Snapshot:
    streams: dict[MetricStream, StreamCounts] = {}
    beyond = 0
    for kind, key, source in _asked(engine):
        for labels, counted in _streams(samples, source, kind):
            if any(value in engine.without.get(label, ()) for label, value in labels):
                continue
            if counted is None or len(streams) >= MAX_STREAMS:
                beyond += 1
            else:
                streams[MetricStream(kind, key, labels)] = counted
    starts = samples.get(PROCESS_START, [])
    started = starts[0].value if len(starts) == 1 and math.isfinite(starts[0].value) else 0.0
    return Snapshot(at, rules, started, streams, beyond)


def _asked(engine: Engine) -> Iterator[tuple[Kind, str, SourceMetric]]:
    if engine.request:
        yield "request", engine.request.definition, engine.request
    for stage, source in engine.stages.items():
        yield "stage", stage, source
    for source in engine.first_token:
        yield "first_token", source.definition, source
    for source in engine.output_token:
        yield "output_token", source.definition, source
    for token, source in engine.tokens.items():
        yield "tokens", token, source


def _streams(samples: Samples, source: SourceMetric, kind: Kind) -> Iterator[tuple[Labels, StreamCounts | None]]:
    """Yield labels and counts of the first metric of *source* that is present; None for invalid counts."""
    for name in source.names:
        if kind == "tokens":
            counters = _counter(samples, (name,))
            if counters:
                yield from (
                    (labels, _valid_counts({ONE_BUCKET: value} if value else {}, 0.0, 0.0))
                    for labels, value in counters.items()
                )
                return
        elif f"{name}_bucket" in samples or f"{name}_count" in samples or any(_native(samples, name)):
            yield from _histograms(samples, name, source.unit_seconds)
            return
        elif sums := _counter(samples, (name,)):
            counts = _counter(samples, source.count)
            for labels, total in sums.items():
                yield labels, _one_bucket(counts.get(labels), total * source.unit_seconds)
            return


def _histograms(samples: Samples, name: str, unit: float) -> Iterator[tuple[Labels, StreamCounts | None]]:
    sums, counts, created = (_values(samples.get(name + end, [])) for end in ("_sum", "_count", "_created"))
    edges: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples.get(f"{name}_bucket", []):
        edges[_labels(sample)].append((_number(sample.labels.get("le", "")), sample.value))
    for labels in sums.keys() | counts.keys() | edges.keys():
        total = sums.get(labels, math.nan) * unit
        if labels in edges:
            buckets = _classic(sorted(edges[labels]), unit)
            yield labels, _valid_counts(buckets, total, created.get(labels, 0.0))
        else:
            yield labels, _one_bucket(counts.get(labels), total, created.get(labels, 0.0))
    for sample in _native(samples, name):
        histogram = sample.native_histogram
        buckets = _exponential(histogram, unit)
        yield _labels(sample), _valid_counts(buckets, histogram.sum_value * unit, created.get(_labels(sample), 0.0))


def _classic(edges: Sequence[tuple[float, float]], unit: float) -> dict[tuple[float, float], float] | None:
    """Return the counts by bucket for cumulative counts by upper edge; None if the edges are invalid."""
    if not edges or edges[-1][0] != math.inf or any(math.isnan(edge) for edge, _ in edges):
        return None
    # A duration is never negative: negative edges count as zero.
    by_edge = [(0.0, 0.0), *((max(edge * unit, 0.0), value) for edge, value in edges)]
    return {(low, high): above - below for (low, below), (high, above) in pairwise(by_edge) if above != below}


def _exponential(histogram: Any, unit: float) -> dict[tuple[float, float], float]:
    """Return the buckets of a native histogram: bucket i ends at 2**(i * 2**-schema)."""
    buckets = {(0.0, histogram.zero_threshold * unit): float(histogram.zero_count)} if histogram.zero_count else {}
    count, index = 0.0, 0
    deltas = iter(histogram.pos_deltas or ())
    width = 2.0**-histogram.schema
    for span in histogram.pos_spans or ():
        index += span.offset
        for _ in range(span.length):
            count += next(deltas, 0)
            if count:
                buckets[2.0 ** ((index - 1) * width) * unit, 2.0 ** (index * width) * unit] = count
            index += 1
    return buckets


def _one_bucket(count: float | None, total: float, created: float = 0.0) -> StreamCounts | None:
    return None if count is None else _valid_counts({ONE_BUCKET: count} if count else {}, total, created)


def _valid_counts(
    buckets: Mapping[tuple[float, float], float] | None, total: float, created: float
) -> StreamCounts | None:
    if buckets is None or not 0 <= total < math.inf or not all(0 <= count <= MAX_COUNT for count in buckets.values()):
        return None
    return StreamCounts({edges: round(count) for edges, count in buckets.items()}, total, created)


def _counter(samples: Samples, names: Iterable[str]) -> dict[Labels, float]:
    present = (
        samples[sample_name] for name in names for sample_name in (name, f"{name}_total") if sample_name in samples
    )
    return _values(next(present, []))


def _values(samples: Iterable[Sample]) -> dict[Labels, float]:
    return {_labels(sample): sample.value for sample in samples}


def _native(samples: Samples, name: str) -> list[Any]:
    return [sample for sample in samples.get(name, []) if getattr(sample, "native_histogram", None)]


def _labels(sample: Sample) -> Labels:
    # The parser returns None for the labels of native histograms without labels.
    return tuple(sorted((name, value) for name, value in (sample.labels or {}).items() if name not in _NO_LABELS))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def dump_snapshot(snapshot: Snapshot) -> bytes:
    streams = [
        (
            *stream,
            [(low, None if high == inf else high, count) for (low, high), count in counted.buckets.items()],
            counted.sum,
            counted.created,
        )
        for stream, counted in snapshot.streams.items()
    ]
    document = [_FORMAT, snapshot.at, snapshot.rules, snapshot.started, streams, snapshot.beyond]
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def load_snapshot(saved: bytes) -> Snapshot | None:
    if not saved:
        return None
    form, *rest = json.loads(zlib.decompress(saved))
    if form != _FORMAT:
        return None
    at, rules, started, streams, beyond = rest
    return Snapshot(at, rules, started, dict(map(_load_stream, streams)), beyond)


def _load_stream(row: list[Any]) -> tuple[MetricStream, StreamCounts]:
    kind, key, labels, buckets, total, created = row
    edges = {(low, inf if high is None else high): count for low, high, count in buckets}
    return MetricStream(kind, key, tuple((name, value) for name, value in labels)), StreamCounts(edges, total, created)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two snapshots: only streams with added counts, and the reason if nothing was counted."""

    base: Snapshot
    added: dict[MetricStream, StreamCounts] = field(default_factory=dict[MetricStream, StreamCounts])
    note: str = ""
    lost_seconds: float = 0.0


def difference_between(before: Snapshot | None, after: Snapshot) -> Difference:
    if before is None:
        return Difference(after, note="first scrape: counted from now on")
    if before.rules != after.rules:
        return Difference(after, note="scraped with changed rules: counted from now on")
    seconds = after.at - before.at
    if seconds > MAX_GAP_SECONDS:
        note = f"not read for {seconds:.0f} s: counted from now on"
        return Difference(after, note=note, lost_seconds=seconds)
    restarted = _differ(before.started, after.started)
    if restarted and after.started < before.at - _SKEW_SECONDS:
        # Two live processes respond alternately: each change of the process would count all values again.
        note = "another process responded than last time: scrape each process at its own address"
        return Difference(after, note=note, lost_seconds=max(seconds, 0.0))
    then: Streams = {} if restarted else before.streams
    added = {
        stream: more
        for stream, now in after.streams.items()
        # If streams were left out before, a new stream may have existed at that time.
        if (stream in then or restarted or not before.beyond) and (more := _increase(then.get(stream), now)).count
    }
    # Streams that disappear stay in the base, because they may return later.
    gone = {stream: counted for stream, counted in then.items() if stream not in after.streams}
    return Difference(after.with_streams(gone), added)


def _increase(then: StreamCounts | None, now: StreamCounts) -> StreamCounts:
    if then is None or _differ(then.created, now.created):
        return now
    rest = Counter(now.buckets)
    rest.subtract(then.buckets)
    if min(rest.values(), default=0) < 0 or now.sum < then.sum:
        return now
    return StreamCounts({edges: count for edges, count in rest.items() if count}, now.sum - then.sum, now.created)


def _differ(earlier: float, later: float) -> bool:
    return bool(earlier and later) and abs(later - earlier) > _ROUNDED_SECONDS
