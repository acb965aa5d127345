"""Spans in columns: what was read of them, and how the store keeps them until the requests they belong to are whole.

A row is a span, or an interval that a span tells of in its attributes or events: such a one has its span as its parent, an id
of 0, and `Flag.DERIVED`. What many spans have in common stands once beside the rows: the process they came from, and their label.
Attributes that may hold content are in neither: a label has only those that `rules` names.

Whether a span is a request by itself is settled here (`Label.request`), by its rule, its kind and whether it has a parent. What
takes more than one span to know is the fold's: a request below a request of the same source is part of that one, and a
`Flag.COUNTED` holds for the whole tree of its source, above it and below.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core.errors import StoreError

Rows: TypeAlias = NDArray[np.void]

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
_FORMAT = 1
# The format, and the size of what stands before the rows. [bytes]
_HEAD = 5


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


@dataclass(frozen=True, slots=True)
class Label:
    """What the rules made of spans that are alike.

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
        streams: By the number of the row.
    """

    rows: Rows
    sources: Sequence[Source]
    labels: Sequence[Label]
    streams: Mapping[int, Stream] = field(default_factory=dict[int, Stream])


def encode(spans: Spans) -> bytes:
    """Return *spans* as the store keeps them."""
    beside = {
        "sources": [_fields(source) for source in spans.sources],
        "labels": [_fields(label) for label in spans.labels],
        "streams": {str(row): _fields(stream) for row, stream in spans.streams.items()},
    }
    head = zlib.compress(json.dumps(beside, separators=(",", ":")).encode(), 1)
    # Ids and times do not compress: a third of a microsecond a span for nothing.
    return bytes((_FORMAT,)) + len(head).to_bytes(4, "little") + head + spans.rows.tobytes()


def _fields(item: Source | Label | Stream) -> dict[str, Any]:
    # Not `asdict`, which copies every value: it took a third of the time of reading an export.
    return {name: getattr(item, name) for name in item.__slots__}


def decode_rows(blob: bytes) -> Rows:
    """Return the rows alone of what `encode` was given: hardly any work, where the rest takes as long as reading an export.

    Raises:
        StoreError: *blob* is damaged, or of a version that is newer than this one.
    """
    if blob[:1] != bytes((_FORMAT,)):
        msg = (
            f"stored spans have format {blob[:1].hex() or 'none'}, this version reads {_FORMAT:02x}; upgrade Stagelens"
        )
        raise StoreError(msg)
    try:
        return np.frombuffer(blob, ROW, offset=_HEAD + _size(blob))
    except ValueError as error:
        raise _damaged(error) from error


def decode(blob: bytes) -> Spans:
    """Return what `encode` was given.

    Raises:
        StoreError: *blob* is damaged, or of a version that is newer than this one.
    """
    rows = decode_rows(blob)
    try:
        beside: dict[str, Any] = json.loads(zlib.decompress(blob[_HEAD : _HEAD + _size(blob)]))
        return Spans(
            rows,
            [Source(**source) for source in beside["sources"]],
            [_label(label) for label in beside["labels"]],
            {int(row): Stream(**stream) for row, stream in beside["streams"].items()},
        )
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise _damaged(error) from error


def _size(blob: bytes) -> int:
    return int.from_bytes(blob[1:_HEAD], "little")


def _damaged(error: Exception) -> StoreError:
    return StoreError(f"stored spans are damaged ({error}); check the disk")


def _label(found: dict[str, Any]) -> Label:
    attributes = tuple((str(key), value) for key, value in found.pop("attributes"))
    return Label(**found, attributes=attributes)
