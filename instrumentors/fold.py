"""From finished requests to histograms: what the background thread does with each record.

Per series three things grow until the next export takes them: requests by latency, split by the stage that dominated
them; requests by the own time of each stage; and, in the buckets of the latency, the nanoseconds those requests spent
in each stage. The last makes "where did the time go at p99" a sum instead of a guess.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import names
from ..core.histogram import Histogram, bucket_index
from ..core.stages import BY_KEY, MAX_CUSTOM_STAGES, OTHER, OVERHEAD, position
from .config import Keep
from .partition import Interval, partition
from .recorder import Kind, Record
from .sampler import Sampler

# A route, model or device written per request instead of per kind must not take the host's memory.
MAX_SERIES = 1000
MAX_TEXT = 200
MAX_STAGE = 64
# A kept trace shows its longest intervals; more would not be read.
MAX_INTERVALS = 256
# HTTP: the server failed.
SERVER_ERROR = 500


class Dimensions(NamedTuple):
    """What tells one series of a process from another; "" is unknown."""

    model: str
    model_version: str
    route: str
    device: str
    status: str

    def folded(self) -> Dimensions:
        """Return the series that everything past the limit is counted in."""
        return Dimensions(OTHER, OTHER, OTHER, OTHER, self.status)


@dataclass(slots=True)
class Request:
    """A finished request, read and partitioned.

    Args:
        dimensions: Its series.
        name: Its route, or the name of a manual request.
        method: The HTTP method, "" when there is none.
        start: By the recorder's clock. [nanoseconds]
        end: By the recorder's clock. [nanoseconds]
        own: Exclusive time of each stage, `overhead` included; adds up to end - start. [nanoseconds]
        dominant: The stage that took most of it; `overhead` only where nothing else was seen.
        intervals: The longest of the recorded intervals.
        batch: How many items it carried, 0 when that is unknown.
        error_type: What went wrong, "" when nothing did.
        http_status: The status sent, 0 when there is none.
        traceparent: The W3C header that came with it.
        kind: Off the network or manual.
    """

    dimensions: Dimensions
    name: str
    method: str
    start: int
    end: int
    own: dict[str, int]
    dominant: str
    intervals: list[Interval]
    batch: int
    error_type: str
    http_status: int
    traceparent: str
    kind: Kind


@dataclass(slots=True)
class Delta:
    """What one series counted since the last export.

    Args:
        requests: Dominant stage to latencies. [seconds]
        stages: Stage to own times. [seconds]
        spent: Latency bucket to stage to time spent. [nanoseconds]
        sampler: The requests to keep as traces.
    """

    sampler: Sampler[Request]
    requests: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    stages: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    spent: defaultdict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def count(self) -> int:
        """How many requests were counted."""
        return sum(histogram.count for histogram in self.requests.values())

    def add(self, request: Request) -> None:
        """Count one request."""
        duration = request.end - request.start
        seconds = duration / 1e9
        self.requests[request.dominant].record(seconds)
        for stage, own in request.own.items():
            self.stages[stage].record(own / 1e9)
        if duration:
            spent = self.spent[bucket_index(seconds)]
            for stage, own in request.own.items():
                spent[stage] = spent.get(stage, 0) + own
        self.sampler.offer(request, duration, failed=request.dimensions.status == names.STATUS_ERROR)


class Fold:
    """The series of this process.

    Args:
        keep: How many traces to keep a series and interval.
        rng: Draws the uniform share.
        max_series: Past it, new series are counted together.
    """

    def __init__(self, keep: Keep, rng: random.Random, *, max_series: int = MAX_SERIES) -> None:
        self._keep = keep
        self._rng = rng
        self._max_series = max_series
        # Every series ever seen, with the user's own stages that it shows under their names.
        self._known: dict[Dimensions, set[str]] = {}
        self._deltas: dict[Dimensions, Delta] = {}

    def add(self, record: Record) -> None:
        """Count one record.

        Raises:
            Exception: The record is not what `recorder.Record` says; nothing was counted.
        """
        request = self._read(record)
        delta = self._deltas.get(request.dimensions)
        if delta is None:
            delta = self._deltas[request.dimensions] = Delta(Sampler(self._keep, self._rng))
        delta.add(request)

    def take(self) -> dict[Dimensions, Delta]:
        """Return what was counted since the last call, and start again from nothing."""
        deltas, self._deltas = self._deltas, {}
        return deltas

    def _read(self, record: Record) -> Request:
        marks, start, end, route, error_type, http_status, kind = record
        facts, intervals = _sorted_out(marks)
        if http_status >= SERVER_ERROR and not error_type:
            error_type = str(http_status)
        dimensions = self._series(
            Dimensions(
                _text(facts.get("@model")),
                _text(facts.get("@model_version")),
                _text(route),
                _text(facts.get("@device")),
                names.STATUS_ERROR if error_type else names.STATUS_OK,
            )
        )
        own_stages = self._known[dimensions]
        intervals = [(_known_stage(stage, own_stages), t0, t1) for stage, t0, t1 in intervals]
        end = max(start, end)
        own = partition(intervals, start, end)
        return Request(
            dimensions=dimensions,
            name=_text(route),
            method=_text(facts.get("@method")),
            start=start,
            end=end,
            own=own,
            dominant=dominant(own),
            intervals=intervals if len(intervals) <= MAX_INTERVALS else _longest(intervals),
            batch=_whole(facts.get("@batch")),
            error_type=_text(error_type),
            http_status=http_status,
            traceparent=_text(facts.get("@traceparent")),
            kind=kind,
        )

    def _series(self, dimensions: Dimensions) -> Dimensions:
        if dimensions not in self._known:
            if len(self._known) >= self._max_series:
                dimensions = dimensions.folded()
            self._known.setdefault(dimensions, set())
        return dimensions


def dominant(own: dict[str, int]) -> str:
    """Return the stage that took most of a request: `overhead` only where no stage was seen.

    >>> dominant({"overhead": 9, "forward": 2, "queue": 2}), dominant({"overhead": 9})
    ('forward', 'overhead')
    """
    most, longest = -1, OVERHEAD
    for stage, spent in own.items():
        # Of equal ones the one charted first, so that the order of recording never decides.
        if stage != OVERHEAD and (spent > most or (spent == most and position(stage) < position(longest))):
            most, longest = spent, stage
    return longest


def _sorted_out(marks: list[Any]) -> tuple[dict[str, Any], list[Interval]]:
    # Copied in one step: a thread that outlives the request may still write.
    triples = iter(marks[:])
    facts: dict[str, Any] = {}
    intervals: list[Interval] = []
    for key, start, end in zip(triples, triples, triples, strict=True):
        if key[0] == "@":
            facts[key] = start
        else:
            intervals.append((key, start, end))
    return facts, intervals


def _known_stage(stage: str, own_stages: set[str]) -> str:
    if stage in BY_KEY or stage in own_stages:
        return stage
    stage = _printable(stage[:MAX_STAGE])
    if stage not in own_stages:
        if len(own_stages) >= MAX_CUSTOM_STAGES:
            return OTHER
        own_stages.add(stage)
    return stage


def _longest(intervals: list[Interval]) -> list[Interval]:
    return sorted(intervals, key=lambda interval: interval[1] - interval[2])[:MAX_INTERVALS]


def _text(value: object) -> str:
    return "" if value is None else _printable(str(value)[:MAX_TEXT])


def _whole(value: Any) -> int:
    try:
        return max(0, int(value or 0))
    except (TypeError, ValueError, OverflowError):
        return 0


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)
