"""Import of a file into the store: detects its format, validates its exports, assembles requests, and counts them like live data.

The name of each batch consists of the digest of the file and a number, so the same file counts once, under any name and after any
interruption. Spans wait in memory and not in the inbox of the store, because no other process adds spans to the same requests.

Formats are detected by the keys in a file. OTLP/JSON is one object, or one object a line, as the file exporter of the
OpenTelemetry Collector writes it; a saved run (`stagelens run --save`) has this format. OTLP/JSON is split into small exports:
points by the hundred, and spans by trace, because a retained trace of an agent must be in one export.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ...core import names
from ...core.errors import WireError
from ...store import Batch, Store
from ...store.inbox import AggregationInput, Parcel
from ...store.points import as_columns
from ...store.retention import IMPORT_PREFIX
from ...store.schema import FINEST
from ..ingest.pipeline import Export, read_export
from ..ingest.validation import Reason, TimeWindow
from ..otlp.json_encoding import Object, object_at, objects, string
from ..otlp.model import JSON, KINDS, Attributes
from ..traces.inbox import InboxLimits, InboxOutcome, process_inbox
from ..traces.rule_config import Rule
from ..traces.sampling import SamplingPolicy
from ..traces.span_reader import SpanReader
from .chrome_traces import KINETO_KEYS, read_kineto, read_onnxruntime
from .server_records import VLLM_KEYS, read_triton, read_vllm
from .source import ImportFile, ImportFileError
from .spans import import_rules as own_rules

METRICS, SPANS, LOGS = "resourceMetrics", "resourceSpans", "resourceLogs"
OTLP_KEYS = (METRICS, SPANS, LOGS)
# Number of points or spans in one export.
_RECORDS_PER_EXPORT = 1000


def read_otlp(source: ImportFile, _service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the exports in *source*, each with its position; invalid lines are reported."""
    for place, key, item in _read_resources(source):
        if key == LOGS:
            source.diagnostics.note("it has logs, which are not counted")
            continue
        try:
            for export in split_export({key: [item]}):
                yield place, export
        except WireError as error:
            source.diagnostics.skip(place, str(error))


def split_export(export: Object, at_once: int = _RECORDS_PER_EXPORT) -> Iterator[Object]:
    """Yield *export* in pieces of about *at_once* points or spans; a larger trace is one piece."""
    for resource in objects(export, METRICS):
        for scope in objects(resource, "scopeMetrics"):
            for metric in objects(scope, "metrics"):
                for piece in _split_metric(metric, at_once):
                    yield {METRICS: [resource | {"scopeMetrics": [scope | {"metrics": [piece]}]}]}
    for resource in objects(export, SPANS):
        for scope in objects(resource, "scopeSpans"):
            for spans in _split_spans(objects(scope, "spans"), at_once):
                yield {SPANS: [resource | {"scopeSpans": [scope | {"spans": spans}]}]}


def _split_metric(metric: Object, at_once: int) -> Iterator[Object]:
    for kind in KINDS:
        data = metric.get(kind)
        if isinstance(data, dict):
            points = objects(data, "dataPoints")
            for first in range(0, len(points), at_once):
                yield metric | {kind: data | {"dataPoints": points[first : first + at_once]}}


def _split_spans(spans: list[Object], at_once: int) -> Iterator[list[Object]]:
    traces: defaultdict[str, list[Object]] = defaultdict(list)
    for span in spans:
        traces[string(span, "traceId")].append(span)
    held: list[Object] = []
    for trace in traces.values():
        held += trace
        if len(held) >= at_once:
            yield held
            held = []
    if held:
        yield held


def _read_resources(source: ImportFile) -> Iterator[tuple[str, str, Any]]:
    if source.first_line_is_whole():
        yield from _read_lines(source)
        return
    for key in OTLP_KEYS:
        # Every read of the file fails at the same place.
        for number, item in enumerate(source.items(f"{key}.item", quiet=key != OTLP_KEYS[0])):
            yield f"{key}[{number}]", key, item


def _read_lines(source: ImportFile) -> Iterator[tuple[str, str, Any]]:
    for number, line in source.lines():
        try:
            root = json.loads(line)
            if not isinstance(root, dict):
                source.diagnostics.skip(f"line {number}", "is not an object")
                continue
            found = [(key, item) for key in OTLP_KEYS for item in objects(root, key)]
        except RecursionError:
            source.diagnostics.skip(f"line {number}", "is nested too deeply")
        except (ValueError, WireError) as error:
            source.diagnostics.skip(f"line {number}", f"is not OTLP ({error})")
        else:
            yield from ((f"line {number}", key, item) for key, item in found)


# Reader that yields exports as OTLP/JSON, each with its position in the file; the service is for requests without one.
FormatReader: TypeAlias = Callable[[ImportFile, str | None], Iterator[tuple[str, Object]]]

# Number of names that are checked before the format of a file counts as unknown.
_MAX_NAMES = 1000


class Format(NamedTuple):
    """Format of an imported file.

    Args:
        keys: Keys that only this format has, in its top-level object or in the objects of its top-level list.
        where: `""` for the top-level object, `"item"` for the top-level list.
    """

    title: str
    keys: frozenset[str]
    where: str
    read: FormatReader


FORMATS = (
    Format("OTLP JSON (also a run saved by `stagelens run --save`)", frozenset(OTLP_KEYS), "", read_otlp),
    Format("a torch.profiler trace (Kineto; also vLLM's)", frozenset(KINETO_KEYS), "", read_kineto),
    Format("a vLLM benchmark result (`vllm bench serve`)", frozenset(VLLM_KEYS), "", read_vllm),
    Format(
        "a Triton JSON trace (`--trace-config mode=triton`)",
        frozenset(("timestamps", "model_name", "activity")),
        "item",
        read_triton,
    ),
    Format("an ONNX Runtime profile (`enable_profiling`)", frozenset(("ph",)), "item", read_onnxruntime),
)


def format_of(source: ImportFile) -> Format:
    names: list[str] = []
    try:
        for where, name in islice(source.keys(), _MAX_NAMES):
            found = next((each for each in FORMATS if where == each.where and name in each.keys), None)
            if found is not None:
                return found
            names.append(name)
        why = (
            f"its first names are {', '.join(map(repr, names[:5]))}"
            if names
            else "it has no names to detect the format"
        )
    except ImportFileError as error:
        why = str(error)
    read = "".join(f"\n  {each.title}" for each in FORMATS)
    msg = f"{source.path}: has no supported format: {why}. Supported formats:{read}"
    raise ImportFileError(msg)


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


# Size of a transaction. [points and traces]
_ROWS_A_WRITE = 20_000
# Spans of a request may lie this far apart in the file. [bytes]
_HELD_BYTES = 6 * 1024**2
# Rounds that spans without a root are retained; a round of the import is a second for `process_inbox`.
_ORPHAN_ROUNDS = 8
_END = 10**6


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
        """Read *export*; malformed parts are skipped and reported with their *place*."""
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
