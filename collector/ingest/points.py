"""Validation of histogram points in columns, for all exports that arrived at the same time.

A valid point is a delta of a known metric at a plausible time, whose buckets add up to its count (`docs/design/wire.md`).
Metrics with other names are ignored and counted. Validation in columns costs about the same for one point and for a hundred.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from ...core import names
from ...core.columns import Bools, Floats, HistogramArrays, Ints, offsets_of
from ...core.hardware import BY_METRIC
from ...core.histogram import MAX_SCALE, MIN_SCALE, SCALE
from ...store import Point
from ...store.points import Identity, PointColumns
from ..otlp import model
from ..otlp.protobuf_encoding import HistogramColumns, histogram_columns
from ..otlp.scan import Unsigned
from .gauges import read_gauges
from .series import SeriesCache, SeriesReader
from .validation import MAX_COUNT, NANOSECONDS, IngestResult, Reason, RejectedError, TimeWindow, Validation

# 20,000 buckets cover, at scale 10, more than the whole range from a nanosecond to a day.
MAX_BUCKETS = 20_000
# A bucket takes one byte on the wire and about 100 bytes in memory: without a limit a small body would exhaust the memory.
MAX_BUCKETS_A_BATCH = 500_000
# Limit of a batch, nine years of stage time in microseconds: one million concurrent requests for two minutes.
MAX_COUNT_A_BATCH = 2**48
# Factor by which a sum may lie outside the range of its buckets because of rounding.
SUM_TOLERANCE = 1.05
# Finite float64 values, subnormals included, lie between 2**-1074 and 2**1024.
_MAX_EXPONENT = 1075
# Serialized points validated at once; intermediate arrays take up to fifty times this size. [bytes]
_CHUNK_BYTES = 256 * 1024
_METRIC_FIXES = {
    model.EXPONENTIAL_HISTOGRAM: "set the OpenTelemetry view's aggregation to ExponentialBucketHistogramAggregation",
    model.SUM: "record it with a counter",
}

_SERIES_CACHE = SeriesCache()


class _Run(NamedTuple):
    """Consecutive serialized points of one metric and process, from index *first* of the metric on."""

    owner: PointReader
    series: SeriesReader
    metric: str
    first: int
    points: Sequence[bytes]


@dataclass(slots=True, eq=False)
class PointReader:
    window: TimeWindow
    dropped: int = 0  # requests that the sender reported as not counted
    tally: IngestResult = field(default_factory=IngestResult)
    buckets: int = 0  # number of filled buckets of the valid points
    count: int = 0  # number of values of the valid points
    _pieces: list[PointColumns] = field(default_factory=list[PointColumns])
    _gauges: list[Point] = field(default_factory=list[Point])

    def read(self, export: Sequence[model.ResourceMetrics]) -> None:
        read_exports([(self, export)])

    @property
    def points(self) -> PointColumns:
        gauges = [PointColumns.of(self._gauges)] if self._gauges or not self._pieces else []
        return PointColumns.join([*self._pieces, *gauges])

    def runs(self, item: model.ResourceMetrics) -> Iterator[_Run]:
        """Yield the histogram points of *item* for validation; add gauges and count ignored metrics at once."""
        series = SeriesReader(item.resource)
        for metric in item.metrics:
            if metric.name in BY_METRIC:
                self._gauges += read_gauges(metric, item.resource, self.window, self.tally)
            elif metric.name not in model.WANTED:
                self.tally.ignored += metric.size
            else:
                try:
                    _check_metric(metric)
                except RejectedError as error:
                    self.tally.reject(error.reason, f"{metric.name}[0..{metric.size - 1}]: {error}", metric.size)
                    continue
                self._read_dropped(metric)
                points = metric.histograms
                step = max(_CHUNK_BYTES // max(map(len, points), default=1), 1)
                for first in range(0, len(points), step):
                    yield _Run(self, series, metric.name, first, points[first : first + step])

    def _read_dropped(self, metric: model.Metric) -> None:
        for index, number in enumerate(metric.numbers):
            if 0 <= number.value <= MAX_COUNT:  # false for NaN
                self.dropped += int(number.value)
            else:
                msg = f"{metric.name}[{index}]: value must lie between 0 and 2**44, got {number.value}"
                self.tally.reject(Reason.NUMBER, msg)

    def add(self, points: PointColumns) -> None:
        self._pieces.append(points)
        self.buckets += len(points.histograms.buckets.index)
        self.count += int(points.histograms.count.sum())


def _check_metric(metric: model.Metric) -> None:
    wanted = model.WANTED[metric.name]
    if metric.kind != wanted:
        msg = f"must be of type {wanted}, got {metric.kind or 'nothing'}; {_METRIC_FIXES[wanted]}"
        raise RejectedError(Reason.TYPE, msg)
    if metric.temporality != model.DELTA:
        msg = (
            f"aggregationTemporality must be delta ({model.DELTA}), got {metric.temporality}; set "
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta in the sending process"
        )
        raise RejectedError(Reason.TEMPORALITY, msg)
    if wanted == model.SUM and not metric.monotonic:
        msg = "isMonotonic must be true; record it with a counter, not an up-down counter"
        raise RejectedError(Reason.TYPE, msg)


def read_exports(exports: Sequence[tuple[PointReader, Sequence[model.ResourceMetrics]]]) -> None:
    """Validate all exports together, and add the points of each export to its reader; all readers have the same window.

    Raises:
        WireError: A point is malformed; the state of all readers is then undefined.
    """
    for runs in _chunked(run for reader, export in exports for item in export for run in reader.runs(item)):
        _read_points(runs)


def _chunked(runs: Iterable[_Run]) -> Iterator[list[_Run]]:
    chunk: list[_Run] = []
    size = 0
    for run in runs:
        run_size = sum(map(len, run.points))
        if chunk and size + run_size > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(run)
        size += run_size
    if chunk:
        yield chunk


def _read_points(runs: Sequence[_Run]) -> None:
    columns = histogram_columns(list(chain.from_iterable(run.points for run in runs)))
    sizes = [len(run.points) for run in runs]
    edges = offsets_of(np.array(sizes, np.int64)).tolist()
    identities: list[Identity | RejectedError] = []
    for run, low, high in zip(runs, edges, edges[1:], strict=False):
        identities += _SERIES_CACHE.of(run.series, run.metric, columns.attributes[low:high])
    ranges = list(_ranges_by_owner(runs))

    def name(row: int) -> str:
        number = bisect_right(edges, row) - 1
        return f"{runs[number].metric}[{runs[number].first + row - edges[number]}]"

    validation = Validation(len(columns), [(owner.tally, low, high) for owner, low, high in ranges], name)
    is_timed = np.repeat([run.metric not in names.TIME_METRICS for run in runs], sizes)
    start_ns = np.where(columns.start_ns == 0, columns.time_ns, columns.start_ns)
    validation.valid &= columns.flags & model.NO_RECORDED_VALUE == 0
    _validate_times(validation, runs[0].owner.window, start_ns, columns.time_ns)
    _validate_counts(validation, columns)
    _validate_sums(validation, columns, is_timed)
    _validate_identities(validation, identities)
    _validate_sizes(validation, columns, ranges)
    valid = validation.valid & (columns.count > 0)
    points = _points(columns, valid, identities, is_timed, start_ns)
    positions = offsets_of(valid).tolist()
    for owner, low, high in ranges:
        owner.add(points.between(positions[low], positions[high]))


def _ranges_by_owner(runs: Sequence[_Run]) -> Iterator[tuple[PointReader, int, int]]:
    high = 0
    for owner, group in groupby(runs, lambda run: run.owner):
        low, high = high, high + sum(len(run.points) for run in group)
        yield owner, low, high


def _validate_times(validation: Validation, window: TimeWindow, start_ns: Unsigned, time_ns: Unsigned) -> None:
    for times in (start_ns, time_ns):
        validation.reject(window.excludes(times), Reason.TIME, lambda row, times=times: window.explain(int(times[row])))
    validation.reject(
        start_ns > time_ns,
        Reason.TIME,
        lambda row: f"startTimeUnixNano {start_ns[row]} is after timeUnixNano {time_ns[row]}",
    )


def _validate_counts(validation: Validation, columns: HistogramColumns) -> None:
    scale, zero, buckets = columns.histograms.scale, columns.histograms.zero, columns.histograms.buckets
    validation.reject(
        (scale < MIN_SCALE) | (scale > MAX_SCALE),
        Reason.SCALE,
        lambda row: f"scale must lie between {MIN_SCALE} and {MAX_SCALE}, got {scale[row]}",
    )
    validation.reject(
        columns.lengths > MAX_BUCKETS,
        Reason.BUCKETS,
        lambda row: f"it has {columns.lengths[row]} buckets, more than {MAX_BUCKETS}; send a coarser scale",
    )
    validation.reject(
        columns.negative,
        Reason.NEGATIVE,
        lambda _: "it contains negative values; a duration must not be negative",
    )
    # First the parts, because their sum may overflow.
    too_large = buckets.sums((buckets.amount < 0) | (buckets.amount > MAX_COUNT)) > 0
    too_large |= (zero < 0) | (zero > MAX_COUNT) | (columns.count > MAX_COUNT)
    validation.reject(
        too_large,
        Reason.COUNT,
        lambda row: f"counts must not be above 2**44, and the point has count {columns.count[row]}",
    )
    held = buckets.totals + zero
    validation.reject(
        held != columns.count.view(np.int64),
        Reason.COUNT,
        lambda row: f"count is {columns.count[row]}, but its buckets and zeroCount contain {held[row]}",
    )


def _validate_sums(validation: Validation, columns: HistogramColumns, is_timed: Bools) -> None:
    """Reject sums that are impossible for the buckets, which indicates mixed units or a corrupted point."""
    total, buckets = columns.histograms.sum, columns.histograms.buckets
    scale = np.clip(columns.histograms.scale, MIN_SCALE, MAX_SCALE)
    validation.reject(
        is_timed & ~columns.has_sum & (columns.count > 0),
        Reason.SUM,
        lambda _: "sum is missing; without it no mean can be shown",
    )
    validation.reject(
        is_timed & ~np.isfinite(total), Reason.SUM, lambda row: f"sum must be a finite number, got {total[row]}"
    )
    # Arbitrary for a point without buckets, whose bounds are then zero.
    index = np.append(buckets.index, 0)
    lowest, highest = index[buckets.offsets[:-1]], index[buckets.offsets[1:] - 1]
    has_buckets = buckets.lengths > 0
    validation.reject(
        has_buckets & (np.maximum(highest, -lowest) > np.ldexp(float(_MAX_EXPONENT), scale)),
        Reason.BUCKETS,
        lambda row: (
            f"its buckets {lowest[row]} to {highest[row]} lie outside the range of a 64-bit float at scale {scale[row]}"
        ),
    )
    filled = buckets.totals
    with np.errstate(all="ignore"):
        least = np.where(has_buckets, filled * _edge(lowest, scale) / SUM_TOLERANCE, 0)
        most = np.where(has_buckets, filled * _edge(highest + 1, scale) * SUM_TOLERANCE, 0)
        # The sender chooses the zeroThreshold.
        most[columns.histograms.zero > 0] = np.inf
        impossible = is_timed & ~((least <= total) & (total <= most))
    validation.reject(
        impossible,
        Reason.SUM,
        lambda row: (
            f"sum is {total[row]:g}, but values in its buckets add up to between {least[row]:g} and {most[row]:g}"
        ),
    )


def _edge(index: Ints, scale: Ints) -> Floats:
    """Return the lower edge of each bucket, at most the largest power of two of float64."""
    return np.exp2(np.minimum(np.ldexp(index.astype(np.float64), -scale), 1023))


def _validate_identities(validation: Validation, identities: Sequence[Identity | RejectedError]) -> None:
    errors = {row: error for row, error in enumerate(identities) if isinstance(error, RejectedError)}
    for reason in sorted({error.reason for error in errors.values()}):
        wrong = np.zeros(len(identities), np.bool_)
        wrong[[row for row, error in errors.items() if error.reason == reason]] = True
        validation.reject(wrong, reason, lambda row: str(errors[row]))


def _validate_sizes(
    validation: Validation, columns: HistogramColumns, ranges: Sequence[tuple[PointReader, int, int]]
) -> None:
    lengths = np.where(validation.valid, columns.histograms.buckets.lengths, 0)
    counts = np.where(validation.valid, columns.count, 0).astype(np.int64)
    has_many_buckets, has_large_counts = np.zeros(len(columns), np.bool_), np.zeros(len(columns), np.bool_)
    for owner, low, high in ranges:
        has_many_buckets[low:high] = owner.buckets + np.cumsum(lengths[low:high]) > MAX_BUCKETS_A_BATCH
        has_large_counts[low:high] = owner.count + np.cumsum(counts[low:high]) > MAX_COUNT_A_BATCH
    validation.reject(
        has_many_buckets,
        Reason.SIZE,
        lambda _: f"the batch has more than {MAX_BUCKETS_A_BATCH} filled buckets; send smaller batches",
    )
    validation.reject(
        has_large_counts,
        Reason.SIZE,
        lambda _: "the counts of the batch add up to more than 2**48; send smaller batches",
    )


def _points(
    columns: HistogramColumns,
    valid: Bools,
    identities: Sequence[Identity | RejectedError],
    is_timed: Bools,
    start_ns: Unsigned,
) -> PointColumns:
    """Return the *valid* points, at a scale no finer than `SCALE`."""
    # The middle of the interval: a ten-second delta belongs to the time bucket that most of it lies in.
    at = (start_ns + (columns.time_ns - start_ns) // 2) // NANOSECONDS
    histograms = replace(columns.histograms, sum=np.where(is_timed, columns.histograms.sum, 0.0)).where(valid)
    finer = np.maximum(histograms.scale - SCALE, 0)
    if finer.any():
        buckets = histograms.buckets
        index = buckets.index >> np.repeat(finer, buckets.lengths)
        histograms = HistogramArrays(
            histograms.scale - finer, histograms.zero, histograms.sum, replace(buckets, index=index)
        )
    valid_identities = [identity for identity, is_valid in zip(identities, valid.tolist(), strict=True) if is_valid]
    return PointColumns(
        [identity for identity in valid_identities if isinstance(identity, Identity)],
        at[valid].astype(np.int64),
        histograms,
    )
