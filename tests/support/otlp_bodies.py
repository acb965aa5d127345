"""Posts of the agent, decoded by OpenTelemetry's own classes, like in every other backend."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def read_metrics(body: bytes) -> dict[str, Any]:
    """Return a gzipped body of metrics in OTLP's JSON form, with the values that protobuf does not write."""
    return _as_json(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))


def read_traces(body: bytes) -> dict[str, Any]:
    """Return a gzipped body of spans in the same form; ids are hexadecimal there, unlike all other bytes."""
    found = _as_json(ExportTraceServiceRequest.FromString(gzip.decompress(body)))
    for resource in found["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.update({key: base64.b64decode(span[key]).hex() for key in IDS})
    return found


def read_body(path: str, body: bytes) -> dict[str, Any]:
    return read_metrics(body) if path.endswith("/v1/metrics") else read_traces(body)


def _as_json(message: Any) -> dict[str, Any]:
    return MessageToDict(message, always_print_fields_with_no_presence=True, use_integers_for_enums=True)
