"""Whole exports and bodies, put together from what is right, for `targets` to break."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import zstandard
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collector.traces.otlp import as_protobuf
from tests.fuzz import valid

Signal = Literal["metrics", "traces"]


def metrics(rng: random.Random) -> dict[str, Any]:
    return _of_metrics(rng.sample(valid.METRICS, rng.randint(1, 4)))


def _of_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    scope = {"scope": {"name": "stagelens"}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": valid.RESOURCE}, "scopeMetrics": [scope]}]}


def spans(rng: random.Random) -> dict[str, Any]:
    return _of_spans(rng.sample(list(valid.SPANS), rng.randint(1, 2)))


def _of_spans(scopes: Sequence[str]) -> dict[str, Any]:
    found = [{"scope": {"name": scope}, "spans": valid.SPANS[scope]} for scope in scopes]
    return {"resourceSpans": [{"resource": {"attributes": valid.RESOURCE}, "scopeSpans": found}]}


@cache
def messages(signal: Signal) -> Sequence[Message]:
    if signal == "metrics":
        wholes = [_of_metrics([metric]) for metric in valid.METRICS] + [_of_metrics(valid.METRICS)]
        return [ParseDict(whole, ExportMetricsServiceRequest()) for whole in wholes]
    wholes = [_of_spans([scope]) for scope in valid.SPANS] + [_of_spans(list(valid.SPANS))]
    return [ExportTraceServiceRequest.FromString(as_protobuf(whole)) for whole in wholes]


def deflated(encoding: str, rng: random.Random) -> bytes:
    plain = rng.randbytes(rng.randrange(300)) + bytes(rng.choice((0, 1000, 99_000, 200_000)))
    if encoding == "gzip":
        return gzip.compress(plain, rng.randint(1, 9))
    size, checked = rng.random() < 0.5, rng.random() < 0.5
    return zstandard.ZstdCompressor(rng.randint(1, 5), write_content_size=size, write_checksum=checked).compress(plain)
