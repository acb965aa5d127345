"""OTLP/JSON: one object, or one on each line as the OpenTelemetry Collector's file exporter writes them.

A saved run (`stagelens run --save`) is such a file. It is handed on in small exports, whatever the size of its own: points by
the hundred, and spans by the trace, since a trace our own agents kept must come in one piece.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ...core.errors import WireError
from ..otlp.json_fields import Object, objects, string
from ..otlp.model import KINDS
from .source import Source

METRICS, SPANS, LOGS = "resourceMetrics", "resourceSpans", "resourceLogs"
KEYS = (METRICS, SPANS, LOGS)
# Of points, or of spans, in one export.
_AT_ONCE = 1000


def read(source: Source, _service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield what *source* holds as exports of either signal, each with its place; a line that is broken is told."""
    for place, key, item in _resources(source):
        if key == LOGS:
            source.told.note("it holds logs, of which nothing is counted")
            continue
        try:
            for export in pieces({key: [item]}):
                yield place, export
        except WireError as error:
            source.told.skip(place, str(error))


def pieces(export: Object, at_once: int = _AT_ONCE) -> Iterator[Object]:
    """Yield *export* in pieces of about *at_once* points or spans, or of one trace that has more.

    Raises:
        WireError: It is malformed.
    """
    for resource in objects(export, METRICS):
        for scope in objects(resource, "scopeMetrics"):
            for metric in objects(scope, "metrics"):
                for piece in _of_metric(metric, at_once):
                    yield {METRICS: [resource | {"scopeMetrics": [scope | {"metrics": [piece]}]}]}
    for resource in objects(export, SPANS):
        for scope in objects(resource, "scopeSpans"):
            for spans in _of_spans(objects(scope, "spans"), at_once):
                yield {SPANS: [resource | {"scopeSpans": [scope | {"spans": spans}]}]}


def _of_metric(metric: Object, at_once: int) -> Iterator[Object]:
    for kind in KINDS:
        data = metric.get(kind)
        if isinstance(data, dict):
            points = objects(data, "dataPoints")
            for first in range(0, len(points), at_once):
                yield metric | {kind: data | {"dataPoints": points[first : first + at_once]}}


def _of_spans(spans: list[Object], at_once: int) -> Iterator[list[Object]]:
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


def _resources(source: Source) -> Iterator[tuple[str, str, Any]]:
    """Yield each resource with its place and its signal."""
    if source.first_line_is_whole():
        yield from _of_lines(source)
        return
    for key in KEYS:
        # It is broken at the same place each time.
        for number, item in enumerate(source.items(f"{key}.item", quiet=key != KEYS[0])):
            yield f"{key}[{number}]", key, item


def _of_lines(source: Source) -> Iterator[tuple[str, str, Any]]:
    for number, line in source.lines():
        try:
            root = json.loads(line)
            if not isinstance(root, dict):
                source.told.skip(f"line {number}", "is no object")
                continue
            found = [(key, item) for key in KEYS for item in objects(root, key)]
        except RecursionError:
            source.told.skip(f"line {number}", "is nested too deeply")
        except (ValueError, WireError) as error:
            source.told.skip(f"line {number}", f"is no OTLP ({error})")
        else:
            yield from ((f"line {number}", key, item) for key, item in found)
