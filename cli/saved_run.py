"""Saved runs: one file of plain OTLP/JSON that any store can import and any OpenTelemetry backend can read.

    {"stagelens": {"format": 1, "version": "0.2.0", "run": {"command": […], "start": "…", "end": "…", "exitCode": 0}},
     "resourceMetrics": […],
     "resourceSpans": […]}

`resourceMetrics` are the sums of the received metrics: delta exponential histograms with the names and attributes of
`docs/design/wire.md`, one for each 10 s bucket, and `stagelens.requests.dropped`. `resourceSpans` are the retained traces.
The file is a valid body for `/v1/metrics` and for `/v1/traces` unless it exceeds the size limit; each entry of the two lists
is on a line of its own and never exceeds the limit. Scraped engine metrics and events are not included.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from ..core import names
from ..core.version import __version__
from ..store import RetainedTrace, Series, Store
from ..store.full_export import ExportedHistogram, StoreExport, open_export
from ..store.series import COLD
from .files import open_atomic

Json: TypeAlias = dict[str, Any]

KEY, FORMAT = "stagelens", 1
# A point takes up to 3 kB and a span 500 bytes: every collector accepts an entry of this size as a body.
POINTS_AN_ENTRY, SPANS_AN_ENTRY = 1000, 5000
# Enum values of OTLP: AggregationTemporality, SpanKind, StatusCode.
_DELTA, _INTERNAL, _SERVER, _FAILED = 1, 1, 2, 2
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Run:
    command: Sequence[str]
    start: datetime
    end: datetime
    exit_code: int

    def to_json(self) -> Json:
        return {
            "command": list(self.command),
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "exitCode": self.exit_code,
        }


def save_run(store: Store, path: Path, run: Run) -> None:
    about = {"format": FORMAT, "version": __version__, "run": run.to_json()}
    with open_export(store) as export, open_atomic(path) as file:
        file.write(f'{{"{KEY}": {json.dumps(about)}')
        for key, entries in (("resourceMetrics", _metrics(export)), ("resourceSpans", _spans(export))):
            file.write(f',\n"{key}": [')
            for number, entry in enumerate(entries):
                file.write(",\n" if number else "\n")
                json.dump(entry, file, separators=(",", ":"))
            file.write("]")
        file.write("}\n")


def _metrics(export: StoreExport) -> Iterator[Json]:
    for counted in export.counted():
        wanted = [series for series in counted if series.metric in names.METRICS]
        for resource, of_resource in groupby(
            sorted(wanted, key=lambda entry: (_resource(entry.series), entry.metric)),
            lambda entry: _resource(entry.series),
        ):
            points = list(of_resource)
            for start in range(0, len(points), POINTS_AN_ENTRY):
                yield _entry("Metrics", resource, list(_histograms(points[start : start + POINTS_AN_ENTRY])))
    dropped = export.dropped()
    if dropped:
        data = {"aggregationTemporality": _DELTA, "isMonotonic": True, "dataPoints": [{"asInt": str(dropped)}]}
        yield _entry("Metrics", (), [{"name": names.REQUESTS_DROPPED, "unit": "{request}", "sum": data}])


def _histograms(points: Iterable[ExportedHistogram]) -> Iterator[Json]:
    for metric, of_metric in groupby(points, lambda point: point.metric):
        data = {"aggregationTemporality": _DELTA, "dataPoints": [_point(point) for point in of_metric]}
        yield {"name": metric, "unit": names.UNITS.get(metric, "s"), "exponentialHistogram": data}


def _point(counted: ExportedHistogram) -> Json:
    numbers = counted.histogram.to_otlp()
    if counted.metric in names.TIME_METRICS:
        # The sum is in microseconds, and not the sum of the counted values in seconds, so it is omitted.
        del numbers["sum"]
    return {
        "attributes": _attributes({**_dimensions(counted.series), names.METRICS[counted.metric]: counted.stage}),
        "startTimeUnixNano": str(counted.start * _NS),
        "timeUnixNano": str((counted.start + counted.seconds) * _NS),
        **numbers,
    }


def _spans(export: StoreExport) -> Iterator[Json]:
    held: defaultdict[tuple[tuple[str, str], ...], list[Json]] = defaultdict(list)
    for trace in export.traces():
        resource = _resource(trace.series)
        spans = held[resource]
        spans += _trace(trace)
        if len(spans) >= SPANS_AN_ENTRY:
            yield _entry("Spans", resource, held.pop(resource))
    for resource, spans in held.items():
        yield _entry("Spans", resource, spans)


def _trace(trace: RetainedTrace) -> Iterator[Json]:
    method, route = trace.attributes.get(names.METHOD), trace.series.route
    root = {
        "traceId": trace.trace_id,
        "spanId": trace.span_id,
        "name": " ".join(str(part) for part in (method, route) if part) or "request",
        "kind": _SERVER if method else _INTERNAL,
        **_times(trace.started_ns, trace.duration_ns),
        "attributes": _attributes(
            {
                **_dimensions(trace.series),
                **trace.attributes,
                names.RETAINED_BECAUSE: trace.because,
                **{names.STAGE_SELF_PREFIX + stage: spent for stage, spent in trace.stages_ns.items()},
            }
        ),
    }
    failed = {"status": {"code": _FAILED}} if trace.series.status == names.STATUS_ERROR else {}
    yield {**root, **failed}
    for number, span in enumerate(trace.spans):
        stage = {names.STAGE: span["stage"]} if span["stage"] else {}
        yield {
            "traceId": trace.trace_id,
            "spanId": blake2b(f"{trace.span_id}/{number}".encode(), digest_size=8).hexdigest(),
            "parentSpanId": trace.span_id,
            "name": span["name"],
            "kind": _INTERNAL,
            **_times(trace.started_ns + span["start_ns"], span["duration_ns"]),
            "attributes": _attributes({**stage, **span["attributes"]}),
        }


def _entry(signal: str, resource: Iterable[tuple[str, str]], items: Sequence[Json]) -> Json:
    return {
        "resource": {"attributes": _attributes(dict(resource))},
        f"scope{signal}": [{"scope": {"name": names.SCOPE, "version": __version__}, signal.lower(): items}],
    }


def _resource(series: Series) -> tuple[tuple[str, str], ...]:
    attributes = (
        (names.SERVICE_NAME, series.service),
        (names.SERVICE_VERSION, series.version),
        (names.ENVIRONMENT, series.environment),
    )
    return tuple((key, value) for key, value in attributes if value)


def _dimensions(series: Series) -> dict[str, str]:
    attributes = {
        names.MODEL: series.model,
        names.MODEL_VERSION: series.model_version,
        names.ROUTE: series.route,
        names.DEVICE: series.device,
        names.STATUS: series.status,
        names.COLD: "true" if series.cold == COLD else "",
    }
    return {key: value for key, value in attributes.items() if value}


def _times(start_ns: int, duration_ns: int) -> Json:
    return {"startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(start_ns + duration_ns)}


def _attributes(values: Mapping[str, str | float]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | float) -> Json:
    # Checked first: bool is a subclass of int.
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
