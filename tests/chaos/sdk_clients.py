"""Services with the OpenTelemetry SDK, whose exports are repeated until they are acknowledged.

The SDK's exporters try for a while, and then forget; all that is ours here is that they are asked once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace as tracing
from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc_metrics
from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc_spans
from opentelemetry.exporter.otlp.proto.http import metric_exporter as http_metrics
from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_spans
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stagelens.core import names

if TYPE_CHECKING:
    from tests.chaos.senders import Work

_TIMEOUT_SECONDS = 2
_ROUTES = ("/predict", "/embed")
_DELTA: dict[type, AggregationTemporality] = {Histogram: AggregationTemporality.DELTA}
_EXPONENTIAL: dict[type, Any] = {Histogram: ExponentialBucketHistogramAggregation(max_scale=5)}


class _Persistent(MetricExporter):
    def __init__(self, work: Work, inner: MetricExporter) -> None:
        super().__init__(_DELTA, _EXPONENTIAL)
        self._work, self._inner = work, inner

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any) -> MetricExportResult:
        del timeout_millis, kwargs
        _until(self._work, lambda: self._inner.export(metrics_data) is MetricExportResult.SUCCESS)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
        del timeout_millis, kwargs


def _until(work: Work, acknowledged: Callable[[], bool]) -> None:
    logging.disable()  # it says with every attempt that it failed
    while not acknowledged():
        time.sleep(work.rng.uniform(0, 0.1))


def measure(work: Work, exporter: MetricExporter) -> None:
    reader = PeriodicExportingMetricReader(_Persistent(work, exporter), export_interval_millis=float("inf"))
    provider = MeterProvider([reader], Resource({names.SERVICE_NAME: work.service}), shutdown_on_exit=False)
    histogram = provider.get_meter("chaos").create_histogram(names.REQUEST_DURATION, "s")
    for burst in work.bursts():
        for _ in range(burst):
            attributes = {names.ROUTE: work.rng.choice(_ROUTES), names.DOMINANT: "forward"}
            histogram.record(work.rng.uniform(0.001, 0.4), attributes)
            work.sent.requests[work.service] += 1
        reader.collect()


def trace(work: Work, exporter: SpanExporter) -> None:
    finished = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({names.SERVICE_NAME: work.service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("chaos")
    for burst in work.bursts():
        for _ in range(burst):
            _trace_one(work, tracer)
        spans: list[ReadableSpan] = list(finished.get_finished_spans())
        finished.clear()
        work.rng.shuffle(spans)
        for start in range(0, len(spans), 16):
            _send(work, exporter, spans[start : start + 16])


def _trace_one(work: Work, tracer: tracing.Tracer) -> None:
    lengths_us = [work.rng.randint(1, 40_000) for _ in range(3)]
    start = at = time.time_ns() - sum(lengths_us) * 1000
    attributes = {"http.request.method": "POST", names.ROUTE: work.rng.choice(_ROUTES), names.HTTP_STATUS: 200}
    root = tracer.start_span("POST", kind=tracing.SpanKind.SERVER, start_time=start, attributes=attributes)
    inside = tracing.set_span_in_context(root)
    for length_us in lengths_us[:2]:
        called = {"http.request.method": "GET", "server.address": "features"}
        call = tracer.start_span("GET", inside, tracing.SpanKind.CLIENT, start_time=at, attributes=called)
        at += length_us * 1000
        call.end(at)
    root.end(at + lengths_us[2] * 1000)
    work.sent.add(work.service, {"": sum(lengths_us)})


def _send(work: Work, exporter: SpanExporter, spans: Sequence[ReadableSpan]) -> None:
    _until(work, lambda: exporter.export(spans) is SpanExportResult.SUCCESS)


def send(kind: str, work: Work, address: str) -> None:
    metrics: dict[str, Any] = {
        "timeout": _TIMEOUT_SECONDS,
        "preferred_temporality": _DELTA,
        "preferred_aggregation": _EXPONENTIAL,
    }
    match kind:
        case "sdk":
            measure(work, http_metrics.OTLPMetricExporter(f"{address}/v1/metrics", **metrics))
        case "grpc":
            measure(work, grpc_metrics.OTLPMetricExporter(address, insecure=True, **metrics))
        case "spans":
            trace(work, http_spans.OTLPSpanExporter(f"{address}/v1/traces", timeout=_TIMEOUT_SECONDS))
        case _:
            trace(work, grpc_spans.OTLPSpanExporter(address, insecure=True, timeout=_TIMEOUT_SECONDS))
