"""What the collector answers, in the encoding it was asked in.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response" and "OTLP/gRPC Response": the signal's response message,
or a `google.rpc.Status`, with `RetryInfo` where sending it again is of use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, TypeAlias

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import Request
from starlette.responses import Response

PROTOBUF, JSON = "application/x-protobuf", "application/json"

ExportSignal: TypeAlias = Literal["metrics", "traces", "logs"]

# google/rpc/code.proto
_GRPC_CODES = {
    HTTPStatus.BAD_REQUEST: 3,  # INVALID_ARGUMENT
    HTTPStatus.UNAUTHORIZED: 16,  # UNAUTHENTICATED
    HTTPStatus.FORBIDDEN: 7,  # PERMISSION_DENIED
    HTTPStatus.NOT_FOUND: 5,  # NOT_FOUND
    HTTPStatus.METHOD_NOT_ALLOWED: 12,  # UNIMPLEMENTED
    HTTPStatus.REQUEST_TIMEOUT: 4,  # DEADLINE_EXCEEDED
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: 3,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: 3,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: 3,
    HTTPStatus.TOO_MANY_REQUESTS: 8,  # RESOURCE_EXHAUSTED
    HTTPStatus.INTERNAL_SERVER_ERROR: 13,  # INTERNAL
    HTTPStatus.SERVICE_UNAVAILABLE: 14,  # UNAVAILABLE
    HTTPStatus.LOOP_DETECTED: 6,  # ALREADY_EXISTS
}
# A sender that is told to come back is always told when. [seconds]
RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: 1, HTTPStatus.SERVICE_UNAVAILABLE: 5}
# In gRPC it travels twice in headers, of which there may be 8 KiB.
_MAX_MESSAGE_CHARS = 1000
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"

# The response message of a signal, and what it calls the things that were refused.
_RESPONSES = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    "traces": (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a reply says that is none of success.

    Args:
        code: Of google.rpc.Code.
        message: What was wrong and what to do.
        retry_after_seconds: When to send it again; None where that is useless.
    """

    code: int
    message: str
    retry_after_seconds: int | None

    def status(self) -> bytes:
        """Encode it as a google.rpc.Status {int32 code = 1; string message = 2; repeated Any details = 3}."""
        details = b""
        if self.retry_after_seconds is not None:
            details = _field(3, _field(1, _RETRY_INFO) + _field(2, self.retry_info()))
        return bytes((1 << 3, self.code)) + _field(2, self.message.encode(errors="replace")) + details

    def retry_info(self) -> bytes:
        """Encode when to send it again as a google.rpc.RetryInfo {Duration {int64 seconds = 1} retry_delay = 1}."""
        return _field(1, bytes((1 << 3,)) + _varint(self.retry_after_seconds or 0))


@dataclass(frozen=True, slots=True)
class OtlpResponse:
    """An answer, ready to send."""

    status: HTTPStatus
    media_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    failure: Failure | None = None


def export_response(signal: ExportSignal, media_type: str, rejected: int, message: str) -> OtlpResponse:
    """Answer an export of *signal* that was taken in, but for *rejected* of its points, spans or records."""
    response_type, name, json_name = _RESPONSES[signal]
    if media_type == JSON:
        partial = {"partialSuccess": {json_name: str(rejected), "errorMessage": message}}
        return OtlpResponse(HTTPStatus.OK, JSON, json.dumps(partial if rejected or message else {}).encode())
    response = response_type()
    if rejected or message:
        setattr(response.partial_success, name, rejected)
        response.partial_success.error_message = message
    return OtlpResponse(HTTPStatus.OK, PROTOBUF, response.SerializeToString())


def event_response() -> OtlpResponse:
    """Answer an event that was kept."""
    return OtlpResponse(HTTPStatus.OK, JSON, b"{}")


def failure_response(
    media_type: str,
    status: HTTPStatus,
    message: str,
    headers: dict[str, str] | None = None,
    retry_after_seconds: int | None = None,
) -> OtlpResponse:
    """Answer a request that was not taken in; any *media_type* but protobuf gets JSON.

    With 429 and 503 it says when to come back, be it in *retry_after_seconds* or not.
    """
    retry = RETRY_AFTER.get(status) if retry_after_seconds is None else retry_after_seconds
    failure = Failure(_GRPC_CODES.get(status, 2), message[:_MAX_MESSAGE_CHARS], retry)  # 2: UNKNOWN
    if media_type == PROTOBUF:
        body = failure.status()
    else:
        body = json.dumps({"code": failure.code, "message": failure.message}).encode()
    said = (headers or {}) | ({} if retry is None else {"Retry-After": str(retry)})
    return OtlpResponse(status, PROTOBUF if media_type == PROTOBUF else JSON, body, said, failure)


def media_type_of(request: Request) -> str:
    """Return the media type of the body of *request*, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def http_response(reply: OtlpResponse) -> Response:
    """Return *reply* as what the server sends."""
    return Response(reply.body, reply.status, reply.headers, media_type=reply.media_type)


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field: a handful of them is not worth a dependency."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - a varint carries seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
