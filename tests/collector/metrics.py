"""Exports: in JSON, as the collector reads them, from the SDK, and random ones."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from stagelens.collector.ingest.points import PointReader
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp.json_encoding import to_protobuf
from stagelens.collector.otlp.model import ResourceMetrics
from stagelens.collector.otlp.protobuf_encoding import read_metrics
from stagelens.core import names
from stagelens.core.varint import encode_varint
from tests.fuzz import exports, mutate
from tests.fuzz.exports import Signal

DAY = 86_400
DELTA: dict[type, AggregationTemporality] = {Histogram: AggregationTemporality.DELTA}


def read_json(body: dict[str, Any] | bytes) -> list[ResourceMetrics]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_metrics(to_protobuf(sent, ExportMetricsServiceRequest))


def length_delimited(number: int, content: bytes) -> bytes:
    """Return field *number* of a protobuf message."""
    return bytes([number << 3 | 2]) + encode_varint(len(content)) + content


def drawn(rng: random.Random, signal: Signal = "traces") -> Any:
    """Return an export with some fields changed."""
    message = rng.choice(exports.messages(signal))
    for _ in range(rng.randrange(4)):
        message = mutate.message(message, rng)
    return message


def points_of(*export: ResourceMetrics) -> PointReader:
    now = int(time.time())
    reader = PointReader(TimeWindow(now - DAY, now + DAY))
    reader.read(export)
    return reader


def export_requests(exporter: MetricExporter, count: int) -> None:
    """Send a latency histogram of *count* requests, and a counter of another program."""
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    view = View(instrument_name=names.REQUEST_DURATION, aggregation=ExponentialBucketHistogramAggregation())
    resource = Resource({names.SERVICE_NAME: "sdk", names.SERVICE_VERSION: "2", names.SERVICE_INSTANCE: "i"})
    provider = MeterProvider([reader], resource, views=[view])
    meter = provider.get_meter("mine")
    meter.create_counter("of.my.own").add(1)
    recorded = meter.create_histogram(names.REQUEST_DURATION, "s")
    for number in range(1, count + 1):
        recorded.record(number / 1000, {names.ROUTE: "/predict", names.DOMINANT: "forward"})
    provider.shutdown()
