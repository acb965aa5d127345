"""Validation of metric points: histograms in columns, for all exports that arrived at the same time, and hardware gauges.

A valid point is a delta of a known metric at a plausible time, whose buckets add up to its count (`docs/design/wire.md`).
Metrics with other names are ignored and counted. Validation in columns costs about the same for one point and for a hundred.
Points that fail are validated again one by one with the exact rules of `validation`, which accept a sum within rounding and
explain the error.

Hardware gauges and sums come from Stagelens agents and from other programs that use the same names. A metric of another type,
such as a cumulative counter, is ignored like an unknown metric, because another backend may need it. Metrics of a process without
a service name are ignored, too, because an OpenTelemetry Collector on a host reports all processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import NamedTuple, cast

import numpy as np

from ...core import names
from ...core.hardware import BY_METRIC, DIRECTION, GENERAL, GPU_ID, GPU_TASK, Measure, hardware_key
from ...core.histogram import MAX_SCALE, MIN_SCALE, SCALE, Histogram
from ...core.names import DEVICE, HARDWARE, SERVICE_NAME
from ...store import Point
from ...store.points import Buckets, Floats, HistogramArrays, Identity, Ints, PointColumns
from ..otlp import model, protobuf_encoding
from ..otlp.protobuf_encoding import from_protobuf
from .validation import (
    MAX_BUCKETS,
    MAX_COUNT,
    NANOSECONDS,
    SUM_TOLERANCE,
    IngestResult,
    Reason,
    RejectedError,
    SeriesCache,
    SeriesReader,
    TimeWindow,
    check_interval,
    check_metric,
    dropped_requests,
    histogram_of,
    place_of,
    printable_text,
    stage_of,
)

# Maximum number of points of a gauge: more than the GPUs of a machine or the CPU modes of a process.
MAX_GAUGE_POINTS = 256
# Twice the default export interval of OpenTelemetry.
MAX_GAUGE_INTERVAL_SECONDS = 120
_DEVICE_KEYS = {"gpu": GPU_ID, "device": DEVICE}


def read_gauges(
    metric: model.Metric, resource: model.Attributes, window: TimeWindow, tally: IngestResult
) -> list[Point]:
    """Return the points of *metric*, one of `core.hardware`; invalid points are counted in *tally*."""
    kind = BY_METRIC[metric.name][0].kind
    if not _has_type_of(metric, kind) or SERVICE_NAME not in resource:
        tally.ignored += metric.size
        return []
    tally.ignored += max(0, len(metric.numbers) - MAX_GAUGE_POINTS)
    found: dict[tuple[str, int], float] = {}
    for index, point in enumerate(metric.numbers[:MAX_GAUGE_POINTS]):
        try:
            for name, at, value in _gauge_values(metric.name, point, resource, window):
                # Values of the same measure, such as system and user CPU time, are added.
                found[name, at] = found.get((name, at), 0.0) + value
        except RejectedError as error:
            tally.reject(error.reason, f"{metric.name}[{index}]: {error}")
    series = SeriesReader(resource).series({})
    return [Point(series, HARDWARE, name, at, _single_value(value)) for (name, at), value in found.items()]


def _has_type_of(metric: model.Metric, kind: str) -> bool:
    if kind == "rate":
        return metric.kind == model.SUM and metric.temporality == model.DELTA and metric.monotonic
    # An up-down sum is equivalent to a gauge.
    return metric.kind == model.GAUGE or (
        metric.kind == model.SUM and metric.temporality == model.CUMULATIVE and not metric.monotonic
    )


def _gauge_values(
    metric: str, point: model.NumberPoint, resource: model.Attributes, window: TimeWindow
) -> Iterator[tuple[str, int, float]]:
    """Yield the name, the time in Unix seconds and the value of each measure that *point* belongs to."""
    if point.flags & model.NO_RECORDED_VALUE or point.attributes.get(GPU_TASK, GENERAL) != GENERAL:
        return
    if not 0 <= point.value <= MAX_COUNT:  # refuses NaN too
        msg = f"value must lie between 0 and 2**44, got {point.value}"
        raise RejectedError(Reason.NUMBER, msg)
    window.check(point.time_ns)
    start_ns = point.start_ns if 0 < point.start_ns < point.time_ns else point.time_ns
    seconds = (point.time_ns - start_ns) / NANOSECONDS
    # The middle of the interval, as for histograms. The start of a long interval is the start of the process.
    at = (point.time_ns if seconds > MAX_GAUGE_INTERVAL_SECONDS else (start_ns + point.time_ns) // 2) // NANOSECONDS
    for measure in BY_METRIC[metric]:
        if measure.direction and point.attributes.get(DIRECTION) != measure.direction:
            continue
        if measure.kind != "rate":
            yield _measure_name(measure, point, resource), at, float(point.value)
        elif seconds:
            yield _measure_name(measure, point, resource), at, point.value / seconds


def _measure_name(measure: Measure, point: model.NumberPoint, resource: model.Attributes) -> str:
    device = printable_text(point.attributes.get(_DEVICE_KEYS.get(measure.of, ""), ""))
    return hardware_key(measure.key, place_of(resource, measure.of, device))


def _single_value(value: float) -> Histogram:
    histogram = Histogram()
    histogram.record(value)
    return histogram


_SUM_ROUNDING = 1e-9
# Finite float64 values, subnormals included, lie between 2**-1074 and 2**1024.
_MAX_EXPONENT = 1075


def valid_mask(columns: model.HistogramColumns, timed: model.Flags, window: TimeWindow) -> model.Flags:
    """Return a mask of the non-empty points that are valid, attributes not checked; shape (n,).

    Args:
        timed: Mask of points whose sum is the sum of the values in their buckets; shape (n,).
    """
    buckets, low, high = columns.buckets, *_outermost(columns)
    filled = _sums(buckets.amount, buckets)
    too_large = _sums((buckets.amount <= 0) | (buckets.amount > MAX_COUNT), buckets)
    scale = np.clip(columns.scale, MIN_SCALE, SCALE)
    with np.errstate(all="ignore"):
        fits = ~timed | _sum_fits(columns, filled, _edge(low, scale), _edge(high + 1, scale))
    return (
        ~columns.odd
        & _in_time(columns, window)
        & (columns.scale >= MIN_SCALE)
        & (columns.scale <= MAX_SCALE)
        & (columns.lengths <= MAX_BUCKETS)
        & (columns.count > 0)
        & (columns.count <= MAX_COUNT)
        & (columns.zero <= MAX_COUNT)
        & (too_large == 0)
        & (filled + columns.zero.view(np.int64) == columns.count.view(np.int64))
        & (np.maximum(high, -low) <= np.ldexp(float(_MAX_EXPONENT), scale))
        & fits
    )


def valid_points(
    columns: model.HistogramColumns, good: model.Flags, about: Sequence[Identity], timed: model.Flags
) -> PointColumns:
    """Return the points in the mask *good*, at a scale no finer than `SCALE`; other rows of *columns* are not read."""
    start_ns = _starts(columns)
    middle = (start_ns + (columns.time_ns - start_ns) // 2) // NANOSECONDS
    histograms = HistogramArrays(
        np.minimum(columns.scale, SCALE),
        columns.zero.view(np.int64),
        np.where(timed, columns.sum, 0.0),
        columns.buckets,
    )
    finer = np.maximum(columns.scale - SCALE, 0)
    if not good.all():
        histograms, middle, finer = histograms.where(good), middle[good], finer[good]
    buckets = histograms.buckets
    if finer.any():
        index = buckets.index >> np.repeat(finer, buckets.lengths)
        histograms = replace(histograms, buckets=replace(buckets, index=index))
    return PointColumns(about, middle.astype(np.int64), histograms)


def _sums(values: Ints | model.Flags, buckets: Buckets) -> Ints:
    running = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    return np.diff(running[buckets.offsets])


def _in_time(columns: model.HistogramColumns, window: TimeWindow) -> model.Flags:
    start_ns = _starts(columns)
    oldest, newest = (np.uint64(max(at, 0)) for at in (window.oldest, window.newest))
    return (
        (start_ns // NANOSECONDS >= oldest) & (columns.time_ns // NANOSECONDS <= newest) & (start_ns <= columns.time_ns)
    )


def _starts(columns: model.HistogramColumns) -> model.Unsigned:
    """Return the start of the interval of each point, in Unix nanoseconds; shape (n,)."""
    return np.where(columns.start_ns == 0, columns.time_ns, columns.start_ns)


def _outermost(columns: model.HistogramColumns) -> tuple[Ints, Ints]:
    """Return the lowest and highest bucket of each point, at a scale no finer than `SCALE`; arbitrary if it has no buckets."""
    index, offsets = np.append(columns.buckets.index, 0), columns.buckets.offsets
    finer = np.clip(columns.scale - SCALE, 0, MAX_SCALE)
    return index[offsets[:-1]] >> finer, index[offsets[1:] - 1] >> finer


def _sum_fits(columns: model.HistogramColumns, filled: Ints, low: Floats, high: Floats) -> model.Flags:
    """Return a mask of the points whose sum is possible for values in the buckets *low* to *high*."""
    least = filled * low / SUM_TOLERANCE * (1 + _SUM_ROUNDING)
    most = np.where(columns.zero > 0, np.inf, filled * high * SUM_TOLERANCE * (1 - _SUM_ROUNDING))
    return columns.has_sum & np.isfinite(columns.sum) & (least <= columns.sum) & (columns.sum <= most)


def _edge(index: Ints, scale: Ints) -> Floats:
    """Return the lower edge of each bucket, at most the largest power of two of float64."""
    return np.exp2(np.minimum(np.ldexp(index.astype(np.float64), -scale), 1023))


# A bucket takes one byte on the wire and about 100 bytes in memory: without a limit a small body would exhaust the memory.
MAX_BUCKETS_A_BATCH = 500_000
# Limit of a batch, nine years of stage time in microseconds: one million concurrent requests for two minutes.
MAX_COUNT_A_BATCH = 2**48
# Serialized points validated at once; intermediate arrays take up to fifty times this size. [bytes]
_CHUNK_BYTES = 256 * 1024
# Approximate size of a JSON point without its buckets. [bytes]
_POINT_BYTES = 100

_SERIES_CACHE = SeriesCache()


class _PointGroup(NamedTuple):
    """Consecutive points of one metric and process, parsed or serialized, from index *first* of the metric on."""

    owner: PointReader
    reader: SeriesReader
    metric: str
    first: int
    points: Sequence[bytes] | Sequence[model.HistogramPoint]
    size_bytes: int


@dataclass(slots=True, eq=False)
class PointReader:
    """Reader of the metrics of one export; collects their valid points."""

    window: TimeWindow
    dropped: int = 0  # requests that the sender reported as not counted
    tally: IngestResult = field(default_factory=IngestResult)
    _pieces: list[PointColumns] = field(default_factory=list[PointColumns])
    _exact: list[Point] = field(default_factory=list[Point])
    _buckets: int = 0
    _count: int = 0

    def read(self, export: Sequence[model.ResourceMetrics]) -> None:
        """Add the points of *export*; invalid points are counted in `tally`."""
        read_exports([(self, export)])

    @property
    def points(self) -> PointColumns:
        exact = [PointColumns.of(self._exact)] if self._exact or not self._pieces else []
        return PointColumns.join([*self._pieces, *exact])

    def parts(self, item: model.ResourceMetrics) -> Iterator[_PointGroup]:
        """Yield the histogram points of *item* for validation; add gauges and count ignored metrics at once."""
        reader = SeriesReader(item.resource)
        for metric in item.metrics:
            if metric.name in BY_METRIC:
                self._exact += read_gauges(metric, item.resource, self.window, self.tally)
                continue
            wanted = model.WANTED.get(metric.name)
            if wanted is None:
                self.tally.ignored += metric.size
                continue
            try:
                check_metric(metric, wanted)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[0..{metric.size - 1}]: {error}", metric.size)
                continue
            self._read_numbers(metric)
            yield from _split(self, metric, reader)

    def _read_numbers(self, metric: model.Metric) -> None:
        for index, number in enumerate(metric.numbers):
            try:
                self.dropped += dropped_requests(number.value)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[{index}]: {error}")

    def has_capacity(self, buckets: int, count: float) -> bool:
        """Return whether points with this number of filled *buckets* and *count* values fit into the batch."""
        return self._buckets + buckets <= MAX_BUCKETS_A_BATCH and self._count + count <= MAX_COUNT_A_BATCH

    def add(self, points: PointColumns) -> None:
        self._pieces.append(points)
        self._buckets += len(points.histograms.buckets.index)
        self._count += int(points.histograms.zero.sum() + points.histograms.buckets.amount.sum())

    def read_exactly(self, part: _PointGroup, number: int) -> None:
        """Add point *number* of *part* if it is valid, else count the rejection with its explanation."""
        sent = part.points[number]
        try:
            self._read_one(part, protobuf_encoding.read_point(sent) if isinstance(sent, bytes) else sent)
        except RejectedError as error:
            self.tally.reject(error.reason, f"{part.metric}[{part.first + number}]: {error}")

    def _read_one(self, part: _PointGroup, point: model.HistogramPoint) -> None:
        if point.flags & model.NO_RECORDED_VALUE:
            return
        start_ns, time_ns = check_interval(point, self.window)
        histogram = histogram_of(part.metric, point)
        series = part.reader.series(point.attributes)
        stage = stage_of(part.metric, point.attributes, part.reader.place)
        if not histogram.buckets and not histogram.zero:
            return
        if self._buckets + len(histogram.buckets) > MAX_BUCKETS_A_BATCH:
            msg = f"the batch has more than {MAX_BUCKETS_A_BATCH} filled buckets; send smaller batches"
            raise RejectedError(Reason.SIZE, msg)
        if self._count + histogram.count > MAX_COUNT_A_BATCH:
            raise RejectedError(Reason.SIZE, "the counts of the batch add up to more than 2**48; send smaller batches")
        self._buckets += len(histogram.buckets)
        self._count += histogram.count
        # The middle of the interval: a ten-second delta belongs to the time bucket that most of it lies in.
        at = (start_ns + time_ns) // 2 // NANOSECONDS
        self._exact.append(Point(series, part.metric, stage, at, histogram))


def read_exports(exports: Sequence[tuple[PointReader, Sequence[model.ResourceMetrics]]]) -> None:
    """Validate all exports together, and add the points of each export to its reader; all readers have the same window.

    Raises:
        WireError: A point is malformed; the state of all readers is then undefined.
    """
    for parts in _chunked(part for reader, export in exports for item in export for part in reader.parts(item)):
        _read_points(parts)


def _read_points(parts: Sequence[_PointGroup]) -> None:
    columns = _columns(parts)
    sizes = [len(part.points) for part in parts]
    ends = np.cumsum(sizes).tolist()
    about: list[Identity | None] = []
    for part, size, end in zip(parts, sizes, ends, strict=True):
        about += _SERIES_CACHE.of(part.reader, part.metric, columns.attributes[end - size : end])
    timed = np.repeat([part.metric not in names.TIME_METRICS for part in parts], sizes)
    good = valid_mask(columns, timed, parts[0].owner.window)
    if None in about:
        good &= [identity is not None for identity in about]
    owned = list(_point_ranges(parts))
    offsets = columns.buckets.offsets
    for owner, low, high in owned:
        count = columns.count[low:high][good[low:high]].sum(dtype=np.float64)
        if not owner.has_capacity(int(offsets[high] - offsets[low]), float(count)):
            good[low:high] = False
    identities = [one for one, ok in zip(about, good.tolist(), strict=True) if ok and one]
    chosen = valid_points(columns, good, identities, timed)
    place = np.concatenate((np.zeros(1, np.int64), np.cumsum(good))).tolist()
    for owner, low, high in owned:
        owner.add(chosen.between(place[low], place[high]))
    for number in np.flatnonzero(~good).tolist():
        which = bisect_right(ends, number)
        parts[which].owner.read_exactly(parts[which], number - (ends[which] - sizes[which]))


def _point_ranges(parts: Sequence[_PointGroup]) -> Iterator[tuple[PointReader, int, int]]:
    """Yield each reader in *parts* with the range [low, high) of its points."""
    high = 0
    for owner, own in groupby(parts, lambda part: part.owner):
        low, high = high, high + sum(len(part.points) for part in own)
        yield owner, low, high


def _split(owner: PointReader, metric: model.Metric, reader: SeriesReader) -> Iterator[_PointGroup]:
    points = metric.histograms
    sizes = [len(point) if isinstance(point, bytes) else _POINT_BYTES + len(point.counts) for point in points]
    if sizes and (total := sum(sizes)) <= _CHUNK_BYTES:
        yield _PointGroup(owner, reader, metric.name, 0, points, total)
        return
    first = size = 0
    for number, more in enumerate(sizes):
        if size and size + more > _CHUNK_BYTES:
            yield _PointGroup(owner, reader, metric.name, first, points[first:number], size)
            first, size = number, 0
        size += more
    if points:
        yield _PointGroup(owner, reader, metric.name, first, points[first:], size)


def _chunked(parts: Iterator[_PointGroup]) -> Iterator[list[_PointGroup]]:
    """Yield *parts* in lists of up to `_CHUNK_BYTES`; a list has only serialized or only parsed points."""
    held: list[_PointGroup] = []
    size = 0
    for part in parts:
        if held and (size + part.size_bytes > _CHUNK_BYTES or _is_serialized(part) != _is_serialized(held[0])):
            yield held
            held, size = [], 0
        held.append(part)
        size += part.size_bytes
    if held:
        yield held


def _is_serialized(part: _PointGroup) -> bool:
    return isinstance(part.points[0], bytes)


def _columns(parts: Sequence[_PointGroup]) -> model.HistogramColumns:
    points = list(chain.from_iterable(part.points for part in parts))
    if _is_serialized(parts[0]):
        return from_protobuf(cast("list[bytes]", points))
    return model.from_points(cast("list[model.HistogramPoint]", points))
