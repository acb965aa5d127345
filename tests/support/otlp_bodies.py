"""Posts of agents: made by the agent's encoder, and decoded by OpenTelemetry's own classes, like in every other backend."""

from __future__ import annotations

import base64
import gzip
import time
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stagelens.core import names
from stagelens.core.request_histograms import RequestHistograms
from stagelens.instrumentors.agent.aggregate import Dimensions
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval

IDS = ("traceId", "spanId", "parentSpanId")
AGENT_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


def agent_body(
    service: str, counts: RequestHistograms, end_ns: int | None = None, *, version: str = "", route: str = ""
) -> bytes:
    """Return what an agent sends of *counts*, in the ten seconds before *end_ns* or now."""
    end_ns = time.time_ns() if end_ns is None else end_ns
    resource = {names.SERVICE_NAME: service, names.SERVICE_VERSION: version}
    series = [(Dimensions("", "", route, "", names.STATUS_OK), counts.histograms())]
    return Encoder(resource, lambda: None).points(ExportInterval(end_ns - 10**10, end_ns), series)


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
