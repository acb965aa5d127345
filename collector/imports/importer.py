"""Import of a file into the store: detects its format, validates its exports, assembles requests, and counts them like live data.

The name of each batch consists of the digest of the file and a number, so the same file counts once, under any name and after any
interruption. Spans wait in memory and not in the inbox of the store, because no other process adds spans to the same requests.

Formats are detected by the keys in a file. OTLP/JSON is one object, or one object a line, as the file exporter of the
OpenTelemetry Collector writes it; a saved run (`stagelens run --save`) has this format. OTLP/JSON is split into small exports:
points by the hundred, and spans by trace, because a retained trace of an agent must be in one export.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core import names
from ...core.errors import WireError
from ...store import Batch, Store
from ...store.inbox import AggregationInput, Parcel
from ...store.points import as_columns
from ...store.retention import IMPORT_PREFIX
from ...store.schema import FINEST
from ..ingest.pipeline import Export, read_export
from ..ingest.validation import Reason, TimeWindow
from ..otlp.json_encoding import Object, object_at, objects
from ..otlp.model import JSON, Attributes
from ..traces.inbox import InboxLimits, InboxOutcome, process_inbox
from ..traces.rule_config import Rule
from ..traces.sampling import SamplingPolicy
from ..traces.span_reader import SpanReader
from .formats import format_of
from .otlp_files import METRICS, SPANS, split_export
from .source import ImportFile
from .spans import import_rules as own_rules

# Size of a transaction. [points and traces]
_ROWS_A_WRITE = 20_000
# Spans of a request may lie this far apart in the file. [bytes]
_HELD_BYTES = 6 * 1024**2
# Rounds that spans without a root are retained; a round of the import is a second for `process_inbox`.
_ORPHAN_ROUNDS = 8
_END = 10**6


@dataclass(slots=True)
class ImportResult:
    """Result of an import; *first* and *last* are the rounded ends of the first and the last request, in Unix seconds, or 0."""

    path: Path
    format: str
    requests: int = 0
    known: int = 0
    spans: int = 0
    services: Counter[str] = field(default_factory=Counter[str])
    first: int = 0
    last: int = 0
    traces: int = 0
    dropped: int = 0
    notes: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])
    broken_count: int = 0

    def count(self, batch: Batch, *, new: bool) -> None:
        """Add the content of *batch*; *new* is False if the store had counted it before."""
        points = [point for point in as_columns(batch.points) if point.metric == names.REQUEST_DURATION]
        requests = sum(point.histogram.count for point in points)
        if not new:
            self.known += requests
            return
        self.requests += requests
        self.dropped += batch.dropped
        self.traces += len(batch.traces)
        for point in points:
            self.services[point.series.service] += point.histogram.count
            bucket = point.at - point.at % FINEST
            self.first = min(self.first or bucket, bucket)
            self.last = max(self.last, bucket)


def import_file(  # noqa: PLR0917 - options of an import
    path: Path,
    store: Store,
    window: TimeWindow,
    rules: Sequence[Rule] = (),
    keep: SamplingPolicy | None = None,
    service: str | None = None,
    environment: str | None = None,
) -> ImportResult:
    """Import the file at *path*.

    Args:
        rules: User rules, applied before the built-in ones.
        service: Service that replaces the services in the file; None for no change.
        environment: Environment that replaces the environments in the file; None for no change.

    Raises:
        ImportFileError: The file cannot be read, or its format is unknown.
        StoreError: The store cannot be written; a repeated import continues after the last write.
    """
    source = ImportFile(path)
    found = format_of(source)
    imported = ImportResult(path, found.title)
    importing = _Importer(
        source, store, window, (*own_rules(), *rules), keep or SamplingPolicy(), imported, service, environment
    )
    for place, export in found.read(source, service):
        importing.take(place, export)
    importing.finish()
    diagnostics = source.diagnostics
    imported.notes += diagnostics.notes
    imported.broken, imported.broken_count = diagnostics.broken, diagnostics.broken_count
    return imported


class _Importer:
    def __init__(  # noqa: PLR0917 - as above
        self,
        source: ImportFile,
        store: Store,
        window: TimeWindow,
        rules: Sequence[Rule],
        keep: SamplingPolicy,
        imported: ImportResult,
        service: str | None,
        environment: str | None,
    ) -> None:
        self._source, self._store, self._window, self._keep, self._imported = source, store, window, keep, imported
        self._service, self._environment = service, environment
        self._reader = SpanReader(lambda: rules)
        self._name = ":".join((IMPORT_PREFIX + source.digest, *(each or "" for each in (service, environment))))
        self._parcels: dict[int, Parcel] = {}
        self._held, self._round, self._parcel = 0, 0, 0
        self._batches: list[Batch] = []
        self._batch = self._rows = 0

    def _correct(self, resource: Attributes) -> None:
        if self._environment is not None:
            resource[names.ENVIRONMENT] = self._environment

    def take(self, place: str, export: Object) -> None:
        try:
            self._read(place, export)
        except WireError:
            # Read each record alone, so that the valid ones count.
            for piece in split_export(export, 1):
                try:
                    self._read(place, piece)
                except WireError as error:
                    self._source.diagnostics.skip(place, str(error))

    def _read(self, place: str, export: Object) -> None:
        if self._service is not None:
            _set_service(export, self._service)
        signal = "metrics" if METRICS in export else "traces"
        body = json.dumps(export, separators=(",", ":")).encode()
        read = read_export(signal, JSON, body, None, self._window, self._reader, self._correct)
        self._tell(place, read)
        batch = read.batch
        if batch.spans:
            self._parcel += 1
            self._parcels[self._parcel] = Parcel(self._round, counted=False, spans=batch.spans, id=self._parcel)
            self._held += len(batch.spans)
        self._add(replace(batch, spans=b""))
        if self._held > _HELD_BYTES:
            self._fold()

    def _tell(self, place: str, read: Export) -> None:
        tally = read.tally
        refused = sum(tally.rejected.values())
        if refused:
            self._source.diagnostics.skip(place or "a record", "; ".join(tally.messages), refused)
        if tally.rejected[Reason.TIME]:
            self._source.diagnostics.note("data older than the retention, or more than a day in the future, is skipped")
        if tally.ignored:
            self._source.diagnostics.note("metrics that Stagelens does not use are ignored")

    def _fold(self, *, end: bool = False) -> None:
        self._round += _END if end else 1
        self._held = 0
        limits = InboxLimits(
            hold_seconds=2, orphan_seconds=_ORPHAN_ROUNDS, remember_seconds=_ORPHAN_ROUNDS, due_bytes=_HELD_BYTES
        )
        more = True
        while more:
            held = self._parcels.values()
            delivery = AggregationInput(
                self._round,
                [parcel for parcel in held if not parcel.counted],
                [parcel for parcel in held if parcel.counted],
                complete=True,
            )
            folded, outcome = process_inbox(delivery, limits, self._keep)
            for number in folded.taken:
                del self._parcels[number]
            for parcel in folded.left:
                self._parcel += 1
                self._parcels[self._parcel] = replace(parcel, id=self._parcel)
            self._report(outcome)
            self._add(Batch("", points=folded.points, traces=list(folded.traces)))
            more = outcome.more

    def _report(self, outcome: InboxOutcome) -> None:
        self._imported.spans += outcome.folded + outcome.late + outcome.repeated + outcome.orphaned + outcome.outside
        lost = {
            "have no root in the file": outcome.orphaned,
            "belong to no request": outcome.outside,
            "come too late after their request in the file": outcome.late,
            "are duplicates": outcome.repeated,
        }
        for why, count in lost.items():
            if count:
                self._source.diagnostics.note(f"spans that {why} are not counted")

    def _add(self, batch: Batch) -> None:
        if not len(batch.points) and not batch.traces and not batch.dropped:
            return
        self._batch += 1
        self._batches.append(replace(batch, id=f"{self._name}:{self._batch}"))
        self._rows += len(batch.points) + len(batch.traces)
        if self._rows >= _ROWS_A_WRITE:
            self._write()

    def _write(self) -> None:
        for batch, new in zip(self._batches, self._store.write(self._batches) if self._batches else (), strict=True):
            self._imported.count(batch, new=new)
        self._batches, self._rows = [], 0

    def finish(self) -> None:
        self._fold(end=True)
        self._write()


def _set_service(export: Object, service: str) -> None:
    mine = {"key": names.SERVICE_NAME, "value": {"stringValue": service}}
    for resource in (*objects(export, METRICS), *objects(export, SPANS)):
        owner = object_at(resource, "resource")
        others = [each for each in objects(owner, "attributes") if each.get("key") != names.SERVICE_NAME]
        resource["resource"] = owner | {"attributes": [*others, mine]}
