"""OTLP exports and responses.

`protobuf_encoding` and `json_encoding` build the objects of an export; `ingest.points` and `ingest.retained_traces` validate them.
Fields that the collector does not use are left out: non-scalar attributes, exemplars and links. Times are Unix nanoseconds, as in
OTLP. A response has the encoding of its request.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response" and "OTLP/gRPC Response": the response message of the signal,
or a `google.rpc.Status`, with `RetryInfo` where a retry is useful.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from numpy.typing import NDArray
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import Request
from starlette.responses import Response

from ...core import names
from ...core.errors import WireError
from ...core.hardware import BY_METRIC
from ...store.points import Buckets, Floats, Ints

Scalar: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Scalar]
Unsigned = NDArray[np.uint64]
Flags = NDArray[np.bool_]
# Changes the attributes of a resource before validation: an authenticated sender may not claim any environment.
Correction: TypeAlias = Callable[[Attributes], None]

# opentelemetry/proto/metrics/v1/metrics.proto, AggregationTemporality and DataPointFlags.
DELTA, CUMULATIVE = 1, 2
NO_RECORDED_VALUE = 1

# The names of a metric's `data` field in OTLP/JSON.
EXPONENTIAL_HISTOGRAM, GAUGE, SUM = "exponentialHistogram", "gauge", "sum"
KINDS = (GAUGE, SUM, "histogram", EXPONENTIAL_HISTOGRAM, "summary")
# Only points of these metrics are decoded; points of other metrics are only counted.
WANTED = {**dict.fromkeys(names.METRICS, EXPONENTIAL_HISTOGRAM), names.REQUESTS_DROPPED: SUM}


def is_wanted(name: str, kind: str) -> bool:
    return WANTED.get(name) == kind or (name in BY_METRIC and kind in (GAUGE, SUM))


_TWO_TO_64 = 2**64

# Limits of one export. An object (resource, metric, point, attribute) costs a few hundred bytes and a few microseconds, an
# element (mostly bucket counts) up to 60 bytes, and either as little as two bytes on the wire, so the size of a body alone is
# no limit. The largest exports of the agent have a tenth of this.
MAX_OBJECTS = 250_000
MAX_ELEMENTS = 2_000_000


class BodyTooLargeError(WireError):
    """The payload exceeds a size limit; *head* is its start as received, if known."""

    def __init__(self, message: str, head: bytes = b"") -> None:
        super().__init__(message)
        self.head = head


class UnsupportedError(WireError):
    """The media type or Content-Encoding of the payload is not supported."""


@dataclass(slots=True)
class HistogramPoint:
    attributes: Attributes  # scalar attributes
    start_ns: int  # start of the interval (start_ns, time_ns] [Unix nanoseconds]
    time_ns: int  # end of the interval [Unix nanoseconds]
    flags: int  # DataPointFlags of OTLP
    count: int  # number of values
    sum: float | None  # sum of the values; None if it was not sent
    scale: int  # binary logarithm of the number of buckets per doubling
    zero: int  # number of zero values
    offset: int  # index of the first positive bucket
    counts: Sequence[int]  # counts of the positive buckets, starting at *offset*
    negative: bool  # whether any value was negative


@dataclass(frozen=True, slots=True)
class HistogramColumns:
    """Data points in columns; the fields are those of `HistogramPoint`, each of shape (n,)."""

    odd: Flags  # mask of the points that could not be decoded here; their other columns are arbitrary
    attributes: Sequence[bytes] | Sequence[Attributes]  # attributes of each point, parsed or serialized
    start_ns: Unsigned
    time_ns: Unsigned
    count: Unsigned
    has_sum: Flags  # whether the point has a sum
    sum: Floats  # sum of the values of each point; arbitrary without a sum
    scale: Ints
    zero: Unsigned
    lengths: Ints  # number of positive buckets of each point, including empty ones
    buckets: Buckets  # non-empty buckets; a count of 2**63 or more, or with an overlong encoding, is negative


def from_points(points: Sequence[HistogramPoint]) -> HistogramColumns:
    """Return *points* as columns; points with flags, negative values or a number out of range are odd."""
    numbers = np.array([_numbers(point) for point in points], np.uint64).reshape(-1, 5)
    lengths = np.array([len(point.counts) for point in points], np.int64)
    offset = np.array([point.offset for point in points], np.int64)
    counts = _signed([count for point in points for count in point.counts])
    ends = np.cumsum(lengths)
    where = np.flatnonzero(counts)
    offsets = np.searchsorted(where, np.concatenate((np.zeros(1, np.int64), ends)))
    index = where + np.repeat(offset - ends + lengths, np.diff(offsets))
    return HistogramColumns(
        odd=numbers[:, 0] != 0,
        attributes=[point.attributes for point in points],
        start_ns=numbers[:, 1],
        time_ns=numbers[:, 2],
        count=numbers[:, 3],
        has_sum=np.array([point.sum is not None for point in points], bool),
        sum=np.array([point.sum or 0.0 for point in points], np.float64),
        scale=np.array([point.scale for point in points], np.int64),
        zero=numbers[:, 4],
        lengths=lengths,
        buckets=Buckets(offsets, index, counts[where]),
    )


def _signed(counts: Sequence[int]) -> Ints:
    try:
        return np.array(counts, np.int64)
    except OverflowError:
        return np.array([count if count < _TWO_TO_64 // 2 else -1 for count in counts], np.int64)


def _numbers(point: HistogramPoint) -> tuple[int, ...]:
    numbers = point.start_ns, point.time_ns, point.count, point.zero
    if point.flags or point.negative or not all(0 <= number < _TWO_TO_64 for number in numbers):
        return 1, 0, 0, 0, 0
    return 0, *numbers


@dataclass(slots=True)
class NumberPoint:
    value: int | float
    attributes: Attributes
    start_ns: int  # start of the interval of a sum, (start_ns, time_ns]; 0 if it was not sent [Unix nanoseconds]
    time_ns: int  # end of the interval of a sum, or time of a gauge [Unix nanoseconds]
    flags: int


@dataclass(slots=True)
class Metric:
    name: str
    kind: str  # one of `KINDS`, "" for an unknown kind
    size: int  # number of data points
    temporality: int = 0  # AggregationTemporality of OTLP
    monotonic: bool = False
    # Points of a wanted exponential histogram; those of protobuf are serialized.
    histograms: Sequence[HistogramPoint] | Sequence[bytes] = field(default_factory=list[HistogramPoint])
    numbers: list[NumberPoint] = field(default_factory=list[NumberPoint])  # points of a wanted sum or gauge, decoded


@dataclass(slots=True)
class ResourceMetrics:
    resource: Attributes
    metrics: list[Metric]


class SpanEvent(NamedTuple):
    """Span event; *time_ns* is in Unix nanoseconds."""

    name: str
    time_ns: int


@dataclass(slots=True)
class RetainedSpan:
    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    parent_id: str  # 16 hexadecimal digits, "" for a root
    name: str
    start_ns: int  # start time [Unix nanoseconds]
    end_ns: int  # end time [Unix nanoseconds]
    error: bool  # whether the status is an error
    attributes: Attributes


@dataclass(slots=True)
class ResourceSpans:
    resource: Attributes
    spans: list[RetainedSpan]


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
        """Encode the failure as a google.rpc.Status; its details contain a RetryInfo if a retry is useful."""
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
    """Return the response to an ingested export of *signal* with *rejected* invalid points, spans or records."""
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
