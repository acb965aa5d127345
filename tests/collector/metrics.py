"""Exports of metrics in JSON, as the collector reads them."""

from __future__ import annotations

import json
import time
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from stagelens.collector.ingest.points import PointReader
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp.json_encoding import to_protobuf
from stagelens.collector.otlp.model import ResourceMetrics
from stagelens.collector.otlp.protobuf_encoding import read_metrics

DAY = 86_400


def read_json(body: dict[str, Any] | bytes) -> list[ResourceMetrics]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_metrics(to_protobuf(sent, ExportMetricsServiceRequest))


def points_of(*export: ResourceMetrics) -> PointReader:
    now = int(time.time())
    reader = PointReader(TimeWindow(now - DAY, now + DAY))
    reader.read(export)
    return reader
