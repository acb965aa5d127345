"""Spans in columns: the decoded form, and the encoded form that the store holds until their requests are complete.

A row is a span, or an interval from the attributes or events of a span; an interval has its span as parent, the id 0 and
`Flag.DERIVED`. Common properties of many spans are stored once: the process (`SpanSource`) and the `Label`. Attributes that may contain
user content are in neither: a label has only the attributes that rules name.

`Label.request` is decided for each span alone, by its rule, its kind and whether it has a parent. Decisions that need several spans
are made during assembly: a request below a request of the same source is part of it, and a `Flag.COUNTED` applies to the whole tree
of its source.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core import names
from ...core.columns import SHARED, Bools, Columnar, Ints
from ...core.errors import StoreError
from ...core.hardware import HOST, POD, PROCESS_ID, place
from ..ingest.validation import UNKNOWN_SERVICE, printable_text
from ..otlp.model import Attributes

Rows: TypeAlias = NDArray[np.void]
Streams: TypeAlias = NDArray[np.void]

# Ids are unsigned, big-endian on the wire; parent 0 means none. Times are Unix nanoseconds; end 0 means not ended.
ROW = np.dtype(
    [
        ("trace_high", "<u8"),
        ("trace_low", "<u8"),
        ("span", "<u8"),
        ("parent", "<u8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("label", "<u4"),
        ("source", "<u2"),
        ("flags", "<u2"),
    ]
)
# Streamed responses: the row number, and the fields of `StreamMeasurements`.
STREAM = np.dtype(
    [("row", "<u4"), ("first_token_ns", "<i8"), ("tokens_in", "<i8"), ("tokens_out", "<i8"), ("gap_ns", "<i8")]
)
_FORMAT = 2
# Size of the fixed header: format, size of the compressed head, and number of streams. [bytes]
_HEAD = 9
# Decoded labels in the cache, one or two kilobytes each: every export of a program repeats them. [count]
_LABELS = 2048
_to_json = json.JSONEncoder(separators=(",", ":")).encode
# Semantic conventions before 1.27.
_OLD_ENVIRONMENT = "deployment.environment"
# Resource attributes that identify a process of a service, the first one present counts.
_INSTANCES = (names.SERVICE_INSTANCE, "k8s.pod.uid", "k8s.pod.name", "container.id", "host.id", "host.name")
# https://www.rfc-editor.org/rfc/rfc9562#section-4
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Flag(IntFlag):
    ERROR = 1  # the span's status is an error
    DERIVED = 2  # the row is an interval from attributes or events of its parent
    # A Stagelens agent has counted the request; this applies to all ancestors and descendants of the same source.
    COUNTED = 4
    RECORD = 8  # if the span has no duration, it is a log record or a placeholder, and no request
    EXPLICIT = 16  # a rule decides whether the span is a request
    PROBE = 32  # the span, if it is a root, is a health probe


@dataclass(frozen=True, slots=True)
class SpanSource:
    """Process that sends spans; fields of `Series`, `instance` for `service.instance.id`, and `place` for a name that says more."""

    service: str
    version: str = ""
    environment: str = ""
    instance: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """Common properties of similar spans, from the rules; equal if their JSON is equal."""

    name: str
    kind: str = "internal"  # `internal`, `server`, `client`, `producer` or `consumer`
    # Whether the span alone is a request of its service: by its rule, or else as a server, a consumer or a root.
    request: bool = False
    stage: str = ""  # stage of the span's time; "" for none
    head: str = ""  # stage of the span's time before its first child; "" for none
    model: str = ""
    model_version: str = ""
    route: str = ""
    device: str = ""
    definition: str = ""  # definition of the first token, one of `names.DEFINITIONS`
    attributes: tuple[tuple[str, str | int | float | bool], ...] = ()  # attributes shown with a retained trace
    text: str = field(init=False, repr=False)  # the label as JSON, for writing and comparison

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _to_json(_fields(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, slots=True)
class StreamMeasurements:
    """Measurements of a streamed response, from one span; 0 means unknown."""

    first_token_ns: int = 0  # time from the start of the span to the first token [nanoseconds]
    tokens_in: int = 0
    tokens_out: int = 0
    gap_ns: int = 0  # longest pause between two parts of the response [nanoseconds]


class SpanColumns(Columnar):
    """Base of columns of spans; rows are selected in ascending order."""

    __slots__ = ()
    streams: Streams

    def rows_at(self, rows: Bools | Ints | slice) -> Self:
        # Indexes are not copied, because batches are large.
        is_index = isinstance(rows, np.ndarray) and rows.dtype != np.bool_
        places: Any = rows if is_index else np.arange(len(self))[rows]
        if len(places) == len(self):
            return self
        selected: Any = Columnar.rows_at(self, places)
        return replace(selected, streams=self._streams_of(places))

    def _streams_of(self, rows: Ints) -> Streams:
        position = np.searchsorted(rows, self.streams["row"])
        position[position == len(rows)] = 0
        is_there = rows[position] == self.streams["row"] if len(rows) else np.zeros(len(self.streams), np.bool_)
        streams = self.streams[is_there].copy()
        streams["row"] = position[is_there]
        return streams


@dataclass(frozen=True, slots=True)
class Spans(SpanColumns):
    rows: Rows
    sources: Sequence[SpanSource] = field(metadata=SHARED)
    labels: Sequence[Label] = field(metadata=SHARED)
    streams: Streams = field(default_factory=lambda: streams_of({}), metadata=SHARED)


def streams_of(measurements: Mapping[int, StreamMeasurements]) -> Streams:
    rows = [
        (row, stream.first_token_ns, stream.tokens_in, stream.tokens_out, stream.gap_ns)
        for row, stream in sorted(measurements.items())
    ]
    return np.array(rows, STREAM)


def encode_spans(spans: Spans) -> bytes:
    """Return *spans* as bytes for the store: compressed lines of sources and labels, then the streams, then the rows."""
    lines = [_to_json([_fields(source) for source in spans.sources]), *(label.text for label in spans.labels)]
    head = zlib.compress("\n".join(lines).encode(), 1)
    sizes = (len(head), len(spans.streams))
    # Ids and times do not compress; trying costs a third of a microsecond per span.
    return b"".join((
        bytes((_FORMAT,)), *(size.to_bytes(4, "little") for size in sizes), head, spans.streams.tobytes(), spans.rows.tobytes()
    ))  # fmt: skip


def _fields(item: SpanSource | Label) -> dict[str, Any]:
    # Not `asdict`, which copies every value and takes a third of the time of reading an export.
    return {name: getattr(item, name) for name in item.__slots__ if name != "text"}


def decode_rows(blob: bytes) -> Rows:
    """Return only the rows of the encoded spans *blob*, without the rest; StoreError if it is damaged or of a newer version."""
    try:
        return np.frombuffer(blob, ROW, offset=_begin_of_rows(blob))
    except ValueError as error:
        raise _damaged(error) from error


def decode_spans(blob: bytes) -> Spans:
    rows = decode_rows(blob)
    try:
        sources, *labels = zlib.decompress(blob[_HEAD : _HEAD + _number(blob, 1)]).decode().split("\n")
        streams = np.frombuffer(blob, STREAM, count=_number(blob, 5), offset=_HEAD + _number(blob, 1))
        return Spans(rows, [SpanSource(**source) for source in json.loads(sources)], [*map(_label, labels)], streams)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise _damaged(error) from error


def _begin_of_rows(blob: bytes) -> int:
    if blob[:1] != bytes((_FORMAT,)):
        msg = (
            f"stored spans have format {blob[:1].hex() or 'none'}, this version reads {_FORMAT:02x}; upgrade Stagelens"
        )
        raise StoreError(msg)
    return _HEAD + _number(blob, 1) + _number(blob, 5) * STREAM.itemsize


def _number(blob: bytes, at: int) -> int:
    return int.from_bytes(blob[at : at + 4], "little")


@lru_cache(_LABELS)
def _label(text: str) -> Label:
    values: dict[str, Any] = json.loads(text)
    attributes = tuple((str(key), value) for key, value in values.pop("attributes"))
    return Label(**values, attributes=attributes)


def _damaged(error: Exception) -> StoreError:
    return StoreError(f"stored spans are damaged ({error}); check the disk")


def source_of(resource: Attributes) -> SpanSource:
    """Return the process with the resource attributes *resource*.

    >>> source_of({"service.name": "shop", "host.name": "a", "process.pid": 7})
    SpanSource(service='shop', version='', environment='', instance='a 7', place='')
    """
    instance = next((printable_text(resource[key]) for key in _INSTANCES if key in resource), "")
    if names.SERVICE_INSTANCE not in resource and PROCESS_ID in resource:
        instance = f"{instance} {printable_text(resource[PROCESS_ID])}".strip()
    return SpanSource(
        service=printable_text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE,
        version=printable_text(resource.get(names.SERVICE_VERSION, "")),
        environment=printable_text(resource.get(names.ENVIRONMENT, resource.get(_OLD_ENVIRONMENT, ""))),
        instance=instance,
        place=_place(resource, instance),
    )


def _place(resource: Attributes, instance: str) -> str:
    """Return the pod, or the host and process, of an *instance* that is a UUID, which SDKs make up; "" if there is none.

    >>> _place({"k8s.pod.name": "chat-7f6b9"}, "0f9b1d1e-2f6a-4b5e-9d3b-4a3c0e8f7a21")
    'chat-7f6b9'
    """
    if not _UUID.fullmatch(instance):
        return ""
    pod, host, process = (printable_text(resource.get(key, "")) for key in (POD, HOST, PROCESS_ID))
    return place("process", pod or host, process, "").removesuffix(":") if pod or (host and process) else ""
