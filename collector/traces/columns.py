"""Spans in columns: what was read of them, and how the store keeps them until the requests they belong to are whole.

A row is a span, or an interval that a span tells of in its attributes or events: such a one has its span as its parent, an id
of 0, and `Flag.DERIVED`. What many spans have in common stands once beside the rows: the process they came from, and their label.
Attributes that may hold content are in neither: a label has only those that `rules` names.

Whether a span is a request by itself is settled here (`Label.request`), by its rule, its kind and whether it has a parent. What
takes more than one span to know is the fold's: a request below a request of the same source is part of that one, and a
`Flag.COUNTED` holds for the whole tree of its source, above it and below.

Processes that send spans, by what they say of themselves.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core import names
from ...core.errors import StoreError
from ..ingest.series import UNKNOWN_SERVICE
from ..ingest.validation import printable_text
from ..otlp.model import Attributes

Rows: TypeAlias = NDArray[np.void]
Streams: TypeAlias = NDArray[np.void]

# Ids are unsigned, big-endian on the wire; parent 0 is none. Times are Unix nanoseconds; end 0 is a span that has not ended.
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
# What rows say about answers that came token by token: the number of the row, and the fields of `Stream`.
STREAM = np.dtype(
    [
        ("row", "<u4"),
        ("first_token_ns", "<i8"),
        ("tokens_in", "<i8"),
        ("tokens_out", "<i8"),
        ("gap_ns", "<i8"),
    ]
)
# The first had streams and labels in one document; what waits of it after an upgrade is read yet.
_OLD_FORMAT, _FORMAT = 1, 2
# Before the rows: the format, the size of the packed head, and in the second format how many streams there are. [bytes]
_OLD_HEAD, _HEAD = 5, 9
# Labels that are remembered once they are read, a kilobyte or two each: they come again with every export of a program.
_LABELS = 2048
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class Flag(IntFlag):
    """What is true of a row by itself.

    Attributes:
        ERROR: Its status is an error.
        DERIVED: An interval that its parent tells of.
        COUNTED: An agent of ours has counted the request it is in; what of its source is above and below it is in it, too.
    """

    ERROR = 1
    DERIVED = 2
    COUNTED = 4


@dataclass(frozen=True, slots=True)
class Source:
    """A process that sends spans; the fields are those of `Series`, and `service.instance.id`."""

    service: str
    version: str = ""
    environment: str = ""
    instance: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """What the rules made of spans that are alike; equal where the same is written of them.

    Args:
        name: The span's name.
        kind: `internal`, `server`, `client`, `producer` or `consumer`.
        request: Whether it is a request of its service by itself: its rule says so, or says nothing, and its kind is server or
            consumer or it has no parent.
        stage: The stage its time belongs to, "" for none of its own.
        head: The stage of its time before the first row below it, "" for none.
        model: As in `Series`, "" where it does not say.
        model_version: The same.
        route: The same.
        device: The same.
        definition: How its first token was found, of `names.DEFINITIONS`.
        attributes: Those that are shown with a kept trace.

    Attributes:
        text: All of it, as JSON: it is written and compared for each export, and made once.
    """

    name: str
    kind: str = "internal"
    request: bool = False
    stage: str = ""
    head: str = ""
    model: str = ""
    model_version: str = ""
    route: str = ""
    device: str = ""
    definition: str = ""
    attributes: tuple[tuple[str, str | int | float | bool], ...] = ()
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _to_json(_fields(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, slots=True)
class Stream:
    """What a span says about an answer that came token by token.

    Args:
        first_token_ns: From its start to the first token, 0 where it does not say. [nanoseconds]
        tokens_in: Tokens it took in, 0 where it does not say.
        tokens_out: Tokens it put out, 0 where it does not say.
        gap_ns: The longest wait between two parts of the answer, 0 where it does not say. [nanoseconds]
    """

    first_token_ns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    gap_ns: int = 0


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of one export, or of several.

    Args:
        rows: Of `ROW`.
        sources: What `source` counts into.
        labels: What `label` counts into.
        streams: Of `STREAM`, in the order of the rows.
    """

    rows: Rows
    sources: Sequence[Source]
    labels: Sequence[Label]
    streams: Streams = field(default_factory=lambda: streams_of({}))


def streams_of(found: Mapping[int, Stream]) -> Streams:
    """Return what rows say, by their number, as columns."""
    told = [
        (row, stream.first_token_ns, stream.tokens_in, stream.tokens_out, stream.gap_ns)
        for row, stream in sorted(found.items())
    ]
    return np.array(told, STREAM)


