"""The exports of a process: metrics, attributes and retained traces, in posts of bounded size."""

from __future__ import annotations

import itertools
import logging
import os
import random
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ...core import names
from ...core.hardware import HOST, PROCESS_ID, Reading
from ...core.request_histograms import AttributeHistograms
from ...core.text import printable
from .. import loads, recorder
from ..config import AgentConfig
from ..export import user_spans
from ..export.exporter import Exporter
from ..export.otlp import POINTS_A_BODY, SERIES_A_BODY, TRACES_A_BODY, Encoder, ExportInterval, Point, chunks
from ..export.outbox import ExportBatch
from ..stalls import ProcessCounters
from .aggregate import Delta, Dimensions
from .spans import LoadSpans, RetainedRequest, Trace, build_trace

logger = logging.getLogger("stagelens")

TRACES_AT_ONCE = 8


class Exports:
    def __init__(self, config: AgentConfig, instance: str, rng: random.Random, pause: Callable[[], None]) -> None:
        self._config = config
        self._instance = instance
        self._pause = pause
        self.exporter = Exporter(
            headers=config.headers,
            trust=config.trust,
            timeout_seconds=config.timeout_seconds,
            buffer_bytes=config.buffer_bytes,
            lost=self.note_lost,
            rng=rng,
        )
        process_attributes = {PROCESS_ID: os.getpid(), names.SERVICE_INSTANCE: instance}
        self._encoder = Encoder({HOST: printable(socket.gethostname()), **config.resource, **process_attributes}, pause)
        self.counters = ProcessCounters()
        self._load_spans = LoadSpans()
        self._sequence = itertools.count(1)
        # Reason and number of lost requests, until an export reports them.
        self._losses: deque[tuple[str, int]] = deque()
        self._overflow_before = 0
        self._logged: set[str] = set()

    def note_lost(self, reason: str, requests: int) -> None:
        self._losses.append((reason, requests))

    def report(self, message: str, error: Exception) -> None:
        # Logged once per message: the cause likely affects every request.
        if message not in self._logged:
            self._logged.add(message)
            logger.error("stagelens: %s", message, exc_info=error)

    def metrics(
        self, interval: ExportInterval, deltas: Mapping[Dimensions, Delta], readings: Sequence[Reading]
    ) -> None:
        dropped = self._dropped()
        for some in chunks(deltas.items(), SERIES_A_BODY):
            self._offer_metrics(interval, dict(some), dropped, readings)
            dropped, readings = {}, ()
        if dropped or readings:
            self._offer_metrics(interval, {}, dropped, readings)

    def attributes(
        self, interval: ExportInterval, histograms: Iterable[tuple[Dimensions, AttributeHistograms]]
    ) -> None:
        series: list[tuple[Dimensions, list[Point]]] = []
        for dimensions, attributes in histograms:
            points = list(attributes.take())
            if points:
                series.append((dimensions, points))
            if sum(len(points) for _, points in series) >= POINTS_A_BODY:
                self._offer_points(interval, series)
                series = []
            self._pause()
        if series:
            self._offer_points(interval, series)

    def traces(self, deltas: Mapping[Dimensions, Delta], anchor_ns: int, first_request: int | None) -> None:
        free_spans = user_spans.MAX_SPANS
        loaded = self._load_spans.take(first_request)
        for some in chunks(_retained_requests(deltas), TRACES_A_BODY):
            traces = self.build_traces(some)
            free_spans = user_spans.export_spans(traces, anchor_ns, free_spans)
            self._offer_traces([*traces, *loaded], anchor_ns)
            loaded = []
        if loaded:
            self._offer_traces(loaded, anchor_ns)

    def build_traces(self, retained: Sequence[RetainedRequest]) -> list[Trace]:
        traces: list[Trace] = []
        for some in chunks(retained, TRACES_AT_ONCE):
            for item in some:
                try:
                    trace = build_trace(item)
                    root = trace.spans[0]
                    root.attributes.update(self.counters.increase_around(root.start, root.end))
                    root.attributes[names.REPLICA_AGE] = max(0, root.start - loads.born)
                    traces.append(trace)
                except Exception as error:
                    self.report("a retained request could not be written as a trace; it is still counted", error)
            self._pause()
        return traces

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
        self._offer(self._config.metrics_url, encode, requests)

    def _offer_points(self, interval: ExportInterval, series: Sequence[tuple[Dimensions, Sequence[Point]]]) -> None:
        # Its requests are counted by another export.
        self._offer(self._config.metrics_url, partial(self._encoder.points, interval, series), 0)

    def _offer_traces(self, traces: Sequence[Trace], anchor_ns: int) -> None:
        self._offer(self._config.traces_url, partial(self._encoder.traces, traces, anchor_ns), 0)

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

    def _offer(self, url: str, encode: Callable[[], bytes], requests: int) -> None:
        try:
            body = encode()
        except Exception as error:
            self._losses.append(("unreadable", requests))
            self.report("an export could not be written; its requests are counted as dropped", error)
            return
        self.exporter.offer(ExportBatch(f"{self._instance}:{next(self._sequence)}", url, body, requests))


def _retained_requests(deltas: Mapping[Dimensions, Delta]) -> Iterator[RetainedRequest]:
    for dimensions, delta in deltas.items():
        for record, because in delta.sampler.retained():
            yield RetainedRequest(record, because, dimensions, delta.own_stages)
