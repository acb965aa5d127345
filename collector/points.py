"""Data points, each believed or refused by itself.

A point that passes means what `docs/architecture.md` says it means: a delta, of a known metric, at a plausible time, whose
buckets add up to its count. Metrics of other names are not ours to judge: they are passed over and counted.

All points of an export are judged at once, as columns; the few that do not pass are judged again, one by one and by
`point_rules`, which say what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..core import names
from ..core.histogram import SCALE
from . import protobuf_wire
from .dimensions import SeriesReader
from .histogram_columns import HistogramColumns, from_points, from_protobuf
from .identities import Identities, stage_of
from .point_checks import believable, starts
from .point_rules import NANOSECONDS, Window, check_interval, check_metric, dropped_requests, histogram_of
from .protobuf_scan import Flags
from .store import Point
from .store.encoding import Buckets
from .store.histograms import Histograms
from .store.point_columns import Identity, PointColumns
from .tally import Reason, RejectedError, Tally
from .wire import NO_RECORDED_VALUE, WANTED, HistogramPoint, Metric, ResourceMetrics

__all__ = ["PointReader", "Window"]

# A bucket takes about 100 bytes once read, and one byte on the wire: without a limit a small body would fill the memory.
MAX_BUCKETS_A_BATCH = 500_000
# Points read at once, as they came: what is made of them in between takes up to fifty times the room. [bytes]
_AT_ONCE_BYTES = 256 * 1024
# What a point of JSON takes beside its buckets, about. [bytes]
_POINT_BYTES = 100

_REMEMBERED = Identities()


class _Part(NamedTuple):
    """Points of one metric and one process, from number *first* on; as they are or serialized."""

    reader: SeriesReader
    metric: str
    first: int
    points: Sequence[bytes] | Sequence[HistogramPoint]
    size_bytes: int


@dataclass(slots=True)
class PointReader:
    """Reads the metrics of one export into points.

    Args:
        window: Which times are plausible.
        dropped: Requests the senders say they could not count.
        tally: What became of all points.
    """

    window: Window
    dropped: int = 0
    tally: Tally = field(default_factory=Tally)
    _pieces: list[PointColumns] = field(default_factory=list[PointColumns])
    _exact: list[Point] = field(default_factory=list[Point])
    _buckets: int = 0

    def read(self, export: Sequence[ResourceMetrics]) -> None:
        """Take in the points of *export*; nothing is raised for a bad one, it is tallied.

        Raises:
            WireError: A point is malformed.
        """
        for parts in _at_once(part for item in export for part in self._parts(item)):
            self._read_points(parts)

    @property
    def points(self) -> PointColumns:
        """What was believed."""
        return PointColumns.join([*self._pieces, PointColumns.of(self._exact)])

    def _parts(self, item: ResourceMetrics) -> Iterator[_Part]:
        reader = SeriesReader(item.resource)
        for metric in item.metrics:
            wanted = WANTED.get(metric.name)
            if wanted is None:
                self.tally.ignored += metric.size
                continue
            try:
                check_metric(metric, wanted)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[0..{metric.size - 1}]: {error}", metric.size)
                continue
            self._read_numbers(metric)
            yield from _split(metric, reader)

    def _read_numbers(self, metric: Metric) -> None:
        for index, number in enumerate(metric.numbers):
            try:
                self.dropped += dropped_requests(number.value)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[{index}]: {error}")

    def _read_points(self, parts: Sequence[_Part]) -> None:
        columns = _columns(parts)
        sizes = [len(part.points) for part in parts]
        ends = np.cumsum(sizes).tolist()
        about: list[Identity | None] = []
        for part, size, end in zip(parts, sizes, ends, strict=True):
            about += _REMEMBERED.of(part.reader, part.metric, columns.attributes[end - size : end])
        timed = np.repeat([part.metric not in names.TIME_METRICS for part in parts], sizes)
        good = believable(columns, timed, self.window) & [identity is not None for identity in about]
        if self._buckets + len(columns.buckets.index) > MAX_BUCKETS_A_BATCH:
            good[:] = False
        self._buckets += int(columns.buckets.lengths[good].sum())
        self._pieces.append(
            _chosen(columns, good, [one for one, ok in zip(about, good, strict=True) if ok and one], timed)
        )
        for number in np.flatnonzero(~good).tolist():
            owner = next(place for place, end in enumerate(ends) if number < end)
            self._read_exactly(parts[owner], number - (ends[owner] - sizes[owner]))

    def _read_exactly(self, part: _Part, number: int) -> None:
        sent = part.points[number]
        try:
            self._read_one(part, protobuf_wire.read_point(sent) if isinstance(sent, bytes) else sent)
        except RejectedError as error:
            self.tally.reject(error.reason, f"{part.metric}[{part.first + number}]: {error}")

    def _read_one(self, part: _Part, point: HistogramPoint) -> None:
        if point.flags & NO_RECORDED_VALUE:
            return
        start_ns, time_ns = check_interval(point, self.window)
        histogram = histogram_of(part.metric, point)
        series = part.reader.series(point.attributes)
        stage = stage_of(part.metric, point.attributes)
        if not histogram.buckets and not histogram.zero:
            return
        if self._buckets + len(histogram.buckets) > MAX_BUCKETS_A_BATCH:
            msg = f"the batch has more than {MAX_BUCKETS_A_BATCH} filled buckets; send smaller batches"
            raise RejectedError(Reason.SIZE, msg)
        self._buckets += len(histogram.buckets)
        # The middle of the interval: a delta of ten seconds belongs to the bucket most of it lies in.
        at = (start_ns + time_ns) // 2 // NANOSECONDS
        self._exact.append(Point(series, part.metric, stage, at, histogram))


def _split(metric: Metric, reader: SeriesReader) -> Iterator[_Part]:
    """Yield the histograms of *metric* in parts of a size to be read at once."""
    points = metric.histograms
    sizes = [len(point) if isinstance(point, bytes) else _POINT_BYTES + len(point.counts) for point in points]
    first = size = 0
    for number, more in enumerate(sizes):
        if size and size + more > _AT_ONCE_BYTES:
            yield _Part(reader, metric.name, first, points[first:number], size)
            first, size = number, 0
        size += more
    if points:
        yield _Part(reader, metric.name, first, points[first:], size)


def _at_once(parts: Iterator[_Part]) -> Iterator[list[_Part]]:
    """Yield *parts* in lists of a size to be read at once."""
    held: list[_Part] = []
    for part in parts:
        if held and sum(one.size_bytes for one in held) + part.size_bytes > _AT_ONCE_BYTES:
            yield held
            held = []
        held.append(part)
    if held:
        yield held


def _columns(parts: Sequence[_Part]) -> HistogramColumns:
    points = [point for part in parts for point in part.points]
    serialized = [point for point in points if isinstance(point, bytes)]
    return from_protobuf(serialized) if serialized else from_points([p for p in points if not isinstance(p, bytes)])


def _chosen(columns: HistogramColumns, good: Flags, about: Sequence[Identity], timed: Flags) -> PointColumns:
    """Return the *good* points, at a scale no finer than ours; the others may hold anything."""
    buckets = columns.buckets
    finer = np.maximum(columns.scale - SCALE, 0)[good]
    kept, lengths = np.repeat(good, buckets.lengths), buckets.lengths[good]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    start_ns = starts(columns)
    middle = (start_ns + (columns.time_ns - start_ns) // 2) // NANOSECONDS
    return PointColumns(
        about,
        middle[good].astype(np.int64),
        Histograms(
            np.minimum(columns.scale, SCALE)[good],
            columns.zero[good].astype(np.int64),
            np.where(timed, columns.sum, 0.0)[good],
            Buckets(offsets, buckets.index[kept] >> np.repeat(finer, lengths), buckets.amount[kept]),
        ),
    )
