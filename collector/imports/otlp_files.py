"""OTLP/JSON files: one object, or one a line, as the file exporter of the OpenTelemetry Collector and `run --save` write them.

They are split into small exports: points by the hundred, and spans by trace, because a retained trace of an agent must be in one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ...core.errors import WireError
from ..otlp.json_encoding import Object, objects, string
from .source import ImportFile

METRICS, SPANS, LOGS = "resourceMetrics", "resourceSpans", "resourceLogs"
OTLP_KEYS = (METRICS, SPANS, LOGS)
_KINDS = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
# Number of points or spans in one export.
_RECORDS_PER_EXPORT = 1000


def read_otlp(source: ImportFile, _service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the exports in *source*, each with its position; invalid lines are reported."""
    for location, key, item in _read_resources(source):
        if key == LOGS:
            source.diagnostics.note("it has logs, which are not counted")
            continue
        try:
            for export in split_export({key: [item]}):
                yield location, export
        except WireError as error:
            source.diagnostics.skip(location, str(error))


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
    for kind in _KINDS:
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
            resources = [(key, item) for key in OTLP_KEYS for item in objects(root, key)]
        except RecursionError:
            source.diagnostics.skip(f"line {number}", "is nested too deeply")
        except (ValueError, WireError) as error:
            source.diagnostics.skip(f"line {number}", f"is not OTLP ({error})")
        else:
            yield from ((f"line {number}", key, item) for key, item in resources)
