"""The background work of one process: aggregates finished requests and exports the aggregates and traces.

It aggregates in small steps with pauses: a model thread that has released the interpreter lock must wait for its holder. Exports
happen on multiples of the interval on the wall clock, so that all processes of a service count in the same steps.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import socket
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ...core import names
from ...core.hardware import HOST, PROCESS_ID, Reading
from ...core.names import NOTED_US
from ...core.text import printable
from .. import exits, loads, recorder, records, supervised
from ..config import AgentConfig
from ..export import user_spans
from ..export.exporter import Exporter
from ..export.otlp import POINTS_A_BODY, SERIES_A_BODY, TRACES_A_BODY, Encoder, ExportInterval, Point, chunks
from ..export.outbox import ExportBatch
from ..recorder import park_if_inherited
from ..records import FIRST_FACT, NUMBER, START
from ..request_marks import DeferredRecords
from ..stalls import ProcessCounters, stalls
from .aggregate import Aggregator, Delta, Dimensions
from .govern import CostController, CpuAccount
from .hardware import Hardware
from .profile import Profiler
from .spans import LoadSpans, RetainedRequest, Trace, build_trace

logger = logging.getLogger("stagelens")

AGGREGATE_AT_ONCE = 64
TRACES_AT_ONCE = 8
# Each wake-up takes 0.25 ms before its code is in the caches, so few requests at once cost more each.
AGGREGATE_EVERY_SECONDS = 2.0
# While requests wait for times that are reported later.
DEFERRED_EVERY_SECONDS = 1.0
PAUSE_SECONDS = 0.001
# Attributes are exported less often than the rest, because there are many of them.
ATTRIBUTE_SECONDS = 60.0
SERIES_AT_ONCE = 8
# Width of the finest buckets of the store.
BUCKET_SECONDS = 10.0
_SECOND_NS = 1_000_000_000
# Greater than the time of a few exports at once; beyond it, the wall clock was set back.
_MAX_AHEAD_NS = 10 * _SECOND_NS


class Schedule:
    def __init__(self, interval_seconds: float, now: float) -> None:
        self._interval_seconds = interval_seconds
        self._next = self._after(now)

    def due(self, now: float) -> bool:
        # Also due if the wall clock was set back: the next multiple is then too far away.
        due = now >= self._next or self._next - now > self._interval_seconds
        if due:
            self._next = self._after(now)
        return due

    def left_seconds(self, now: float) -> float:
        return max(0.0, self._next - now)

    def _after(self, now: float) -> float:
        return (now // self._interval_seconds + 1) * self._interval_seconds


class Agent:
    def __init__(self, config: AgentConfig, instance: str | None = None) -> None:
        self.config = config
        self.instance = instance or uuid.uuid4().hex
        self._pid = os.getpid()
        rng = random.Random()  # noqa: S311 - sampling and span ids, no secrets
        # Reason and number of lost requests, until an export reports them.
        self._losses: deque[tuple[str, int]] = deque()
        self._profiler = Profiler(rng)
        profiler = self._profiler if config.profile else None
        self._aggregator = Aggregator(config.keep, rng, profiler=profiler, probes=config.probes)
        self._deferred = DeferredRecords()
        self._counters = ProcessCounters()
        self._hardware = Hardware()
        own = {PROCESS_ID: self._pid, names.SERVICE_INSTANCE: self.instance}
        self._encoder = Encoder({HOST: printable(socket.gethostname()), **config.resource, **own}, self._pause)
        self._load_spans = LoadSpans()
        # Start of the first request. [nanoseconds by `clock`]
        self._first_request: int | None = None
        self._exporter = Exporter(
            headers=config.headers,
            trust=config.trust,
            timeout_seconds=config.timeout_seconds,
            buffer_bytes=config.buffer_bytes,
            lost=lambda reason, count: self._losses.append((reason, count)),
            rng=rng,
        )
        self._cpu = CpuAccount(self._exporter.cpu_ns, lambda: self._profiler.cpu_ns)
        self._costs = CostController(config.budget, self._aggregator, self._cpu)
        self._sequence = itertools.count(1)
        self._working = threading.Lock()
        self._without_pauses = False
        self._logged: set[str] = set()
        self._overflow_before = self._unrecorded_before = 0
        self._since_ns = self._attributes_since_ns = time.time_ns()
        # Middle of the interval of the last export with open requests. [nanoseconds]
        self._open_ns = 0
        self._schedule = Schedule(config.interval_seconds, time.time())
        self._attribute_schedule = Schedule(ATTRIBUTE_SECONDS, time.time())

    def run(self) -> None:
        stalls.watch()
        supervised.supervise_child()
        if self.config.hardware:
            self._hardware.watch()
        while True:
            try:
                exits.watch_signals(recorder.flush_at_end)
                recorder.background.wake_at = recorder.WAKE_AT
                with self._working:
                    self._costs.calibrate()
                    self._counters.read()
                    self._aggregate_pending()
                    self._costs.adjust()
                    self._profiler.allow(self._costs.profiler_share if self.config.profile else 0.0)
                    if self._schedule.due(time.time()):
                        self._export(due=True)
                        self._exporter.wake()
                    self._note_for_supervisor()
            except Exception as error:
                self._report("the background thread had an error and continues", error)
            self._wait()

    def flush(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        self._without_pauses = True
        try:
            if not self._working.acquire(timeout=timeout_seconds):
                return False
            try:
                self._aggregate_pending()
                self._aggregate_deferred(math.inf)
                self._export()
                supervised.note_open_requests()
            finally:
                self._working.release()
        finally:
            self._without_pauses = False
        return self._exporter.drain(max(0.0, deadline - time.monotonic()))

    def _note_for_supervisor(self) -> None:
        if supervised.supervised is not None and supervised.supervised.is_overdue():
            self._export()
            self._exporter.wake()
        supervised.note_open_requests()

    def _wait(self) -> None:
        every_seconds = DEFERRED_EVERY_SECONDS if self._deferred.waiting else AGGREGATE_EVERY_SECONDS
        if supervised.supervised is not None:
            every_seconds = min(every_seconds, supervised.supervised.check_seconds)
        recorder.background.wait(min(every_seconds, self._schedule.left_seconds(time.time())))
        park_if_inherited(self._pid)

    def _pause(self) -> None:
        if not self._without_pauses:
            self._cpu.pause(PAUSE_SECONDS)
            park_if_inherited(self._pid)

    def _aggregate_pending(self) -> None:
        with self._cpu.spending("counting"):
            self._count_pending()
            self._aggregate_deferred(time.monotonic())

    def _count_pending(self) -> None:
        pending = recorder.pending
        recorder.forget_finished()
        arrivals = self._aggregator.arrivals
        arrivals.age(time.monotonic())
        arrivals.drop(self._unrecorded())
        # Only the currently pending records: exports must still happen under a load that exceeds the aggregation.
        for _ in range(0, len(pending), AGGREGATE_AT_ONCE):
            now = time.monotonic()
            for _ in range(min(AGGREGATE_AT_ONCE, len(pending))):
                self._add(pending.popleft(), now)
            self._pause()

    def _aggregate_deferred(self, now: float) -> None:
        for some in chunks(self._deferred.due(now), AGGREGATE_AT_ONCE):
            for record in some:
                self._count(record)
            self._pause()

    def _add(self, record: records.Record, now: float) -> None:
        self._note_end(record)
        if "@late" not in record[0][::3] or not self._deferred.holds(record, now):
            self._count(record)

    def _note_end(self, record: records.Record) -> None:
        marks, _, end, *_ = record
        if len(marks) <= FIRST_FACT or marks[FIRST_FACT] != records.ARRIVAL:
            return
        # The numbers of requests of the parent are from another count; -1 is the start of a calibration request.
        if marks[START] >= recorder.forked_at or marks[START] == -1:
            self._aggregator.arrivals.end(marks[NUMBER], end)

    def _count(self, record: records.Record) -> None:
        try:
            if record[0][START] >= recorder.forked_at:
                self._aggregator.add(record)
                if self._first_request is None:
                    self._first_request = record[1]
        except Exception as error:
            self._losses.append(("unreadable", 1))
            self._report("a request could not be read and is counted as dropped", error)

    def _export(self, *, due: bool = False) -> None:
        now_ns = time.time_ns()
        anchor_ns = now_ns - records.clock()
        if not due:
            now_ns = self._after_open(now_ns)
        # The wall clock may have been set back.
        interval = ExportInterval(min(self._since_ns, now_ns - 1), now_ns)
        self._since_ns = now_ns
        # Read the counters once more, after the last request of this export.
        self._counters.read(again=True)
        with self._cpu.spending("export"):
            readings = self._hardware.take() if due and self.config.hardware else ()
            deltas = self._aggregator.take()
            self._costs.add_costs(deltas)
            self._count_open(deltas, interval, due=due)
            self._export_metrics(interval, deltas, readings)
            self._count_replica(deltas.values())
        with self._cpu.spending("traces"):
            self._export_traces(deltas, anchor_ns)
        self._costs.note_export()
        if self._attribute_schedule.due(now_ns / 1e9) or not due:
            with self._cpu.spending("attributes"):
                self._export_attributes(now_ns)
            self._costs.note_attributes()

    def _export_metrics(
        self, interval: ExportInterval, deltas: Mapping[Dimensions, Delta], readings: Sequence[Reading]
    ) -> None:
        dropped = self._dropped()
        for some in chunks(deltas.items(), SERIES_A_BODY):
            self._offer_metrics(interval, dict(some), dropped, readings)
            dropped, readings = {}, ()
        if dropped or readings:
            self._offer_metrics(interval, {}, dropped, readings)

    def _after_open(self, now_ns: int) -> int:
        """Return *now_ns*, or a time shortly after, so that the middle of this interval is a second after that of the last open requests.

        The collector dates and orders reports by the second of their middle.
        """
        earliest = 2 * (self._open_ns // _SECOND_NS + 1) * _SECOND_NS - self._since_ns
        return earliest if 0 < earliest - now_ns < _MAX_AHEAD_NS else now_ns

    def _count_open(self, deltas: dict[Dimensions, Delta], interval: ExportInterval, *, due: bool) -> None:
        """Add to *deltas* the open requests, for the time that one export covers; between the regular exports only that they are open."""
        seen = round(min(self.config.interval_seconds, BUCKET_SECONDS) * 1e9) if due else NOTED_US * 1000
        for some in chunks(recorder.open_marks(), AGGREGATE_AT_ONCE):
            for marks in some:
                try:
                    self._aggregator.add_open(deltas, marks, recorder.route_of(marks), seen)
                    self._open_ns = (interval.start_ns + interval.end_ns) // 2
                except Exception as error:
                    self._report("an open request could not be read; it is counted when it ends", error)
            self._pause()

    def _count_replica(self, deltas: Iterable[Delta]) -> None:
        for some in chunks(deltas, SERIES_AT_ONCE):
            for delta in some:
                if delta.attributes is not None:
                    delta.attributes.merge(delta.counts)
            self._pause()

    def _export_attributes(self, now_ns: int) -> None:
        interval = ExportInterval(min(self._attributes_since_ns, now_ns - 1), now_ns)
        self._attributes_since_ns = now_ns
        series: list[tuple[Dimensions, list[Point]]] = []
        for dimensions, attributes in self._aggregator.attributes():
            points = list(attributes.take())
            if points:
                series.append((dimensions, points))
            if sum(len(points) for _, points in series) >= POINTS_A_BODY:
                self._offer_points(interval, series)
                series = []
            self._pause()
        if series:
            self._offer_points(interval, series)

    def _offer_points(self, interval: ExportInterval, series: Sequence[tuple[Dimensions, Sequence[Point]]]) -> None:
        # Its requests are counted by another export.
        self._offer(self.config.metrics_url, partial(self._encoder.points, interval, series), 0)

    def _export_traces(self, deltas: Mapping[Dimensions, Delta], anchor_ns: int) -> None:
        free_spans = user_spans.MAX_SPANS
        loaded = self._load_spans.take(self._first_request)
        for some in chunks(_retained_requests(deltas), TRACES_A_BODY):
            traces = self._traces(some)
            free_spans = user_spans.export_spans(traces, anchor_ns, free_spans)
            self._offer_traces([*traces, *loaded], anchor_ns)
            loaded = []
        if loaded:
            self._offer_traces(loaded, anchor_ns)

    def _offer_traces(self, traces: Sequence[Trace], anchor_ns: int) -> None:
        self._offer(self.config.traces_url, partial(self._encoder.traces, traces, anchor_ns), 0)

    def _unrecorded(self) -> int:
        before, self._unrecorded_before = self._unrecorded_before, recorder.dropped.read() + recorder.abandoned.read()
        return self._unrecorded_before - before

    def _dropped(self) -> dict[str, int]:
        dropped: Counter[str] = Counter()
        while self._losses:
            reason, count = self._losses.popleft()
            dropped[reason] += count
        overflow = recorder.dropped.read()
        if overflow > self._overflow_before:
            dropped["queue_full"] = overflow - self._overflow_before
            self._overflow_before = overflow
        return dropped

    def _offer_metrics(
        self,
        interval: ExportInterval,
        deltas: dict[Dimensions, Delta],
        dropped: dict[str, int],
        readings: Sequence[Reading],
    ) -> None:
        # If the batch is lost, the losses that it reports are lost too.
        requests = sum(delta.counts.requests for delta in deltas.values()) + sum(dropped.values())
        encode = partial(self._encoder.metrics, interval, deltas, dropped, readings)
        self._offer(self.config.metrics_url, encode, requests)

    def _traces(self, retained: Sequence[RetainedRequest]) -> list[Trace]:
        traces: list[Trace] = []
        for some in chunks(retained, TRACES_AT_ONCE):
            for item in some:
                try:
                    trace = build_trace(item)
                    root = trace.spans[0]
                    root.attributes.update(self._counters.increase_around(root.start, root.end))
                    root.attributes[names.REPLICA_AGE] = max(0, root.start - loads.born)
                    traces.append(trace)
                except Exception as error:
                    self._report("a retained request could not be written as a trace; it is still counted", error)
            self._pause()
        return traces

    def _offer(self, url: str, encode: Callable[[], bytes], requests: int) -> None:
        try:
            body = encode()
        except Exception as error:
            self._losses.append(("unreadable", requests))
            self._report("an export could not be written; its requests are counted as dropped", error)
            return
        self._exporter.offer(ExportBatch(f"{self.instance}:{next(self._sequence)}", url, body, requests))

    def _report(self, message: str, error: Exception) -> None:
        # Logged once per message: the cause likely affects every request.
        if message not in self._logged:
            self._logged.add(message)
            logger.error("stagelens: %s", message, exc_info=error)


def _retained_requests(deltas: Mapping[Dimensions, Delta]) -> Iterator[RetainedRequest]:
    for dimensions, delta in deltas.items():
        for record, because in delta.sampler.retained():
            yield RetainedRequest(record, because, dimensions, delta.own_stages)


class _Process:
    def __init__(self) -> None:
        self._making = threading.Lock()
        self._agent: Agent | None = None

    def agent(self) -> Agent:
        with self._making:
            if self._agent is None:
                self._agent = Agent(AgentConfig.from_env(os.environ))
            return self._agent


_process = _Process()


def run() -> None:
    agent = _process.agent()
    if not agent.config.enabled:
        recorder.disable()
        return
    agent.run()


def flush(timeout_seconds: float) -> bool:
    agent = _process.agent()
    return not agent.config.enabled or agent.flush(timeout_seconds)


def _forget() -> None:
    global _process  # noqa: PLW0603 - its lock may have been held when the parent forked
    _process = _Process()


os.register_at_fork(after_in_child=_forget)
