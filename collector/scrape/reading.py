"""One reading of a target: everything it has counted since its process began, of what an engine's rules ask for.

What is told apart is a histogram by its labels; a summary, or a sum and a count by themselves, are a histogram with one bucket
from nothing to without end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple

from prometheus_client.samples import Sample

from .exposition import PROCESS_START, Samples
from .rules import Engine, Source

# Histograms that are told apart in one target; a point of each is written with every reading.
MAX_STREAMS = 2000
# Far above any real count; thousands of such points still add up within a signed 64-bit integer.
MAX_COUNT = 2**48
ONE_BUCKET = (0.0, math.inf)
# They tell apart the numbers of one histogram or summary.
_NO_LABELS = ("le", "quantile")

Kind = Literal["request", "stage", "first_token", "output_token", "tokens", "batch"]
Labels = tuple[tuple[str, str], ...]
# (low, high] of a bucket, in seconds, to how many are in it and in no other.
Buckets = Mapping[tuple[float, float], int]


class Stream(NamedTuple):
    """What is told apart in a reading.

    Args:
        kind: What it counts.
        key: The stage, definition, kind of token or band.
        labels: As they were exposed, so that one process' counters are never taken for another's.
    """

    kind: Kind
    key: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of a stream.

    Args:
        buckets: Only those that have any.
        sum: Of the values. [seconds]
        created: When it began, where that is told; 0 where not. [Unix seconds]
    """

    buckets: Buckets
    sum: float
    created: float = 0.0

    @property
    def count(self) -> int:
        """How many were counted."""
        return sum(self.buckets.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading.

    Args:
        at: When it was asked for, by the clock of the collector. [Unix seconds]
        rules: A name for what was asked for: readings by other rules have nothing to do with it.
        started: When the process began, by its own clock; 0 where it does not say. [Unix seconds]
        streams: What it has counted.
        beyond: Streams that were not read: there was no room, their numbers make no sense, or they could not be asked for.
    """

    at: float
    rules: str
    started: float = 0.0
    streams: Mapping[Stream, Counted] = field(default_factory=dict[Stream, Counted])
    beyond: int = 0

    def with_streams(self, more: Mapping[Stream, Counted], beyond: int = 0) -> Reading:
        """Return the same with *more* streams, as far as there is room, and so many that could not be read."""
        streams = dict(islice(chain(self.streams.items(), more.items()), MAX_STREAMS))
        left_out = len(self.streams) + len(more) - len(streams)
        return replace(self, streams=streams, beyond=self.beyond + left_out + beyond)


def read(samples: Samples, engine: Engine, at: float, rules: str) -> Reading:
    """Return what *samples* say by *engine*, which is named *rules* here."""
    found: dict[Stream, Counted] = {}
    beyond = 0
    for kind, key, source in _asked(engine):
        for labels, counted in _streams(samples, source, kind):
            if any(value in engine.without.get(label, ()) for label, value in labels):
                continue
            if counted is None or len(found) >= MAX_STREAMS:
                beyond += 1
            else:
                found[Stream(kind, key, labels)] = counted
    starts = samples.get(PROCESS_START, [])
    started = starts[0].value if len(starts) == 1 and math.isfinite(starts[0].value) else 0.0
    return Reading(at, rules, started, found, beyond)


def _asked(engine: Engine) -> Iterator[tuple[Kind, str, Source]]:
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


def _streams(samples: Samples, source: Source, kind: Kind) -> Iterator[tuple[Labels, Counted | None]]:
    """Yield what there is under the first of the source's names that is there; None for what makes no sense."""
    for name in source.names:
        if kind == "tokens":
            found = _counter(samples, (name,))
            if found:
                yield from ((labels, _tokens(value)) for labels, value in found.items())
                return
        elif f"{name}_bucket" in samples or f"{name}_count" in samples or any(_native(samples, name)):
            yield from _histograms(samples, name, source.unit_seconds)
            return
        elif sums := _counter(samples, (name,)):
            counts = _counter(samples, source.count)
            for labels, total in sums.items():
                yield labels, _one_bucket(counts.get(labels), total * source.unit_seconds)
            return


def _histograms(samples: Samples, name: str, unit: float) -> Iterator[tuple[Labels, Counted | None]]:
    sums, counts, created = (_values(samples.get(name + end, [])) for end in ("_sum", "_count", "_created"))
    edges: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples.get(f"{name}_bucket", []):
        edges[_labels(sample)].append((_number(sample.labels.get("le", "")), sample.value))
    for labels in sums.keys() | counts.keys() | edges.keys():
        total = sums.get(labels, math.nan) * unit
        if labels in edges:
            buckets = _classic(sorted(edges[labels]), unit)
            yield labels, _sound(buckets, total, created.get(labels, 0.0))
        else:
            yield labels, _one_bucket(counts.get(labels), total, created.get(labels, 0.0))
    for sample in _native(samples, name):
        histogram = sample.native_histogram
        buckets = _exponential(histogram, unit)
        yield _labels(sample), _sound(buckets, histogram.sum_value * unit, created.get(_labels(sample), 0.0))


def _classic(edges: Sequence[tuple[float, float]], unit: float) -> dict[tuple[float, float], float] | None:
    """Return counts by bucket from cumulative ones by upper edge; None if they are none."""
    if not edges or edges[-1][0] != math.inf or any(math.isnan(edge) for edge, _ in edges):
        return None
    # A duration is never negative: edges below nothing are nothing.
    by_edge = [(0.0, 0.0), *((max(edge * unit, 0.0), value) for edge, value in edges)]
    return {(low, high): above - below for (low, below), (high, above) in pairwise(by_edge) if above != below}


def _exponential(histogram: Any, unit: float) -> dict[tuple[float, float], float]:
    """Return the buckets of a native histogram: bucket i ends at 2**(i * 2**-schema)."""
    found = {(0.0, histogram.zero_threshold * unit): float(histogram.zero_count)} if histogram.zero_count else {}
    count, index = 0.0, 0
    deltas = iter(histogram.pos_deltas or ())
    width = 2.0**-histogram.schema
    for span in histogram.pos_spans or ():
        index += span.offset
        for _ in range(span.length):
            count += next(deltas, 0)
            if count:
                found[2.0 ** ((index - 1) * width) * unit, 2.0 ** (index * width) * unit] = count
            index += 1
    return found


def _one_bucket(count: float | None, total: float, created: float = 0.0) -> Counted | None:
    return None if count is None else _sound({ONE_BUCKET: count} if count else {}, total, created)


def _tokens(count: float) -> Counted | None:
    return _sound({ONE_BUCKET: count} if count else {}, 0.0, 0.0)


def _sound(buckets: Mapping[tuple[float, float], float] | None, total: float, created: float) -> Counted | None:
    """Return what was counted, or None if it cannot have been: no number, negative, or more than anything counts."""
    if buckets is None or not 0 <= total < math.inf or not all(0 <= count <= MAX_COUNT for count in buckets.values()):
        return None
    return Counted({edges: round(count) for edges, count in buckets.items()}, total, created)


def _counter(samples: Samples, names: Iterable[str]) -> dict[Labels, float]:
    """Return the values of the first of *names* that is there: Prometheus' parser adds `_total` to those that lack it."""
    present = (samples[each] for name in names for each in (name, f"{name}_total") if each in samples)
    return _values(next(present, []))


def _values(samples: Iterable[Sample]) -> dict[Labels, float]:
    return {_labels(sample): sample.value for sample in samples}


def _native(samples: Samples, name: str) -> list[Any]:
    return [sample for sample in samples.get(name, []) if getattr(sample, "native_histogram", None)]


def _labels(sample: Sample) -> Labels:
    # Native histograms without labels have None.
    return tuple(sorted((name, value) for name, value in (sample.labels or {}).items() if name not in _NO_LABELS))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
