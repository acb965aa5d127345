"""OTLP exports, from an inflated body to a batch for the store.

These functions run in a worker thread. Metrics take two steps: each body is parsed alone, then all bodies that arrived at the same
time are validated together. Log records are counted and not stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ...core import names
from ...core.errors import WireError
from ...store import Batch
from ..otlp import json_encoding, protobuf_encoding
from ..otlp.json_encoding import load, objects
from ..otlp.model import Attributes, Correction, ResourceMetrics
from ..otlp.protobuf_encoding import check_bulk
from ..otlp.responses import JSON, ExportSignal
from ..traces.columns import encode
from ..traces.span_reader import SpanReader
from .points import PointReader, Window, read_exports
from .retained_traces import RetainedTraceReader
from .validation import IngestResult, printable_text

Signal: TypeAlias = Literal["metrics", "traces"]

MAX_BATCH_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Export:
    """A validated export.

    Args:
        batch: The batch to write.
        tally: Counts of ignored and rejected items.
        named: Whether the sender gave the batch a name.
        size_bytes: Inflated size.
    """

    batch: Batch
    tally: IngestResult
    named: bool
    size_bytes: int

    @property
    def empty(self) -> bool:
        """Whether nothing has to be written, not even the batch name."""
        batch = self.batch
        return not (
            self.named or batch.points or batch.traces or batch.dropped or batch.spans or batch.loads or batch.onward
        )


@dataclass(frozen=True, slots=True)
class ParsedMetrics:
    """A metrics export whose points are not validated yet.

    Args:
        batch_id: Deduplication key of the batch.
        resources: The metrics.
        named: Whether the sender gave the batch a name.
        size_bytes: Inflated size.
    """

    batch_id: str
    resources: Sequence[ResourceMetrics]
    named: bool
    size_bytes: int

    def judged(self, reader: PointReader) -> Export:
        """Return the export with the points that *reader* has read from it."""
        instance = _instance(item.resource for item in self.resources)
        batch = Batch(id=self.batch_id, points=reader.points, dropped=reader.dropped, instance=instance)
        return Export(batch, reader.tally, self.named, self.size_bytes)


def read_export(  # noqa: PLR0917 - the export and its readers
    signal: Signal,
    media_type: str,
    body: bytes,
    name: str | None,
    window: Window,
    spans: SpanReader,
    correct: Correction | None = None,
) -> Export:
    """Read and validate an inflated OTLP body.

    Args:
        signal: The signal of the OTLP service that received it.
        media_type: Media type of *body*.
        body: The inflated body.
        name: The `X-Stagelens-Batch` header, None without one.
        window: Plausible times.
        spans: Reads spans.
        correct: Corrects the attributes of each resource; None for no correction.

    Raises:
        TooLargeError: The body has more elements than allowed.
        WireError: The body or *name* is malformed.
    """
    if signal == "metrics":
        return validate_metrics([parse_metrics(media_type, body, name, correct)], window)[0]
    batch, tally = _read_traces(batch_id(signal, body, name), media_type, body, window, spans, correct)
    return Export(batch, tally, named=name is not None, size_bytes=len(body))


def parse_metrics(media_type: str, body: bytes, name: str | None, correct: Correction | None = None) -> ParsedMetrics:
    """Parse an inflated export of metrics; arguments and errors are those of `read_export`."""
    number = batch_id("metrics", body, name)
    wire = json_encoding if media_type == JSON else protobuf_encoding
    resources = wire.read_metrics(body)
    if correct is not None:
        for item in resources:
            correct(item.resource)
    return ParsedMetrics(number, resources, name is not None, len(body))


def validate_metrics(exports: Sequence[ParsedMetrics], window: Window) -> list[Export]:
    """Validate *exports* together and return one export for each; times must lie in *window*.

    Raises:
        WireError: A point of one export is malformed.
    """
    readers = [PointReader(window) for _ in exports]
    read_exports(list(zip(readers, [export.resources for export in exports], strict=True)))
    return [export.judged(reader) for export, reader in zip(exports, readers, strict=True)]


def _read_traces(  # noqa: PLR0917 - the export and its readers
    number: str, media_type: str, body: bytes, window: Window, spans: SpanReader, correct: Correction | None
) -> tuple[Batch, IngestResult]:
    reader = RetainedTraceReader(window)
    found, kept = spans.read(media_type, body, window, reader.tally, correct)
    reader.read(kept)
    return Batch(
        id=number,
        traces=reader.traces,
        loads=reader.loads,
        instance=_instance(item.resource for item in kept),
        spans=encode(found) if len(found.rows) else b"",
    ), reader.tally


def batch_id(signal: ExportSignal, body: bytes, name: str | None) -> str:
    """Return the deduplication key of a batch: the name given by its sender, or a hash of *body*.

    Raises:
        WireError: *name* is malformed.
    """
    if name is None:
        return f"{signal}#{hashlib.blake2b(body, digest_size=16).hexdigest()}"
    if not 0 < len(name) <= MAX_BATCH_NAME_CHARS or not (name.isascii() and name.isprintable()):
        msg = f"{names.BATCH_HEADER} must be 1 to {MAX_BATCH_NAME_CHARS} printable ASCII characters"
        raise WireError(msg)
    return f"{signal}:{name}"


def _instance(resources: Iterable[Attributes]) -> str:
    found = (printable_text(resource.get(names.SERVICE_INSTANCE, "")) for resource in resources)
    return next((instance for instance in found if instance), "")


_LOGS_FIX = "Stagelens keeps no logs; set OTEL_LOGS_EXPORTER=none in the sending process, or name somebody under forward: who takes logs"


def read_logs(media_type: str, body: bytes, name: str | None) -> Export:
    """Count the records of an inflated ExportLogsServiceRequest with batch name *name* as ignored.

    Raises:
        TooLargeError: The body has more elements than allowed.
        WireError: The body or *name* is malformed.
    """
    count = _count_json(body) if media_type == JSON else _count_protobuf(body)
    tally = IngestResult(ignored=count)
    if count:
        tally.explain(_LOGS_FIX)
    # The batch is written only if it is forwarded, so its name does not count.
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
