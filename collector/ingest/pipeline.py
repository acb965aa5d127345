"""Ingestion of one request, over HTTP or gRPC: access control, body, batch, commit and response.

The event loop only moves bytes. A body is inflated, decoded and validated in a worker thread and queued for the writer; the
response is sent after the transaction was committed. Metrics and spans need two steps: each body is parsed alone, then all bodies that
arrived at the same time are validated together. Log records are counted and not stored.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ...core import names
from ...core.errors import StagelensError, StoreError, WireError
from ...store import Batch, Series
from ...store.collectors import LOSSES
from ...store.events import Event, event_from_json
from ..config import CollectorConfig
from ..otlp import model
from ..otlp.json_encoding import to_protobuf
from ..otlp.message_classes import check_bulk
from ..otlp.protobuf_encoding import read_metrics
from ..otlp.responses import OtlpResponse, event_response, export_response, failure_response
from ..self_metrics import SelfMetrics
from ..server.auth import AccessControl, AdmittedClient, Caller, RefusedError
from ..server.bodies import (
    HEAD_BYTES,
    MAX_RECEIVE_SECONDS,
    BodyReader,
    DecoderPool,
    DecodeTogether,
    Hold,
    encoding_of,
    identity,
    resource_in,
)
from ..traces.columns import encode_spans
from ..traces.parsed_spans import ParsedSpans
from ..traces.span_reader import SpanReader
from . import writer as committing
from .points import PointReader, read_exports
from .retained_traces import RetainedTraceReader
from .validation import IngestResult, TimeWindow, printable_text
from .writer import FullError, UncommittedError, UnwritableError, Writer

_log = logging.getLogger(__name__)

Endpoint: TypeAlias = model.ExportSignal | Literal["events"]
D = TypeVar("D")
T = TypeVar("T")

MAX_BATCH_NAME_CHARS = 200
# Most clients time out after 10 s.
MAX_COMMIT_SECONDS = 9.0
_MAX_AHEAD_SECONDS = 86_400
# Response, and the loss of `LOSSES` if the export is not counted; the first match counts.
_STATUS_BY_ERROR: tuple[tuple[type[Exception], HTTPStatus, str], ...] = (
    (model.UnsupportedError, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "invalid"),
    (model.BodyTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large"),
    (WireError, HTTPStatus.BAD_REQUEST, "invalid"),
    (FullError, HTTPStatus.TOO_MANY_REQUESTS, "overloaded"),
    (UncommittedError, HTTPStatus.SERVICE_UNAVAILABLE, "not_stored"),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE, "not_stored"),
    (UnwritableError, HTTPStatus.INTERNAL_SERVER_ERROR, "not_stored"),
    (TimeoutError, HTTPStatus.REQUEST_TIMEOUT, "slow"),
)
_REQUESTS: dict[model.ExportSignal, type[Message]] = {
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_LOGS_FIX = "Stagelens does not store logs; set OTEL_LOGS_EXPORTER=none in the sending process"


@dataclass(frozen=True, slots=True)
class Export:
    """A validated export; *resource* is that of its first service."""

    batch: Batch
    tally: IngestResult
    named: bool
    size_bytes: int
    resource: model.Attributes = field(default_factory=dict[str, model.Scalar])

    @property
    def empty(self) -> bool:
        batch = self.batch
        return not (self.named or batch.points or batch.traces or batch.dropped or batch.spans or batch.loads)


@dataclass(frozen=True, slots=True)
class ParsedExport:
    """A parsed export, before its validation; *content* is the number of records for logs."""

    batch_id: str
    content: Sequence[model.ResourceMetrics] | ParsedSpans | int
    named: bool
    size_bytes: int

    def validated(self, batch: Batch, tally: IngestResult, resource: model.Attributes | None = None) -> Export:
        return Export(replace(batch, id=self.batch_id), tally, self.named, self.size_bytes, resource or {})


def read_export(  # noqa: PLR0917 - the export and its readers
    signal: model.ExportSignal,
    media_type: str,
    body: bytes,
    name: str | None,
    window: TimeWindow,
    spans: SpanReader,
    correct: model.Correction | None = None,
) -> Export:
    """Read and validate an inflated OTLP body with batch name *name*."""
    return validate_exports([parse_export(signal, media_type, body, name, spans, correct)], window, spans)[0]


def parse_export(  # noqa: PLR0917 - as `read_export`
    signal: model.ExportSignal,
    media_type: str,
    body: bytes,
    name: str | None,
    spans: SpanReader,
    correct: model.Correction | None = None,
) -> ParsedExport:
    number, size = batch_id(signal, body, name), len(body)
    if media_type == model.JSON:
        body = to_protobuf(body, _REQUESTS[signal])
    match signal:
        case "metrics":
            content = read_metrics(body)
            if correct is not None:
                for item in content:
                    correct(item.resource)
        case "traces":
            content = spans.parse(body, correct)
        case "logs":
            content = _count_records(body)
    # Nothing of logs is stored, so a name is no reason to write a batch.
    return ParsedExport(number, content, name is not None and signal != "logs", size)


def validate_exports(exports: Sequence[ParsedExport], window: TimeWindow, spans: SpanReader) -> list[Export]:
    """Validate *exports* together, in which case they have the same signal; times must lie in *window*."""
    contents = [export.content for export in exports]
    if isinstance(contents[0], ParsedSpans):
        traces = _validate_traces([content for content in contents if isinstance(content, ParsedSpans)], window, spans)
        return [export.validated(*validated_traces) for export, validated_traces in zip(exports, traces, strict=True)]
    if isinstance(contents[0], int):
        return [_ignored_logs(export) for export in exports]
    resources = [content for content in contents if not isinstance(content, int | ParsedSpans)]
    readers = [PointReader(window) for _ in exports]
    read_exports(list(zip(readers, resources, strict=True)))
    return [
        export.validated(
            Batch(
                "", points=reader.points, dropped=reader.dropped, instance=_instance(item.resource for item in items)
            ),
            reader.tally,
            items[0].resource if items else None,
        )
        for export, reader, items in zip(exports, readers, resources, strict=True)
    ]


def _validate_traces(
    exports: Sequence[ParsedSpans], window: TimeWindow, spans: SpanReader
) -> Iterator[tuple[Batch, IngestResult, model.Attributes | None]]:
    readers = [RetainedTraceReader(window) for _ in exports]
    decoded = spans.finish(exports, window, [reader.tally for reader in readers])
    for export, reader, decoded_spans in zip(exports, readers, decoded, strict=True):
        reader.read(export.retained)
        resources = [item.resource for item in export.retained]
        resource: model.Attributes | None = resources[0] if resources else None
        if export.sources:
            source = export.sources[0]
            resource = {names.SERVICE_NAME: source.service, names.ENVIRONMENT: source.environment}
        batch = Batch(
            "",
            traces=reader.traces,
            loads=reader.loads,
            instance=_instance(resources),
            spans=encode_spans(decoded_spans) if len(decoded_spans.rows) else b"",
        )
        yield batch, reader.tally, resource


def _ignored_logs(export: ParsedExport) -> Export:
    tally = IngestResult(ignored=export.content if isinstance(export.content, int) else 0)
    if tally.ignored:
        tally.explain(_LOGS_FIX)
    return export.validated(Batch(""), tally)


def batch_id(signal: model.ExportSignal, body: bytes, name: str | None) -> str:
    """Return the deduplication key of a batch: the name from its sender, or a hash of *body*."""
    if name is None:
        return f"{signal}#{hashlib.blake2b(body, digest_size=16).hexdigest()}"
    if not 0 < len(name) <= MAX_BATCH_NAME_CHARS or not (name.isascii() and name.isprintable()):
        msg = f"{names.BATCH_HEADER} must be 1 to {MAX_BATCH_NAME_CHARS} printable ASCII characters"
        raise WireError(msg)
    return f"{signal}:{name}"


def _instance(resources: Iterable[model.Attributes]) -> str:
    instances = (printable_text(resource.get(names.SERVICE_INSTANCE, "")) for resource in resources)
    return next((instance for instance in instances if instance), "")


def _count_records(body: bytes) -> int:
    check_bulk(body, ExportLogsServiceRequest.DESCRIPTOR)
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError as error:
        msg = "the body is not a valid ExportLogsServiceRequest"
        raise WireError(msg) from error
    return sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)


@dataclass(frozen=True, slots=True)
class IngestRequest:
    endpoint: Endpoint
    media_type: str
    encoding: str | None
    name: str | None
    caller: Caller
    body: Callable[[Hold | None], Awaitable[bytes]]


class IngestPipeline:
    def __init__(
        self,
        config: CollectorConfig,
        *,
        access_control: AccessControl,
        writer: Writer,
        decoders: DecoderPool,
        body_reader: BodyReader,
        metrics: SelfMetrics,
        spans: SpanReader,
        admit_spans: Callable[[int], None],
        add_event: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._access_control, self._writer, self._decoders = access_control, writer, decoders
        self._body_reader, self._metrics = body_reader, metrics
        self._add_event, self._clock = add_event, clock
        self._spans, self._admit_spans = spans, admit_spans
        self.refused = metrics.losses.add_of_sender
        # A function for each signal, because `DecoderPool` calls a function with all exports that wait for it.
        self._validate = {signal: functools.partial(self._validate_together) for signal in _REQUESTS}
        # The names of older batches may already be deleted, so that a retry would count twice.
        self._oldest_seconds = int(config.retention.batches.total_seconds())

    async def handle(self, request: IngestRequest) -> OtlpResponse:
        try:
            reply = await self._ingest(request)
        except (StagelensError, TimeoutError) as error:
            reply = self._failure(request.media_type, error)
        except Exception as error:  # noqa: BLE001 - one bad body must not close the connections of others
            _log.exception("collector: a request could not be read because of an internal error; its sender gets 500")
            message = f"the collector failed ({type(error).__name__}); see its log"
            reply = failure_response(request.media_type, HTTPStatus.INTERNAL_SERVER_ERROR, message)
        self._metrics.request(request.endpoint, reply.status)
        return reply

    async def _ingest(self, request: IngestRequest) -> OtlpResponse:
        match request.endpoint:
            case "events":
                event = await self._receive(request, self._read_event, identity)
                # Not in a decoder thread: a slow store must not block the decoding of exports.
                await _wait_for_commit(asyncio.to_thread(self._add_event, event), "send it again")
                return event_response()
            case "metrics" | "traces" | "logs" as signal:
                read = functools.partial(self._parse, signal, request)
                export = await self._receive(request, read, self._validate[signal])
                return await self._commit_export(signal, request, export)

    async def _commit_export(self, signal: model.ExportSignal, request: IngestRequest, export: Export) -> OtlpResponse:
        tally = export.tally
        try:
            is_new = export.empty or await self._commit(export)
        except (StagelensError, TimeoutError) as error:
            self._lose(request, export.resource, _loss_of(error))
            raise
        if is_new:
            self._metrics.tally(signal, tally)
            if tally.rejected:
                self._lose(request, export.resource, "rejected", tally.rejected.total())
        rejected = tally.rejected.total() + (0 if signal == "metrics" else tally.ignored)
        return export_response(signal, request.media_type, rejected, tally.error_message)

    async def _receive(
        self, request: IngestRequest, read: Callable[[AdmittedClient, bytes], D], together: DecodeTogether[D, T]
    ) -> T:
        """Authenticate the caller of *request*, receive the body, and decode it with *read* and *together*.

        `DecoderPool.read` describes *read* and *together*.
        """
        try:
            admission = self._access_control.admit(request.caller)
            _check_media_type(request)
        except (RefusedError, model.UnsupportedError) as error:
            self.refused(request.caller.address, str(error).partition(";")[0])
            await request.body(None)  # its sender reads the response only after it has sent the body
            raise

        with self._body_reader.held() as hold:
            try:
                body = await request.body(hold)
            except (StagelensError, TimeoutError) as error:
                head = error.head if isinstance(error, model.BodyTooLargeError) else b""
                self._lose_body(request, admission, head, _loss_of(error))
                raise
            self._access_control.received(admission, len(body))
            encoding = encoding_of(body) if request.encoding is None else request.encoding
            with self._writer.decoding():
                try:
                    return await self._decoders.read(body, encoding, functools.partial(read, admission), together)
                except Exception as error:
                    self._lose_body(request, admission, body[:HEAD_BYTES], _loss_of(error))
                    raise

    def _lose_body(self, request: IngestRequest, admission: AdmittedClient, head: bytes, reason: str) -> None:
        encoding = encoding_of(head) if request.encoding is None else request.encoding
        resource = resource_in(head, encoding)
        if names.SERVICE_NAME in resource:
            admission.correct(resource)
        self._lose(request, resource, reason)

    def _lose(self, request: IngestRequest, resource: model.Attributes, reason: str, number: int = 1) -> None:
        service, environment = (
            printable_text(resource.get(key, "")) for key in (names.SERVICE_NAME, names.ENVIRONMENT)
        )
        if request.endpoint == "events":
            return
        if service:
            self._metrics.losses.add(Series(service, environment=environment), reason, number)
        else:
            self.refused(request.caller.address, f"an export {LOSSES[reason].text}")

    def _parse(
        self, signal: model.ExportSignal, request: IngestRequest, admission: AdmittedClient, body: bytes
    ) -> ParsedExport:
        return parse_export(signal, request.media_type, body, request.name, self._spans, admission.correct)

    def _validate_together(self, exports: Sequence[ParsedExport]) -> list[Export]:
        now = int(self._clock())
        window = TimeWindow(now - self._oldest_seconds, now + _MAX_AHEAD_SECONDS)
        return validate_exports(exports, window, self._spans)

    def _read_event(self, _admission: AdmittedClient, body: bytes) -> Event:
        try:
            return event_from_json(body, datetime.fromtimestamp(self._clock(), UTC))
        except ValueError as error:
            raise WireError(str(error)) from error

    async def _commit(self, export: Export) -> bool:
        if export.batch.spans:
            self._admit_spans(len(export.batch.spans))
        sender = asyncio.wrap_future(self._writer.submit(export.batch, export.size_bytes))
        return await _wait_for_commit(sender, committing.QUEUED)

    def _failure(self, media_type: str, error: Exception) -> OtlpResponse:
        if isinstance(error, RefusedError):
            return refusal_response(media_type, error)
        status = next(status for kind, status, _ in _STATUS_BY_ERROR if isinstance(error, kind))
        if status == HTTPStatus.TOO_MANY_REQUESTS and self._metrics.health.is_failing(committing.WRITER_PART):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        close = status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT)
        message = str(error) or f"the body was not received within {MAX_RECEIVE_SECONDS:g} s"
        return failure_response(media_type, status, message, {"Connection": "close"} if close else {})


def refusal_response(media_type: str, error: RefusedError) -> OtlpResponse:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    return failure_response(media_type, error.status, error.message, headers, error.retry_after_seconds)


def _loss_of(error: Exception) -> str:
    return next((reason for kind, _, reason in _STATUS_BY_ERROR if isinstance(error, kind)), "not_stored")


def _check_media_type(request: IngestRequest) -> None:
    wanted = (model.JSON,) if request.endpoint == "events" else (model.PROTOBUF, model.JSON)
    if request.media_type not in wanted:
        msg = f"Content-Type {request.media_type[:60]!r} is not supported; send {' or '.join(wanted)}"
        raise model.UnsupportedError(msg)


async def _wait_for_commit(writing: Awaitable[T], fix: str) -> T:
    """Return the result of *writing*; after `MAX_COMMIT_SECONDS` raise an error whose message ends with *fix*."""
    try:
        async with asyncio.timeout(MAX_COMMIT_SECONDS):
            return await writing
    except TimeoutError as error:
        msg = f"the store has not committed within {MAX_COMMIT_SECONDS:g} s; {fix}"
        raise UncommittedError(msg) from error
