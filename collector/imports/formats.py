"""File formats of the import, detected by the names in a file, and the OTLP/JSON format.

OTLP/JSON is one object, or one object a line, as the file exporter of the OpenTelemetry Collector writes it; a saved run
(`stagelens run --save`) is such a file. It is split into small exports: points by the hundred, and spans by trace, because a retained
trace of an agent must be in one export.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import WireError
from ..otlp.json_encoding import Object, objects, string
from ..otlp.model import KINDS
from .chrome_traces import KINETO_KEYS, read_kineto, read_onnxruntime
from .server_records import VLLM_KEYS, read_triton, read_vllm
from .source import ImportFile, ImportFileError

METRICS, SPANS, LOGS = "resourceMetrics", "resourceSpans", "resourceLogs"
OTLP_KEYS = (METRICS, SPANS, LOGS)
# Of points, or of spans, in one export.
_RECORDS_PER_EXPORT = 1000


def read_otlp(source: ImportFile, _service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield what *source* holds as exports of either signal, each with its place; a line that is broken is told."""
    for place, key, item in _read_resources(source):
        if key == LOGS:
            source.told.note("it holds logs, of which nothing is counted")
            continue
        try:
            for export in split_export({key: [item]}):
                yield place, export
        except WireError as error:
            source.told.skip(place, str(error))


def split_export(export: Object, at_once: int = _RECORDS_PER_EXPORT) -> Iterator[Object]:
    """Yield *export* in pieces of about *at_once* points or spans, or of one trace that has more.

    Raises:
        WireError: It is malformed.
    """
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
    """Yield each resource with its place and its signal."""
    if source.first_line_is_whole():
        yield from _read_lines(source)
        return
    for key in OTLP_KEYS:
        # It is broken at the same place each time.
        for number, item in enumerate(source.items(f"{key}.item", quiet=key != OTLP_KEYS[0])):
            yield f"{key}[{number}]", key, item


def _read_lines(source: ImportFile) -> Iterator[tuple[str, str, Any]]:
    for number, line in source.lines():
        try:
            root = json.loads(line)
            if not isinstance(root, dict):
                source.told.skip(f"line {number}", "is no object")
                continue
            found = [(key, item) for key in OTLP_KEYS for item in objects(root, key)]
        except RecursionError:
            source.told.skip(f"line {number}", "is nested too deeply")
        except (ValueError, WireError) as error:
            source.told.skip(f"line {number}", f"is no OTLP ({error})")
        else:
            yield from ((f"line {number}", key, item) for key, item in found)


# Yields exports in OTLP's JSON form, each with its place in the file; the service is that of requests that name none.
FormatReader: TypeAlias = Callable[[ImportFile, str | None], Iterator[tuple[str, Object]]]

# Names looked at before a file counts as unknown.
_MAX_NAMES = 1000


class Format(NamedTuple):
    """A format.

    Args:
        title: What it is called.
        keys: Names that only this one has, in its top object or in the objects of its top list.
        where: `""` for the top object, `"item"` for the top list.
        read: Reads it.
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
    """Return the format of *source*.

    Raises:
        ImportFileError: It is none that is read.
    """
    names: list[str] = []
    try:
        for where, name in islice(source.keys(), _MAX_NAMES):
            found = next((each for each in FORMATS if where == each.where and name in each.keys), None)
            if found is not None:
                return found
            names.append(name)
        why = f"its names begin with {', '.join(map(repr, names[:5]))}" if names else "it has no names to go by"
    except ImportFileError as error:
        why = str(error)
    read = "".join(f"\n  {each.title}" for each in FORMATS)
    msg = f"{source.path}: is in none of the formats that are read: {why}. They are{read}"
    raise ImportFileError(msg)
