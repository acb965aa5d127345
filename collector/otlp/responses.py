"""Responses to exports: the response message of the signal or a `google.rpc.Status`, in the encoding of the request.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response" and "OTLP/gRPC Response".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import Request
from starlette.responses import Response

from .model import JSON, PROTOBUF, ExportSignal

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
}
# Default retry delays by HTTP status. [seconds]
RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: 1, HTTPStatus.SERVICE_UNAVAILABLE: 5}
# gRPC sends the message twice in headers, which are limited to 8 KiB.
_MAX_MESSAGE_CHARS = 1000

# Response message of each signal, and the name of its count of rejected items in protobuf and JSON.
_RESPONSES = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    "traces": (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    code: int  # a google.rpc.Code
    message: str  # the error and its fix
    retry_after_seconds: int | None  # delay before a retry; None if a retry is useless

    def status(self) -> bytes:
        # The message may quote a request, and protobuf refuses lone surrogates.
        status = Status(code=self.code, message=self.message.encode(errors="replace").decode())
        if self.retry_after_seconds is not None:
            status.details.add().Pack(self._retry_info())
        return status.SerializeToString()

    def retry_info(self) -> bytes:
        return self._retry_info().SerializeToString()

    def _retry_info(self) -> RetryInfo:
        return RetryInfo(retry_delay=Duration(seconds=self.retry_after_seconds or 0))


@dataclass(frozen=True, slots=True)
class OtlpResponse:
    status: HTTPStatus
    media_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    failure: Failure | None = None


def export_response(signal: ExportSignal, media_type: str, rejected: int, message: str) -> OtlpResponse:
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
    return OtlpResponse(HTTPStatus.OK, JSON, b"{}")


def failure_response(
    media_type: str,
    status: HTTPStatus,
    message: str,
    headers: dict[str, str] | None = None,
    retry_after_seconds: int | None = None,
) -> OtlpResponse:
    """Return the response to a failed request; in JSON unless *media_type* is protobuf.

    Responses with status 429 or 503 always have a retry delay, by default that of `RETRY_AFTER`.
    """
    retry = RETRY_AFTER.get(status) if retry_after_seconds is None else retry_after_seconds
    failure = Failure(_GRPC_CODES.get(status, 2), message[:_MAX_MESSAGE_CHARS], retry)  # 2: UNKNOWN
    if media_type == PROTOBUF:
        body = failure.status()
    else:
        body = json.dumps({"code": failure.code, "message": failure.message}).encode()
    all_headers = (headers or {}) | ({} if retry is None else {"Retry-After": str(retry)})
    return OtlpResponse(status, PROTOBUF if media_type == PROTOBUF else JSON, body, all_headers, failure)


def media_type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def http_response(reply: OtlpResponse) -> Response:
    return Response(reply.body, reply.status, reply.headers, media_type=reply.media_type)
