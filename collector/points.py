"""Data points, each believed or refused by itself.

A point that passes means what `docs/architecture.md` says it means: a delta, of a known metric, at a plausible time, whose
buckets add up to its count. Metrics of other names are not ours to judge: they are passed over and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..core import names, stages
from ..core.bands import BATCHES, TOKENS
from ..core.histogram import MAX_SCALE, MIN_SCALE, Histogram, bucket_bounds
from .dimensions import SeriesReader, stage_name, text
from .store import Point
from .tally import Reason, RejectedError, Tally
from .wire import DELTA, EXPONENTIAL_HISTOGRAM, NO_RECORDED_VALUE, SUM, WANTED, HistogramPoint, Metric, ResourceMetrics

# 20,000 buckets cover, at scale 10, more than the whole range from a nanosecond to a day.
MAX_BUCKETS = 20_000
# A bucket takes about 100 bytes once read, and one byte on the wire: without a limit a small body would fill the memory.
MAX_BUCKETS_A_BATCH = 500_000
# Far above any real count; thirty thousand such points still add up within a signed 64-bit integer.
MAX_COUNT = 2**48
# A sum may leave its outermost buckets by rounding, never by more than this factor.
_SUM_SLACK = 1.05

_NANOSECONDS = 1_000_000_000
# Attributes whose values are bands of sizes.
_BANDS = {names.BATCH_BAND: BATCHES, names.TOKEN_BAND: TOKENS}
_CURES = {
    EXPONENTIAL_HISTOGRAM: "set the OpenTelemetry view's aggregation to ExponentialBucketHistogramAggregation",
    SUM: "record it with a counter",
}


@dataclass(frozen=True, slots=True)
class Window:
    """Which times are plausible: [oldest, newest], in Unix seconds."""

    oldest: int
    newest: int

    def check(self, time_ns: int) -> None:
        """Refuse a time outside the window.

        Raises:
            RejectedError: *time_ns* is outside.
        """
        at = time_ns // _NANOSECONDS
        if at < self.oldest:
            msg = f"its time, {at} s after 1970, is too long ago, before {self.oldest}; check the sender's clock"
            raise RejectedError(Reason.TIME, msg)
        if at > self.newest:
            msg = f"its time, {at} s after 1970, is more than a day ahead ({self.newest}); check the sender's clock"
            raise RejectedError(Reason.TIME, msg)


@dataclass(slots=True)
class PointReader:
    """Reads the metrics of one export into points.

    Args:
        window: Which times are plausible.
        points: What was believed.
        dropped: Requests the senders say they could not count.
        tally: What became of all points.
    """

    window: Window
    points: list[Point] = field(default_factory=list[Point])
    dropped: int = 0
    tally: Tally = field(default_factory=Tally)
    _buckets: int = 0

    def read(self, export: list[ResourceMetrics]) -> None:
        """Take in the points of *export*; nothing is raised for a bad one, it is tallied."""
        for item in export:
            reader = SeriesReader(item.resource)
            for metric in item.metrics:
                self._read_metric(metric, reader)

    def _read_metric(self, metric: Metric, reader: SeriesReader) -> None:
        wanted = WANTED.get(metric.name)
        if wanted is None:
            self.tally.ignored += metric.size
            return
        try:
            _check_metric(metric, wanted)
        except RejectedError as error:
            self.tally.reject(error.reason, f"{metric.name}[0..{metric.size - 1}]: {error}", metric.size)
            return
        for index, point in enumerate(metric.histograms):
            try:
                self._read_histogram(metric.name, point, reader)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[{index}]: {error}")
        for index, number in enumerate(metric.numbers):
            try:
                self.dropped += _dropped(number.value)
            except RejectedError as error:
                self.tally.reject(error.reason, f"{metric.name}[{index}]: {error}")

    def _read_histogram(self, metric: str, point: HistogramPoint, reader: SeriesReader) -> None:
        if point.flags & NO_RECORDED_VALUE:
            return
        start_ns = point.start_ns or point.time_ns
        self.window.check(start_ns)
        self.window.check(point.time_ns)
        if start_ns > point.time_ns:
            msg = f"startTimeUnixNano {start_ns} is after timeUnixNano {point.time_ns}"
            raise RejectedError(Reason.TIME, msg)
        histogram = _histogram(metric, point)
        series = reader.series(point.attributes)
        stage = _stage(metric, point)
        if not histogram.buckets and not histogram.zero:
            return
        if self._buckets + len(histogram.buckets) > MAX_BUCKETS_A_BATCH:
            msg = f"the batch has more than {MAX_BUCKETS_A_BATCH} filled buckets; send smaller batches"
            raise RejectedError(Reason.SIZE, msg)
        self._buckets += len(histogram.buckets)
        # The middle of the interval: a delta of ten seconds belongs to the bucket most of it lies in.
        at = (start_ns + point.time_ns) // 2 // _NANOSECONDS
        self.points.append(Point(series, metric, stage, at, histogram))


def _check_metric(metric: Metric, wanted: str) -> None:
    if metric.kind != wanted:
        msg = f"must be of type {wanted}, got {metric.kind or 'nothing'}; {_CURES[wanted]}"
        raise RejectedError(Reason.TYPE, msg)
    if metric.temporality != DELTA:
        msg = (
            f"aggregationTemporality must be delta ({DELTA}), got {metric.temporality}; set "
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta in the sending process"
        )
        raise RejectedError(Reason.TEMPORALITY, msg)
    if wanted == SUM and not metric.monotonic:
        msg = "isMonotonic must be true; record it with a counter, not an up-down counter"
        raise RejectedError(Reason.TYPE, msg)


def _dropped(value: float) -> int:
    if not 0 <= value <= MAX_COUNT:  # refuses NaN too
        msg = f"value must lie between 0 and 2**48, got {value}"
        raise RejectedError(Reason.NUMBER, msg)
    return int(value)


def _stage(metric: str, point: HistogramPoint) -> str:
    """Return what tells the point apart within its series: a stage, or by what the metric says, such as a definition."""
    key = names.METRICS[metric]
    value = point.attributes.get(key, stages.OVERHEAD if key == names.DOMINANT else None)
    if key in _BANDS and value not in _BANDS[key].names:
        msg = f"{key} must be one of {', '.join(_BANDS[key].names)}, got {'nothing' if value is None else repr(text(value)[:40])}"
        raise RejectedError(Reason.STAGE, msg)
    return stage_name(value, key)


def _histogram(metric: str, point: HistogramPoint) -> Histogram:
    _check_counts(point)
    timed = metric not in names.TIME_METRICS
    if timed:
        _check_sum(point)
    try:
        histogram = Histogram.from_otlp(
            scale=point.scale,
            zero=point.zero,
            offset=point.offset,
            counts=point.counts,
            total=(point.sum or 0.0) if timed else 0.0,
        )
    except ValueError as error:
        raise RejectedError(Reason.BUCKETS, text(str(error))) from error
    if timed:
        _check_sum_range(histogram)
    return histogram


def _check_counts(point: HistogramPoint) -> None:
    if not MIN_SCALE <= point.scale <= MAX_SCALE:
        msg = f"scale must lie between {MIN_SCALE} and {MAX_SCALE}, got {point.scale}"
        raise RejectedError(Reason.SCALE, msg)
    if len(point.counts) > MAX_BUCKETS:
        msg = f"it has {len(point.counts)} buckets, more than {MAX_BUCKETS}; send a coarser scale"
        raise RejectedError(Reason.BUCKETS, msg)
    if point.negative:
        raise RejectedError(Reason.NEGATIVE, "it holds negative values; a duration is never below zero")
    if min(point.count, point.zero) < 0 or min(point.counts, default=0) < 0:
        raise RejectedError(Reason.NEGATIVE, "counts must not be negative")
    held = sum(point.counts) + point.zero
    if held != point.count:
        msg = f"count is {point.count}, but its buckets and zeroCount hold {held}"
        raise RejectedError(Reason.COUNT, msg)
    if point.count > MAX_COUNT:
        msg = f"count must not be above 2**48, got {point.count}"
        raise RejectedError(Reason.COUNT, msg)


def _check_sum(point: HistogramPoint) -> None:
    if point.sum is None:
        if point.count:
            raise RejectedError(Reason.SUM, "sum is missing; without it no mean can be shown")
        return
    if not math.isfinite(point.sum):
        msg = f"sum must be a finite number, got {point.sum}"
        raise RejectedError(Reason.SUM, msg)


def _check_sum_range(histogram: Histogram) -> None:
    """Refuse a sum that values in these buckets cannot have: it tells of mixed-up units or a corrupted point."""
    filled = sum(histogram.buckets.values())
    low = high = 0.0
    if filled:
        low = filled * bucket_bounds(min(histogram.buckets), histogram.scale)[0] / _SUM_SLACK
        high = filled * bucket_bounds(max(histogram.buckets), histogram.scale)[1] * _SUM_SLACK
    if histogram.zero:
        high = math.inf  # how large a zero may be is the sender's choice (zeroThreshold)
    if not low <= histogram.sum <= high:
        msg = f"sum is {histogram.sum:g}, but values in its buckets add up to between {low:g} and {high:g}"
        raise RejectedError(Reason.SUM, msg)
