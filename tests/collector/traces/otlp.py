"""Exports of spans as OTLP/JSON and as protobuf for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stagelens.collector.ingest.validation import IngestResult, TimeWindow
from stagelens.collector.otlp.json_encoding import to_protobuf
from stagelens.collector.otlp.model import JSON, Correction, ResourceSpans
from stagelens.collector.traces.columns import Spans
from stagelens.collector.traces.rule_config import Rule
from stagelens.collector.traces.span_reader import SpanReader

ALWAYS = TimeWindow(0, 2**33)
# 2026-11-20 12:00:00 UTC.
NOON_NS = 1_795_176_000 * 10**9
KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def span(
    name: str = "work",
    *,
    kind: str = "internal",
    id: int = 1,  # noqa: A002 - named like the field
    parent: int = 0,
    start_ms: float = 0,
    end_ms: float | None = 100,
    values: Mapping[str, Any] | None = None,
    events: Iterable[tuple[str, float]] = (),
    **fields: Any,
) -> dict[str, Any]:
    return {
        "traceId": f"{7:032x}",
        "spanId": f"{id:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "kind": KINDS[kind],
        "startTimeUnixNano": str(NOON_NS + round(start_ms * 1e6)),
        "endTimeUnixNano": "0" if end_ms is None else str(NOON_NS + round(end_ms * 1e6)),
        "attributes": attributes(values or {}),
        "events": [{"name": event, "timeUnixNano": str(NOON_NS + round(at * 1e6))} for event, at in events],
        **fields,
    }


def export(*spans: dict[str, Any], scope: str = "theirs", resource: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found = {"service.name": "shop"} if resource is None else resource
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes(found)},
                "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}],
            }
        ]
    }


def as_protobuf(body: dict[str, Any]) -> bytes:
    body = json.loads(json.dumps(body))
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for each in scope["spans"]:
                for key in each.keys() & {"traceId", "spanId", "parentSpanId"}:
                    each[key] = base64.b64encode(bytes.fromhex(each[key])).decode()
    return ParseDict(body, ExportTraceServiceRequest()).SerializeToString()


def read(body: dict[str, Any], own: Sequence[Rule] = (), tally: IngestResult | None = None) -> Spans:
    return read_spans(SpanReader(lambda: own), JSON, json.dumps(body).encode(), ALWAYS, tally or IngestResult()).spans


class ReadSpans(NamedTuple):
    spans: Spans
    retained: list[ResourceSpans]


def read_spans(  # noqa: PLR0917 - the export and its limits
    reader: SpanReader,
    media_type: str,
    body: bytes,
    window: TimeWindow,
    tally: IngestResult,
    correct: Correction | None = None,
) -> ReadSpans:
    parsed = reader.parse(to_protobuf(body, ExportTraceServiceRequest) if media_type == JSON else body, correct)
    return ReadSpans(reader.finish([parsed], window, [tally])[0], parsed.retained)
