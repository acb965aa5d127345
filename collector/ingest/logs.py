"""Log records, of which Stagelens keeps none: how many came, and what to do about it where nobody else takes them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ...core.errors import WireError
from ...store import Batch
from ..otlp.json_fields import load, objects
from ..otlp.protobuf_bulk import check_bulk
from ..otlp.responses import JSON
from .export import Export, batch_id
from .validation import Tally

_CURE = "Stagelens keeps no logs; set OTEL_LOGS_EXPORTER=none in the sending process, or name somebody under forward: who takes logs"


def read_logs(media_type: str, body: bytes, name: str | None) -> Export:
    """Count the records of an inflated ExportLogsServiceRequest, which its sender calls *name*, as ignored.

    Raises:
        TooLargeError: It has more elements than the collector holds.
        WireError: It is malformed, or *name* is.
    """
    count = _count_json(body) if media_type == JSON else _count_protobuf(body)
    tally = Tally(ignored=count)
    if count:
        tally.explain(_CURE)
    # It is written if it is to be sent on, and not for its name alone.
    return Export(Batch(batch_id("logs", body, name)), tally, named=False, size_bytes=len(body))


def _count_protobuf(body: bytes) -> int:
    check_bulk(body, ExportLogsServiceRequest.DESCRIPTOR)
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError as error:
        msg = "the body is not a valid ExportLogsServiceRequest"
        raise WireError(msg) from error
    return sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)


def _count_json(body: bytes) -> int:
    return sum(
        len(objects(scope, "logRecords"))
        for resource in objects(load(body), "resourceLogs")
        for scope in objects(resource, "scopeLogs")
    )
