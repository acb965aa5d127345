"""Records that the collector writes to the store: retained traces, and the batches in which they and the points came.

Spans and attributes of a trace are stored as JSON compressed with zstd, which takes a third of the time of zlib. Older
stores hold traces compressed with zlib.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from ..analysis.critical_path import ANOTHER_ENVIRONMENT
from ..core.names import ENVIRONMENT, SERVICE_NAME
from .events import StoredLoad
from .points import Point, PointColumns
from .series import Series

# RFC 8878, 3.1.1: magic number of a zstd frame. No zlib stream begins with it (RFC 1950).
_ZSTD = b"\x28\xb5\x2f\xfd"
_LEVEL = 3
_decode_json = json.JSONDecoder().raw_decode
encode_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def trace_packer() -> Callable[[str], bytes]:
    """Return a compressor of trace documents, for one thread; creating it takes longer than compressing one document."""
    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    return lambda document: compress(document.encode())


def unpack_trace(packed: bytes) -> dict[str, Any]:
    """Return a trace document: `spans`, `attributes` and, unless it is old, `parent`."""
    return json.loads(_decompress(packed))


def unpack_attributes(packed: bytes) -> dict[str, Any]:
    """Return the `attributes` of a trace document, without parsing its spans, which take most of the time."""
    document = _decompress(packed).decode()
    # They come after the spans, and have no objects inside; a root attribute that is called "attributes" is found instead.
    after = document[document.rfind('"attributes":') + len('"attributes":') :].lstrip()
    attributes = _decode_json(after)[0]
    return attributes if isinstance(attributes, dict) else json.loads(document)["attributes"]


def visible_trace(packed: bytes, environments: frozenset[str]) -> bytes:
    """Return a trace document in which the parts of services in other or unknown environments have only their times."""
    document = _decompress(packed)
    # Parsing takes most of the time, and most documents have only parts of their own service.
    if f'"{SERVICE_NAME}"'.encode() not in document:
        return packed
    trace = json.loads(document)
    trace["spans"] = [_visible_span(span, environments) for span in trace["spans"]]
    # Not compressed, because only the reader of this moment gets it.
    return zlib.compress(encode_json(trace).encode(), 0)


def _visible_span(span: dict[str, Any], environments: frozenset[str]) -> dict[str, Any]:
    attributes = span.get("attributes") or {}
    if SERVICE_NAME not in attributes or attributes.get(ENVIRONMENT) in environments:
        return span
    times = {key: span[key] for key in ("stage", "start_ns", "duration_ns")}
    return {"name": f"1 request of {ANOTHER_ENVIRONMENT}", **times, "attributes": {SERVICE_NAME: ANOTHER_ENVIRONMENT}}


def _decompress(packed: bytes) -> bytes:
    return zstandard.decompress(packed) if packed.startswith(_ZSTD) else zlib.decompress(packed)


@dataclass(frozen=True, slots=True)
class RetainedTrace:
    """One retained request with all its spans.

    Args:
        trace_id: 32 hexadecimal digits; requests of one distributed trace share it.
        span_id: 16 hexadecimal digits of the request's root span, unique within the trace.
        started_ns: Start of the request. [Unix nanoseconds]
        duration_ns: Wall time of the request. [nanoseconds]
        because: Reason for the retention: `slow`, `error` or `uniform`.
        stages_ns: Exclusive time by stage, `overhead` included; adds up to the duration. [nanoseconds]
        spans: Recorded intervals: `name`, `stage`, `start_ns` after the start of the request, `duration_ns`,
            `attributes`, and `id` for a call of another program.
        parent_id: Span that called the request: the root span of a request with an agent, or a call; "" for none or unknown.
        document: Spans and attributes compressed as by `trace_packer`; None to compress them on writing.
    """

    trace_id: str
    span_id: str
    series: Series
    started_ns: int
    duration_ns: int
    because: str
    dominant: str
    stages_ns: dict[str, int]
    spans: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict[str, str | int | float | bool])
    parent_id: str = ""
    document: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Contents of one export of one process."""

    id: str
    points: Sequence[Point] | PointColumns = ()
    traces: list[RetainedTrace] = field(default_factory=list[RetainedTrace])
    dropped: int = 0
    instance: str = ""
    spans: bytes = b""
    loads: Sequence[StoredLoad] = ()
