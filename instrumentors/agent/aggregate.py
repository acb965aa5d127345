"""Aggregation of the finished requests of a process into series of histograms, on the background thread.

The recording level (`ALL` to `NOTHING`) defines how much of a request is aggregated; `RequestTotals` holds the number, stages and
duration of the requests of each level, for the governor.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core import names
from ...core.health_probes import PROBES, UNMATCHED, ProbePolicy
from ...core.histogram import BATCH_SIZES, TOKEN_COUNTS
from ...core.names import AGENT_LEVELS
from ...core.partition import Interval, partition
from ...core.request_histograms import AttributeHistograms, AttributeLimits, RequestHistograms
from ...core.stages import BY_KEY, MAX_CUSTOM_STAGES, OTHER, STALL_LOOP, UNTIMED, stall_key
from ...core.text import printable, to_integer, to_text
from ..config import SamplingLimits
from ..records import ARRIVAL, START, Marks, Record, clock
from ..records import UNTIMED as WITHOUT_STAGES
from ..request_marks import RequestFacts, read_marks, read_request
from ..stalls import IDLE_SECONDS, MIN_LATE_NS, by_stage, loop_lag, stalls
from ..trace_context import trace_draw
from .attributes import Arrivals, attribute_values
from .profile import Profiler
from .sample import Sampler
from .stacks import MAX_KEYS, other_key

# Positions in `AGENT_LEVELS`.
ALL, NO_TRACES, NO_FACTS, REQUESTS_ONLY, NOTHING = range(len(AGENT_LEVELS))
# A shorter request that runs alone can hardly be held up by its event loop, [nanoseconds]
ALONE_NS = int(IDLE_SECONDS * 1e9)
# unless that happens to more than one in this many requests.
RARELY = 100
# Bounds the memory if the user's code sets a route, model or device per request.
MAX_SERIES = 1000
MAX_STAGE = 64
# First HTTP status of server errors.
SERVER_ERROR = 500
# 7, 7.0 and numpy's 7 are one key of a dictionary but different texts.
_TEXTS = (str, type(None))
# Facts that are counted for each outgoing call.
_CALLS = (("@failed", names.FAILED_CALL), ("@suspect", names.SUSPECT_REPORT))
_STREAM_FACTS = frozenset({"@first_token", "@tokens_in", "@tokens_out", "@gap"})


@dataclass(slots=True)
class RequestTotals:
    requests: int = 0
    stages: int = 0
    duration_ns: int = 0

    def include(self, other: RequestTotals) -> None:
        self.requests += other.requests
        self.stages += other.stages
        self.duration_ns += other.duration_ns

    def since(self, before: RequestTotals) -> RequestTotals:
        return RequestTotals(
            self.requests - before.requests, self.stages - before.stages, self.duration_ns - before.duration_ns
        )


# One request in `SAMPLED` is retained as a sample for the cost calibration, at most the latest `MAX_SAMPLES`.
SAMPLED, MAX_SAMPLES = 16, 8


class Dimensions(NamedTuple):
    """Dimensions of one series; "" for unknown. *cold* is "true" for requests during which something was loaded."""

    model: str
    model_version: str
    route: str
    device: str
    status: str
    cold: str = ""

    def as_other(self) -> Dimensions:
        return Dimensions(OTHER, OTHER, OTHER, OTHER, self.status, self.cold)


@dataclass(slots=True)
class Delta:
    sampler: Sampler[Record]
    own_stages: set[str] = field(default_factory=set[str])
    counts: RequestHistograms = field(default_factory=RequestHistograms)
    loads: dict[int, RequestTotals] = field(default_factory=dict[int, RequestTotals])
    profile_keys: set[str] = field(default_factory=set[str])
    attributes: AttributeHistograms | None = None


class _Series:
    """A series and its data since the last export; its *cold* twin does not count towards the limit of series."""

    __slots__ = ("attributes", "cold", "delta", "dimensions", "own_stages")

    def __init__(self, dimensions: Dimensions, limits: AttributeLimits, own_stages: set[str] | None = None) -> None:
        self.dimensions = dimensions
        self.attributes = AttributeHistograms(limits)
        self.own_stages: set[str] = set() if own_stages is None else own_stages
        self.delta: Delta | None = None
        self.cold: _Series | None = None

    def twin(self, limits: AttributeLimits) -> _Series:
        if self.cold is None:
            self.cold = _Series(self.dimensions._replace(cold="true"), limits, self.own_stages)
        return self.cold


class Aggregator:
    def __init__(
        self,
        limits: SamplingLimits,
        rng: random.Random,
        *,
        max_series: int = MAX_SERIES,
        profiler: Profiler | None = None,
        probes: ProbePolicy | None = None,
    ) -> None:
        self._keep = limits
        self._rng = rng
        self._max_series = max_series
        self._profiler = profiler
        self._probes = probes or ProbePolicy()
        self.level = ALL
        self.arrivals = Arrivals()
        self._limits = AttributeLimits()
        self._taken = RequestTotals()
        self.samples: deque[Record] = deque(maxlen=MAX_SAMPLES)
        self._until_sampled = 0
        # Requests that were held up by their event loop, each worth `RARELY`, less all requests since.
        self._held_up = 0
        # All series; and, as a fast path for most requests, the series by the recorded facts.
        self._known: dict[Dimensions, _Series] = {}
        self._by_facts: dict[tuple[Any, ...], _Series] = {}

    def add(self, record: Record) -> None:
        marks, start, end, route, error_type, http_status, kind = record
        frozen = marks[:]
        # A copy, as counted: a thread that outlives the request may still write to the marks.
        copy = (frozen, *record[1:])
        facts, intervals = self._read(copy, marks)
        status = _status_of(facts, error_type, http_status)
        end = max(start, end)
        probe = self._probe_route(facts, route) if kind == "server" else None
        if probe is not None:
            delta = self._delta_of(self._series(facts, probe, status))
            delta.counts.add_stream(names.PROBE_DURATION, UNTIMED, (end - start) / 1e9)
            return
        series = self._series(facts, UNMATCHED if route == PROBES else route, status)
        spared = facts.get(WITHOUT_STAGES)
        level = self.level if spared is None else REQUESTS_ONLY
        # Unattributed time exists only for requests with stages: it is the rest of the duration.
        stage_times = {UNTIMED: end - start} if level == REQUESTS_ONLY else partition(intervals, start, end)
        if not stage_times.keys() <= BY_KEY.keys():
            shown = {stage: known_stage(stage, series.own_stages) for stage in stage_times}
            if shown.keys() != {*shown.values()}:
                intervals = [(shown.get(stage, OTHER), t0, t1) for stage, t0, t1 in intervals]
                stage_times = partition(intervals, start, end)
        cold = "load" in stage_times
        if cold:
            series = series.twin(self._limits)
        delta = self._delta_of(series)
        load = delta.loads.get(level) or delta.loads.setdefault(level, RequestTotals())
        load.requests += 1
        load.stages += len(intervals)
        load.duration_ns += end - start
        self._until_sampled -= 1
        if spared or (self._until_sampled < 0 and level < REQUESTS_ONLY):
            self._until_sampled = SAMPLED
            self.samples.append(copy)
        delta.counts.add(stage_times, end - start)
        if level == REQUESTS_ONLY:
            return
        if level < NO_FACTS:
            _add_facts(delta.counts, facts, intervals, stage_times, (start, end))
            number = facts.get(ARRIVAL)
            running = None if number is None else self.arrivals.running(number, marks[START])
            is_held_up = _add_stalls(delta.counts, intervals, start, end)
            self._held_up = max(0, self._held_up - 1) + is_held_up * RARELY
            if (running is not None and running > 1) or end - start >= ALONE_NS or self._held_up > RARELY:
                loop_lag.watch_closely()
            series.attributes.add(attribute_values(facts, running, self._limits), end - start)
            frozen += self._profile(record, delta, stage_times, intervals, end)
        if level < NO_TRACES:
            draw = trace_draw(facts)
            draw = self._rng.getrandbits(64) if draw is None else draw
            delta.sampler.offer(
                copy, end - start, draw, failed=status == names.STATUS_ERROR, cold=cold, forced="@force" in facts
            )

    def _read(self, record: Record, marks: Marks) -> RequestFacts:
        parsed = read_request(record)
        if self._profiler is not None:
            waits = self._profiler.lock_waits(marks, parsed.intervals, record[1], max(record[1], record[2]))
            parsed.intervals.extend(("queue", start, end) for start, end in waits)
            record[0].extend(part for start, end in waits for part in ("queue@sampled", start, end))
        return parsed

    def add_open(self, deltas: dict[Dimensions, Delta], marks: Marks, route: str, seen: int) -> None:
        series = self._series(read_marks(marks[:]).facts, route, names.STATUS_OK)
        delta = deltas.get(series.dimensions) or deltas.setdefault(series.dimensions, self.nothing())
        delta.counts.add_open(max(1, clock() - marks[START]), seen)

    def _profile(
        self, record: Record, delta: Delta, stage_times: Mapping[str, int], intervals: Collection[Interval], end: int
    ) -> Marks:
        marks, start, _, route = record[:4]
        if self._profiler is None:
            return []
        self._profiler.recent.add(to_text(route), end - start)
        time_by_key = self._profiler.take(marks, stage_times, intervals, start, end)
        if not time_by_key:
            return []
        _add_profile(delta, time_by_key, end - start)
        return ["@profile", time_by_key, 0]

    def load(self) -> RequestTotals:
        total = RequestTotals()
        total.include(self._taken)
        for series in self._all():
            for load in series.delta.loads.values() if series.delta is not None else ():
                total.include(load)
        return total

    def nothing(self) -> Delta:
        return Delta(Sampler(self._keep))

    def _delta_of(self, series: _Series) -> Delta:
        if series.delta is None:
            series.delta = Delta(Sampler(self._keep), series.own_stages, attributes=series.attributes)
        return series.delta

    def _probe_route(self, facts: dict[str, Any], route: str) -> str | None:
        method, agent = facts.get("@method"), facts.get("@user_agent", "")
        # The hash of a foreign object may raise.
        is_text = type(route) is type(agent) is str and type(method) in _TEXTS
        return self._probes.route_of(route, method, agent) if is_text else None

    def take(self) -> dict[Dimensions, Delta]:
        deltas: dict[Dimensions, Delta] = {}
        for series in self._all():
            if series.delta is not None:
                for load in series.delta.loads.values():
                    self._taken.include(load)
                deltas[series.dimensions], series.delta = series.delta, None
        return deltas

    def attributes(self) -> Iterator[tuple[Dimensions, AttributeHistograms]]:
        self._limits.cells = 0
        for series in self._all():
            yield series.dimensions, series.attributes

    def _series(self, facts: dict[str, Any], route: str, status: str) -> _Series:
        get = facts.get
        key = (get("@model"), get("@model_version"), route, get("@device"), status)
        try:
            return self._by_facts[key]
        except Exception:
            # A new key, or a fact that is not text, whose hash may raise anything.
            dimensions = dimensions_of(facts, route, status)
            if dimensions not in self._known and len(self._known) >= self._max_series:
                dimensions = dimensions.as_other()
            series = self._known.setdefault(dimensions, _Series(dimensions, self._limits))
        if len(self._by_facts) < self._max_series and all(type(fact) in _TEXTS for fact in key[:-1]):
            self._by_facts[key] = series
        return series

    def _all(self) -> Iterator[_Series]:
        for series in self._known.values():
            yield series
            if series.cold is not None:
                yield series.cold


def _status_of(facts: dict[str, Any], error_type: str, http_status: int) -> str:
    if "@cancelled" in facts:
        return names.STATUS_CANCELLED
    return names.STATUS_ERROR if error_type or http_status >= SERVER_ERROR else names.STATUS_OK


def dimensions_of(facts: dict[str, Any], route: str, status: str = names.STATUS_OK) -> Dimensions:
    return Dimensions(
        to_text(facts.get("@model")),
        to_text(facts.get("@model_version")),
        to_text(route),
        to_text(facts.get("@device")),
        status,
    )


def _add_facts(
    counts: RequestHistograms,
    facts: dict[str, Any],
    intervals: Collection[Interval],
    stage_times: Mapping[str, int],
    times: tuple[int, int],
) -> None:
    if not _STREAM_FACTS.isdisjoint(facts):
        _add_stream(counts, facts, intervals, *times)
    if "@batch" in facts:
        _add_batch(counts, to_integer(facts["@batch"]), stage_times)
    for key, metric in _CALLS:
        for value, spent in facts.get(key, ()):
            counts.add_stream(metric, to_text(value)[:MAX_STAGE] or OTHER, to_integer(spent) / 1e9)


def _add_stalls(counts: RequestHistograms, intervals: Collection[Interval], start: int, end: int) -> bool:
    stalls_met = stalls.during(start, end)
    if not stalls_met:
        return False
    time_by_stall = by_stage(stalls_met, intervals, start, end)
    counts.add_stalls({stall_key(*key)[:MAX_STAGE]: spent for key, spent in time_by_stall.items()}, end - start)
    return sum(spent for (cause, _), spent in time_by_stall.items() if cause == STALL_LOOP.key) >= MIN_LATE_NS


def _add_profile(delta: Delta, time_by_key: Mapping[str, int], duration: int) -> None:
    limited: dict[str, int] = {}
    for key, spent in time_by_key.items():
        if key not in delta.profile_keys and len(delta.profile_keys) >= MAX_KEYS:
            key = other_key(key)  # noqa: PLW2901
        else:
            delta.profile_keys.add(key)
        limited[key] = limited.get(key, 0) + spent
    delta.counts.add_profile(limited, duration)


def _add_stream(
    counts: RequestHistograms, facts: dict[str, Any], intervals: Collection[Interval], start: int, end: int
) -> None:
    first, definition = facts.get("@first_token", (None, ""))
    definition = to_text(definition)[:MAX_STAGE] or OTHER
    taken_in, put_out = facts.get("@tokens_in", 0), facts.get("@tokens_out", 0)
    if first is not None and start < first <= end:
        counts.add_first_token(partition(intervals, start, first), first - start, definition)
        if taken_in:
            counts.add_stream(names.FIRST_TOKEN_BY_INPUT, TOKEN_COUNTS.bucket_of(taken_in), (first - start) / 1e9)
    for own_definition, (spent, tokens) in facts.get("@per_token", {}).items():
        if tokens:
            counts.add_stream(names.OUTPUT_TOKEN, own_definition or definition, spent / tokens / 1e9)
            if put_out:
                counts.add_stream(names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.bucket_of(put_out), spent / tokens / 1e9)
    for own_definition, gap in facts.get("@gap", {}).items():
        if gap:
            counts.add_stream(names.STREAM_GAP, own_definition or definition, gap / 1e9)
    for kind, number in ((names.TOKENS_IN, taken_in), (names.TOKENS_OUT, put_out)):
        if number:
            counts.add_stream(names.TOKENS, kind, number)


def _add_batch(counts: RequestHistograms, size: int, stage_times: Mapping[str, int]) -> None:
    ran = stage_times.get("forward", 0) + stage_times.get("prefill", 0)
    if size and ran:
        counts.add_stream(names.BATCH_DURATION, BATCH_SIZES.bucket_of(size), ran / 1e9)


def known_stage(stage: str, own_stages: set[str]) -> str:
    """Return the name under which *stage* is counted; add a new name to *own_stages* if the limit allows it."""
    if stage in BY_KEY or stage in own_stages:
        return stage
    stage = printable(stage[:MAX_STAGE])
    if stage not in own_stages:
        if len(own_stages) >= MAX_CUSTOM_STAGES:
            return OTHER
        own_stages.add(stage)
    return stage
