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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from ..core import names
from ..core.version import __version__
from ..store import Series, Store
from ..store.full_export import ExportedHistogram, StoreExport, open_export
from ..store.otlp_json import Json, otlp_attributes, otlp_spans, resource_attributes, series_attributes
from .files import open_atomic

KEY, FORMAT = "stagelens", 1
# A point takes up to 3 kB and a span 500 bytes: every collector accepts an entry of this size as a body.
POINTS_AN_ENTRY, SPANS_AN_ENTRY = 1000, 5000
# AggregationTemporality of OTLP.
_DELTA = 1
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
        "attributes": otlp_attributes(
            {**series_attributes(counted.series), names.METRICS[counted.metric]: counted.stage}
        ),
        "startTimeUnixNano": str(counted.start * _NS),
        "timeUnixNano": str((counted.start + counted.seconds) * _NS),
        **numbers,
    }


def _spans(export: StoreExport) -> Iterator[Json]:
    held: defaultdict[tuple[tuple[str, str], ...], list[Json]] = defaultdict(list)
    for trace in export.traces():
        resource = _resource(trace.series)
        spans = held[resource]
        spans += otlp_spans(trace)
        if len(spans) >= SPANS_AN_ENTRY:
            yield _entry("Spans", resource, held.pop(resource))
    for resource, spans in held.items():
        yield _entry("Spans", resource, spans)


def _entry(signal: str, resource: Iterable[tuple[str, str]], items: Sequence[Json]) -> Json:
    return {
        "resource": {"attributes": otlp_attributes(dict(resource))},
        f"scope{signal}": [{"scope": {"name": names.SCOPE, "version": __version__}, signal.lower(): items}],
    }


def _resource(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(resource_attributes(series).items())
