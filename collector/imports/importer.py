"""Import of a file into the store, where its requests count like live data.

The name of each batch consists of the digest of the file and a number, so the same file counts once, under any name and after any
interruption. Spans wait in memory and not in the inbox of the store, because no other process adds spans to the same requests.
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
from .spans import import_rules

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
    """Import the file at *path* with user *rules*; *service* and *environment* replace those in the file.

    Raises ImportFileError, and StoreError if the store cannot be written; a repeated import continues after the last write.
    """
    source = ImportFile(path)
    file_format = format_of(source)
    imported = ImportResult(path, file_format.title)
    reader, keep = SpanReader(lambda: (*import_rules(), *rules)), keep or SamplingPolicy()
    importing = _Importer(source, imported, store, window, keep, reader, service, environment)
    for location, export in file_format.read(source, service):
        importing.take(location, export)
    importing.finish()
    diagnostics = source.diagnostics
    imported.notes += diagnostics.notes
    imported.broken, imported.broken_count = diagnostics.broken, diagnostics.broken_count
    return imported


@dataclass
class _Importer:
    source: ImportFile
    imported: ImportResult
    store: Store
    window: TimeWindow
    keep: SamplingPolicy
    reader: SpanReader
    service: str | None
    environment: str | None
    # Spans that wait for the others of their requests, and their size.
    parcels: dict[int, Parcel] = field(default_factory=dict[int, Parcel])
    last_parcel: int = 0
    held_bytes: int = 0
    round: int = 0
    # Batches of the next transaction, and the number of their points and traces.
    batches: list[Batch] = field(default_factory=list[Batch])
    last_batch: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        return ":".join((IMPORT_PREFIX + self.source.digest, self.service or "", self.environment or ""))

    def _correct(self, resource: Attributes) -> None:
        if self.environment is not None:
            resource[names.ENVIRONMENT] = self.environment

    def take(self, location: str, export: Object) -> None:
        try:
            self._read(location, export)
        except WireError:
            # Read each record alone, so that the valid ones count.
            for piece in split_export(export, 1):
                try:
                    self._read(location, piece)
                except WireError as error:
                    self.source.diagnostics.skip(location, str(error))

    def _read(self, location: str, export: Object) -> None:
        if self.service is not None:
            _set_service(export, self.service)
        signal = "metrics" if METRICS in export else "traces"
        body = json.dumps(export, separators=(",", ":")).encode()
        read = read_export(signal, JSON, body, None, self.window, self.reader, self._correct)
        self._report_rejected(location, read)
        batch = read.batch
        if batch.spans:
            self.last_parcel += 1
            self.parcels[self.last_parcel] = Parcel(self.round, counted=False, spans=batch.spans, id=self.last_parcel)
            self.held_bytes += len(batch.spans)
        self._add(replace(batch, spans=b""))
        if self.held_bytes > _HELD_BYTES:
            self._aggregate()

    def _report_rejected(self, location: str, read: Export) -> None:
        tally = read.tally
        refused = sum(tally.rejected.values())
        if refused:
            self.source.diagnostics.skip(location or "a record", "; ".join(tally.messages), refused)
        if tally.rejected[Reason.TIME]:
            self.source.diagnostics.note("data older than the retention, or more than a day in the future, is skipped")
        if tally.ignored:
            self.source.diagnostics.note("metrics that Stagelens does not use are ignored")

    def _aggregate(self, *, end: bool = False) -> None:
        self.round += _END if end else 1
        self.held_bytes = 0
        limits = InboxLimits(
            hold_seconds=2, orphan_seconds=_ORPHAN_ROUNDS, remember_seconds=_ORPHAN_ROUNDS, due_bytes=_HELD_BYTES
        )
        more = True
        while more:
            held = self.parcels.values()
            delivery = AggregationInput(
                self.round,
                [parcel for parcel in held if not parcel.counted],
                [parcel for parcel in held if parcel.counted],
                complete=True,
            )
            aggregated, outcome = process_inbox(delivery, limits, self.keep)
            for number in aggregated.remove_ids:
                del self.parcels[number]
            for parcel in aggregated.remaining:
                self.last_parcel += 1
                self.parcels[self.last_parcel] = replace(parcel, id=self.last_parcel)
            self._report(outcome)
            self._add(Batch("", points=aggregated.points, traces=list(aggregated.traces)))
            more = outcome.more

    def _report(self, outcome: InboxOutcome) -> None:
        self.imported.spans += outcome.aggregated + outcome.late + outcome.repeated + outcome.orphaned + outcome.outside
        lost = {
            "have no root in the file": outcome.orphaned,
            "belong to no request": outcome.outside,
            "come too late after their request in the file": outcome.late,
            "are duplicates": outcome.repeated,
        }
        for why, count in lost.items():
            if count:
                self.source.diagnostics.note(f"spans that {why} are not counted")

    def _add(self, batch: Batch) -> None:
        if not len(batch.points) and not batch.traces and not batch.dropped:
            return
        self.last_batch += 1
        self.batches.append(replace(batch, id=f"{self.name}:{self.last_batch}"))
        self.rows += len(batch.points) + len(batch.traces)
        if self.rows >= _ROWS_A_WRITE:
            self._write()

    def _write(self) -> None:
        for batch, new in zip(self.batches, self.store.write(self.batches) if self.batches else (), strict=True):
            self.imported.count(batch, new=new)
        self.batches, self.rows = [], 0

    def finish(self) -> None:
        self._aggregate(end=True)
        self._write()


def _set_service(export: Object, service: str) -> None:
    mine = {"key": names.SERVICE_NAME, "value": {"stringValue": service}}
    for resource in (*objects(export, METRICS), *objects(export, SPANS)):
        owner = object_at(resource, "resource")
        others = [attribute for attribute in objects(owner, "attributes") if attribute.get("key") != names.SERVICE_NAME]
        resource["resource"] = owner | {"attributes": [*others, mine]}
