"""The background work of one process: aggregates finished requests and exports the aggregates and traces.

It aggregates in small steps with pauses: a model thread that has released the interpreter lock must wait for its holder. Exports
happen on multiples of the interval on the wall clock, so that all processes of a service count in the same steps.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
import uuid
from collections.abc import Iterable

from ...core.names import NOTED_US
from .. import exits, recorder, records, supervised
from ..config import AgentConfig
from ..export.otlp import ExportInterval, chunks
from ..recorder import park_if_inherited
from ..records import FIRST_FACT, NUMBER, START
from ..request_marks import DeferredRecords
from ..stalls import stalls
from .aggregate import Aggregator, Delta, Dimensions
from .exports import Exports
from .govern import CostController, CpuAccount
from .hardware import Hardware
from .profile import Profiler

logger = logging.getLogger("stagelens")

AGGREGATE_AT_ONCE = 64
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
        self._profiler = Profiler(rng)
        profiler = self._profiler if config.profile else None
        self._aggregator = Aggregator(config.keep, rng, profiler=profiler, probes=config.probes)
        self._deferred = DeferredRecords()
        self._hardware = Hardware()
        self._exports = Exports(config, self.instance, rng, self._pause)
        # Start of the first request. [nanoseconds by `clock`]
        self._first_request: int | None = None
        self._cpu = CpuAccount(lambda: self._exports.exporter.cpu_ns, lambda: self._profiler.cpu_ns)
        self._costs = CostController(config.budget, self._aggregator, self._cpu)
        self._working = threading.Lock()
        self._without_pauses = False
        self._unrecorded_before = 0
        self._since_ns = self._attributes_since_ns = time.time_ns()
        # Middle of the interval of the last export with open requests. [nanoseconds]
        self._open_ns = 0
        self._schedule = Schedule(config.interval_seconds, time.time())
        self._attribute_schedule = Schedule(ATTRIBUTE_SECONDS, time.time())

    def run(self) -> None:
        stalls.watch()
        supervised.supervise_child()
        if self.config.hardware:
            self._hardware.gpus.watch()
        while True:
            try:
                exits.watch_signals(recorder.flush_at_end)
                recorder.background.wake_at = recorder.WAKE_AT
                with self._working:
                    self._costs.calibrate()
                    self._exports.counters.read()
                    self._aggregate_pending()
                    self._costs.adjust()
                    self._profiler.allow(self._costs.profiler_share if self.config.profile else 0.0)
                    if self._schedule.due(time.time()):
                        self._export(due=True)
                        self._exports.exporter.wake()
                    self._note_for_supervisor()
            except Exception as error:
                self._exports.report("the background thread had an error and continues", error)
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
        return self._exports.exporter.drain(max(0.0, deadline - time.monotonic()))

    def _note_for_supervisor(self) -> None:
        if supervised.supervised is not None and supervised.supervised.is_overdue():
            self._export()
            self._exports.exporter.wake()
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
            self._exports.note_lost("unreadable", 1)
            self._exports.report("a request could not be read and is counted as dropped", error)

    def _export(self, *, due: bool = False) -> None:
        now_ns = time.time_ns()
        anchor_ns = now_ns - records.clock()
        if not due:
            now_ns = self._after_open(now_ns)
        # The wall clock may have been set back.
        interval = ExportInterval(min(self._since_ns, now_ns - 1), now_ns)
        self._since_ns = now_ns
        # Read the counters once more, after the last request of this export.
        self._exports.counters.read(again=True)
        with self._cpu.spending("export"):
            readings = self._hardware.take() if due and self.config.hardware else ()
            deltas = self._aggregator.take()
            self._costs.add_costs(deltas)
            self._count_open(deltas, interval, due=due)
            self._exports.metrics(interval, deltas, readings)
            self._count_replica(deltas.values())
        with self._cpu.spending("traces"):
            self._exports.traces(deltas, anchor_ns, self._first_request)
        self._costs.note_export()
        if self._attribute_schedule.due(now_ns / 1e9) or not due:
            with self._cpu.spending("attributes"):
                attributes_since = ExportInterval(min(self._attributes_since_ns, now_ns - 1), now_ns)
                self._attributes_since_ns = now_ns
                self._exports.attributes(attributes_since, self._aggregator.attributes())
            self._costs.note_attributes()

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
                    self._exports.report("an open request could not be read; it is counted when it ends", error)
            self._pause()

    def _count_replica(self, deltas: Iterable[Delta]) -> None:
        for some in chunks(deltas, SERIES_AT_ONCE):
            for delta in some:
                if delta.attributes is not None:
                    delta.attributes.merge(delta.counts)
            self._pause()

    def _unrecorded(self) -> int:
        before, self._unrecorded_before = self._unrecorded_before, recorder.dropped.read() + recorder.abandoned.read()
        return self._unrecorded_before - before


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
