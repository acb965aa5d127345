"""What the collector answers, in the encoding it was asked in.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response": 200 with the signal's response message, anything else
with a `google.rpc.Status`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

PROTOBUF, JSON = "application/x-protobuf", "application/json"

# google/rpc/code.proto
_CODES = {
    HTTPStatus.BAD_REQUEST: 3,  # INVALID_ARGUMENT
    HTTPStatus.NOT_FOUND: 5,  # NOT_FOUND
    HTTPStatus.METHOD_NOT_ALLOWED: 12,  # UNIMPLEMENTED
    HTTPStatus.REQUEST_TIMEOUT: 4,  # DEADLINE_EXCEEDED
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: 3,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: 3,
    HTTPStatus.TOO_MANY_REQUESTS: 8,  # RESOURCE_EXHAUSTED
    HTTPStatus.INTERNAL_SERVER_ERROR: 13,  # INTERNAL
    HTTPStatus.SERVICE_UNAVAILABLE: 14,  # UNAVAILABLE
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, ready to send."""

    status: HTTPStatus
    media_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


def metrics_reply(media_type: str, rejected: int, message: str) -> Reply:
    """Answer an export of metrics that was taken in, but for *rejected* points."""
    if media_type == JSON:
        return _accepted_json("rejectedDataPoints", rejected, message)
    response = ExportMetricsServiceResponse()
    if rejected or message:
        response.partial_success.rejected_data_points = rejected
        response.partial_success.error_message = message
    return Reply(HTTPStatus.OK, PROTOBUF, response.SerializeToString())


def traces_reply(media_type: str, rejected: int, message: str) -> Reply:
    """Answer an export of spans that was taken in, but for *rejected* spans."""
    if media_type == JSON:
        return _accepted_json("rejectedSpans", rejected, message)
    response = ExportTraceServiceResponse()
    if rejected or message:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = message
    return Reply(HTTPStatus.OK, PROTOBUF, response.SerializeToString())


def event_reply() -> Reply:
    """Answer an event that was kept."""
    return Reply(HTTPStatus.OK, JSON, b"{}")


def failure(media_type: str, status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> Reply:
    """Answer a request that was not taken in; any *media_type* but protobuf gets JSON."""
    code = _CODES.get(status, 2)  # UNKNOWN
    if media_type == PROTOBUF:
        body = _status_message(code, message.encode(errors="replace"))
    else:
        body = json.dumps({"code": code, "message": message}).encode()
    return Reply(status, PROTOBUF if media_type == PROTOBUF else JSON, body, headers or {})


def _accepted_json(key: str, rejected: int, message: str) -> Reply:
    partial = {"partialSuccess": {key: str(rejected), "errorMessage": message}}
    return Reply(HTTPStatus.OK, JSON, json.dumps(partial if rejected or message else {}).encode())


def _status_message(code: int, message: bytes) -> bytes:
    """Encode a google.rpc.Status {int32 code = 1; string message = 2}: two fields are not worth a dependency."""
    length = bytearray()
    left = len(message)
    while left > 0x7F:  # noqa: PLR2004 - a varint carries seven bits a byte
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes((1 << 3, code, 2 << 3 | 2)) + bytes(length) + message