def encode(spans: Spans) -> bytes:
    """Return *spans* as the store keeps them: sources and labels in lines, packed, then the streams, then the rows."""
    lines = [_to_json([_fields(source) for source in spans.sources]), *(label.text for label in spans.labels)]
    head = zlib.compress("\n".join(lines).encode(), 1)
    sizes = (len(head), len(spans.streams))
    # Ids and times do not compress: a third of a microsecond a span for nothing.
    return b"".join((
        bytes((_FORMAT,)), *(size.to_bytes(4, "little") for size in sizes), head, spans.streams.tobytes(), spans.rows.tobytes()
    ))  # fmt: skip


def _fields(item: Source | Label) -> dict[str, Any]:
    # Not `asdict`, which copies every value: it took a third of the time of reading an export.
    return {name: getattr(item, name) for name in item.__slots__ if name != "text"}


def decode_rows(blob: bytes) -> Rows:
    """Return the rows alone of what `encode` was given: hardly any work, where the rest takes as long as reading an export.

    Raises:
        StoreError: *blob* is damaged, or of a version that is newer than this one.
    """
    try:
        return np.frombuffer(blob, ROW, offset=_begin_of_rows(blob))
    except ValueError as error:
        raise _damaged(error) from error


def decode(blob: bytes) -> Spans:
    """Return what `encode` was given.

    Raises:
        StoreError: *blob* is damaged, or of a version that is newer than this one.
    """
    rows = decode_rows(blob)
    try:
        if blob[0] == _OLD_FORMAT:
            return _decode_old(blob, rows)
        sources, *labels = zlib.decompress(blob[_HEAD : _HEAD + _number(blob, 1)]).decode().split("\n")
        streams = np.frombuffer(blob, STREAM, count=_number(blob, 5), offset=_HEAD + _number(blob, 1))
        return Spans(rows, [Source(**source) for source in json.loads(sources)], [*map(_label, labels)], streams)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise _damaged(error) from error


def _begin_of_rows(blob: bytes) -> int:
    match blob[:1]:
        case b"\x01":
            return _OLD_HEAD + _number(blob, 1)
        case b"\x02":
            return _HEAD + _number(blob, 1) + _number(blob, 5) * STREAM.itemsize
        case other:
            msg = f"stored spans have format {other.hex() or 'none'}, this version reads up to {_FORMAT:02x}; upgrade Stagelens"
            raise StoreError(msg)


def _number(blob: bytes, at: int) -> int:
    return int.from_bytes(blob[at : at + 4], "little")


def _decode_old(blob: bytes, rows: Rows) -> Spans:
    beside: dict[str, Any] = json.loads(zlib.decompress(blob[_OLD_HEAD : _OLD_HEAD + _number(blob, 1)]))
    labels = [_label(_to_json(label)) for label in beside["labels"]]
    streams = {int(row): Stream(**stream) for row, stream in beside["streams"].items()}
    return Spans(rows, [Source(**source) for source in beside["sources"]], labels, streams_of(streams))


@lru_cache(_LABELS)
def _label(text: str) -> Label:
    found: dict[str, Any] = json.loads(text)
    attributes = tuple((str(key), value) for key, value in found.pop("attributes"))
    return Label(**found, attributes=attributes)


def _damaged(error: Exception) -> StoreError:
    return StoreError(f"stored spans are damaged ({error}); check the disk")


# Semantic conventions before 1.27.
_OLD_ENVIRONMENT = "deployment.environment"
# What tells processes of a service apart where it gives them no id of its own.
_INSTANCES = (names.SERVICE_INSTANCE, "k8s.pod.uid", "k8s.pod.name", "container.id", "host.id", "host.name")
_PROCESS = "process.pid"


def source_of(resource: Attributes) -> Source:
    """Return the process that says *resource* of itself.

    >>> source_of({"service.name": "shop", "host.name": "a", "process.pid": 7})
    Source(service='shop', version='', environment='', instance='a 7')
    """
    instance = next((printable_text(resource[key]) for key in _INSTANCES if key in resource), "")
    if names.SERVICE_INSTANCE not in resource and _PROCESS in resource:
        instance = f"{instance} {printable_text(resource[_PROCESS])}".strip()
    return Source(
        service=printable_text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE,
        version=printable_text(resource.get(names.SERVICE_VERSION, "")),
        environment=printable_text(resource.get(names.ENVIRONMENT, resource.get(_OLD_ENVIRONMENT, ""))),
        instance=instance,
    )
