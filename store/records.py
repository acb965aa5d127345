"""What the collector hands to the store: points, kept traces, and the batches they came in.

Points as columns, from the decoder to the rows: what each is about, and its numbers in arrays.

Exports of one service say the same few things about themselves again and again. So what a point is about is an object, made
once and shared by all points that mean the same: to tell them apart, one looks at which object it is.

The documents of kept traces, as the database has them: their spans and attributes as JSON, packed.

They are packed with zstd, for a third of the time that zlib takes; those of a store that is older were packed with zlib.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zstandard

from ..core.histogram import Histogram
from .encoding import Ints
from .events import Load
from .outgoing import Outgoing
from .rows import Histograms
from .series import Series

# RFC 8878, 3.1.1: what a frame begins with. No stream of zlib does (RFC 1950).
_ZSTD = b"\x28\xb5\x2f\xfd"
_LEVEL = 3

encode_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def trace_packer() -> Callable[[str], bytes]:
    """Return what packs documents, for one thread: it is made once for many of them, which takes longer than to pack one."""
    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    return lambda document: compress(document.encode())


def unpack_trace(packed: bytes) -> dict[str, Any]:
    """Return a document: `spans` and `attributes`."""
    unpacked = zstandard.decompress(packed) if packed.startswith(_ZSTD) else zlib.decompress(packed)
    return json.loads(unpacked)


@dataclass(slots=True)
class Point:
    """One histogram of one series.

    Args:
        series: Whose it is.
        metric: One of `names.METRICS`.
        stage: The stage, or for `inference.request.duration` the dominant one.
        at: When; the store floors it to its bucket. [Unix seconds]
        histogram: The counts (or microseconds) by bucket.
    """

    series: Series
    metric: str
    stage: str
    at: int
    histogram: Histogram


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What points are about; equal only to itself. The fields are those of `Point`."""

    series: Series
    metric: str
    stage: str


@dataclass(frozen=True, slots=True)
class PointColumns:
    """Points; iterating over them gives each as a `Point`.

    Args:
        identities: What each is about.
        at: When; shape (n,). [Unix seconds]
        histograms: Of each.
    """

    identities: Sequence[Identity]
    at: Ints
    histograms: Histograms

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointColumns:
        """Return *points* as columns."""
        known: dict[tuple[Series, str, str], Identity] = {}
        keys = [(point.series, point.metric, point.stage) for point in points]
        return cls(
            [known.setdefault(key, Identity(*key)) for key in keys],
            np.array([point.at for point in points], np.int64),
            Histograms.of([point.histogram for point in points]),
        )

    @classmethod
    def join(cls, pieces: Sequence[PointColumns]) -> PointColumns:
        """Return the points of all *pieces*, of which there must be one, in their order."""
        return cls(
            [identity for piece in pieces for identity in piece.identities],
            np.concatenate([piece.at for piece in pieces]),
            Histograms.join([piece.histograms for piece in pieces]),
        )

    def between(self, low: int, high: int) -> PointColumns:
        """Return those from number *low* up to *high*."""
        return PointColumns(self.identities[low:high], self.at[low:high], self.histograms.between(low, high))

    def __len__(self) -> int:
        return len(self.identities)

    def __iter__(self) -> Iterator[Point]:
        for about, at, histogram in zip(self.identities, self.at.tolist(), self.histograms, strict=True):
            yield Point(about.series, about.metric, about.stage, at, histogram)


def as_columns(points: Sequence[Point] | PointColumns) -> PointColumns:
    """Return *points* as columns, which they may be already."""
    return points if isinstance(points, PointColumns) else PointColumns.of(points)


__all__ = ["Batch", "KeptTrace", "Point"]


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """One request that was kept whole.

    Args:
        trace_id: 32 hexadecimal digits; requests of one distributed trace share it.
        span_id: 16 hexadecimal digits: the root span of this request, which nothing else in the trace has.
        series: Whose request it was.
        started_ns: When it began. [Unix nanoseconds]
        duration_ns: Its wall time. [nanoseconds]
        because: Why it was kept: `slow`, `error` or `uniform`.
        dominant: The stage that took most of it.
        stages_ns: Exclusive time by stage, `overhead` included; adds up to the duration. [nanoseconds]
        spans: The recorded intervals: `name`, `stage`, `start_ns` after the start of the request, `duration_ns`,
            `attributes`.
        attributes: The attributes of the root span.
        document: Both as `documents` packs them, from who has done so already; None to have it done.
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
    document: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one export of one process carried.

    Args:
        id: Its name; the store counts a name once.
        points: Its histograms.
        traces: Its kept requests.
        dropped: Requests the agent could not count.
        instance: `service.instance.id` of the agent that sent it; "" where it was none.
        spans: Spans of requests that may not be whole yet, encoded (`collector.traces.columns`); empty for none.
        loads: Phases of its cold start.
        onward: What of it is to be sent on.
    """

    id: str
    points: Sequence[Point] | PointColumns = ()
    traces: list[KeptTrace] = field(default_factory=list[KeptTrace])
    dropped: int = 0
    instance: str = ""
    spans: bytes = b""
    loads: Sequence[Load] = ()
    onward: Sequence[Outgoing] = ()
