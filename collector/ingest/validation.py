"""Validation of exports: data points with their rejection reasons, and attributes, which become series, stages and other keys.

`IngestResult` collects the rejections with explanations for the sender. Identities (series, metric and stage) are cached, because
exports repeat the same attributes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import cast

from ...core import names, stages
from ...core.attributes import REPLICA, attribute_key, replica_stage_key, split_attribute_key, split_replica_stage_key
from ...core.code_stack import MAX_FRAMES
from ...core.hardware import HOST, OPEN, POD, PROCESS_ID, Of, hardware_key, place, split_hardware_key
from ...core.histogram import BATCH_SIZES, MAX_SCALE, MIN_SCALE, TOKEN_COUNTS, Histogram, bucket_bounds
from ...core.stages import STALL_CAUSES, split_stall_key
from ...store import Series
from ...store.points import Identity
from ...store.series import COLD, WARM
from ..otlp.model import DELTA, EXPONENTIAL_HISTOGRAM, SUM, Attributes, HistogramPoint, Metric, Scalar
from ..otlp.protobuf_encoding import read_attributes

# Maximum number of explanations: a batch may have thousands of invalid points, and the first ones are enough to fix the sender.
MAX_MESSAGES = 5
MAX_VALUE_CHARS = 200


class Reason(StrEnum):
    """Reason to reject a data point or a trace; a label value of the collector's own metrics."""

    TYPE = "type"
    TEMPORALITY = "temporality"
    TIME = "time"
    SCALE = "scale"
    BUCKETS = "buckets"
    COUNT = "count"
    NEGATIVE = "negative"
    SUM = "sum"
    NUMBER = "number"
    STATUS = "status"
    STAGE = "stage"
    IDS = "ids"
    PARENT = "parent"
    DURATION = "duration"
    PARTITION = "partition"
    SIZE = "size"


class RejectedError(Exception):
    """One data point or one trace is invalid; the rest of its batch may be valid."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class IngestResult:
    """Counts of the points, spans or log records of one export that are not stored."""

    ignored: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter[Reason])
    messages: list[str] = field(default_factory=list[str])
    unexplained: int = 0

    def reject(self, reason: Reason, message: str, count: int = 1) -> None:
        if count == 0:
            return
        self.rejected[reason] += count
        self.explain(message)

    def explain(self, message: str) -> None:
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(message)
        else:
            self.unexplained += 1

    @property
    def error_message(self) -> str:
        more = [f"and {self.unexplained} more"] if self.unexplained else []
        return "; ".join([*self.messages, *more])


def printable_text(value: Scalar) -> str:
    r"""Return *value* as text of at most `MAX_VALUE_CHARS` printable characters; others show as U+FFFD.

    >>> printable_text(7), printable_text(True), printable_text("a\x00b")
    ('7', 'true', 'a�b')
    """
    if isinstance(value, str):
        shown = value[:MAX_VALUE_CHARS]
    else:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


# 20,000 buckets cover, at scale 10, more than the whole range from a nanosecond to a day.
MAX_BUCKETS = 20_000
# Far above any real count, and 200 days of stage time in microseconds; the sum of half a million such points fits into a
# signed 64-bit integer.
MAX_COUNT = 2**44
# Factor by which a sum may lie outside the range of its buckets because of rounding.
SUM_TOLERANCE = 1.05

NANOSECONDS = 1_000_000_000
_METRIC_FIXES = {
    EXPONENTIAL_HISTOGRAM: "set the OpenTelemetry view's aggregation to ExponentialBucketHistogramAggregation",
    SUM: "record it with a counter",
}


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Range of plausible times, [oldest, newest], in Unix seconds."""

    oldest: int
    newest: int

    def check(self, time_ns: int) -> None:
        at = time_ns // NANOSECONDS
        if at < self.oldest:
            msg = f"its time, {at} s after 1970, is too long ago, before {self.oldest}; check the sender's clock"
            raise RejectedError(Reason.TIME, msg)
        if at > self.newest:
            msg = f"its time, {at} s after 1970, is more than a day ahead ({self.newest}); check the sender's clock"
            raise RejectedError(Reason.TIME, msg)


def check_metric(metric: Metric, wanted: str) -> None:
    """Reject a metric whose kind or temporality makes all its points invalid."""
    if metric.kind != wanted:
        msg = f"must be of type {wanted}, got {metric.kind or 'nothing'}; {_METRIC_FIXES[wanted]}"
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


def dropped_requests(value: float) -> int:
    """Return *value* as the number of requests that a sender could not count."""
    if not 0 <= value <= MAX_COUNT:  # also rejects NaN
        msg = f"value must lie between 0 and 2**44, got {value}"
        raise RejectedError(Reason.NUMBER, msg)
    return int(value)


def check_interval(point: HistogramPoint, window: TimeWindow) -> tuple[int, int]:
    """Return the interval of *point*, in Unix nanoseconds."""
    start_ns = point.start_ns or point.time_ns
    window.check(start_ns)
    window.check(point.time_ns)
    if start_ns > point.time_ns:
        msg = f"startTimeUnixNano {start_ns} is after timeUnixNano {point.time_ns}"
        raise RejectedError(Reason.TIME, msg)
    return start_ns, point.time_ns


def histogram_of(metric: str, point: HistogramPoint) -> Histogram:
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
        raise RejectedError(Reason.BUCKETS, printable_text(str(error))) from error
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
        raise RejectedError(Reason.NEGATIVE, "it contains negative values; a duration must not be negative")
    if min(point.count, point.zero) < 0 or min(point.counts, default=0) < 0:
        raise RejectedError(Reason.NEGATIVE, "counts must not be negative")
    held = sum(point.counts) + point.zero
    if held != point.count:
        msg = f"count is {point.count}, but its buckets and zeroCount contain {held}"
        raise RejectedError(Reason.COUNT, msg)
    if point.count > MAX_COUNT:
        msg = f"count must not be above 2**44, got {point.count}"
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
    """Reject a sum that is impossible for values in these buckets, which indicates mixed units or a corrupted point."""
    filled = sum(histogram.buckets.values())
    low = high = 0.0
    if filled:
        low = filled * bucket_bounds(min(histogram.buckets), histogram.scale)[0] / SUM_TOLERANCE
        high = filled * bucket_bounds(max(histogram.buckets), histogram.scale)[1] * SUM_TOLERANCE
    if histogram.zero:
        high = math.inf  # the sender chooses the zeroThreshold
    if not low <= histogram.sum <= high:
        msg = f"sum is {histogram.sum:g}, but values in its buckets add up to between {low:g} and {high:g}"
        raise RejectedError(Reason.SUM, msg)


def place_of(resource: Attributes, of: Of = "process", device: str = "") -> str:
    """Return the name of the process, or of its machine or device, in the format of `core.hardware.place`."""
    instance = printable_text(resource.get(names.SERVICE_INSTANCE, ""))
    host = printable_text(resource.get(POD) or resource.get(HOST) or instance)
    process = printable_text(resource.get(PROCESS_ID) or instance)
    return place(of, host, process, device)


MAX_STAGE_CHARS = 64
UNKNOWN_SERVICE = "unknown_service"

_POINT_KEYS = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.COLD)


class SeriesReader:
    """Converter of the attributes of points of one resource into series."""

    def __init__(self, resource: Attributes) -> None:
        self._service = printable_text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE
        self._version = printable_text(resource.get(names.SERVICE_VERSION, ""))
        self._environment = printable_text(resource.get(names.ENVIRONMENT, ""))
        self._resource = resource
        # The points of an export have few distinct series.
        self._known: dict[tuple[Scalar, ...], Series] = {}

    @property
    def process(self) -> tuple[str, str, str]:
        """Series dimensions of the resource: service, version and environment."""
        return self._service, self._version, self._environment

    @cached_property
    def place(self) -> str:
        """Host and process of the resource, which identify the replica; "" if the resource has neither."""
        found = place_of(self._resource)
        return "" if found == place("process", "", "", "") else found

    def series(self, attributes: Attributes, *, error: bool = False) -> Series:
        status = attributes.get(names.STATUS)
        if status is None:
            status = names.STATUS_ERROR if error or names.ERROR_TYPE in attributes else names.STATUS_OK
        key = (*(attributes.get(name, "") for name in _POINT_KEYS), status)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._build(attributes, status)
        return found

    def _build(self, attributes: Attributes, status: Scalar) -> Series:
        if status not in names.STATUSES:
            msg = f"{names.STATUS} must be one of {', '.join(names.STATUSES)}, got {printable_text(status)!r}"
            raise RejectedError(Reason.STATUS, msg)
        model, model_version, route, device, cold = (printable_text(attributes.get(name, "")) for name in _POINT_KEYS)
        return Series(
            service=self._service,
            version=self._version,
            environment=self._environment,
            model=model,
            model_version=model_version,
            route=route,
            device=device,
            status=str(status),
            cold=COLD if cold == "true" else WARM,
        )


def stage_name(value: Scalar | None, key: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= MAX_STAGE_CHARS and value.isprintable():
        return value
    shown = "nothing" if value is None else repr(printable_text(value)[:40])
    msg = f"{key} must be 1 to {MAX_STAGE_CHARS} printable characters, got {shown}"
    raise RejectedError(Reason.STAGE, msg)


# Keys of stacks are at most 24 frames long, each with at most 120 characters for each of its three names.
MAX_STACK_CHARS = 10_000


def stack_of(value: Scalar | None) -> str:
    """Return *value*, an attribute of a point, as a key of stage and call stack."""
    if not isinstance(value, str) or len(value) > MAX_STACK_CHARS or not value.isprintable():
        msg = f"{names.PROFILE_STACK} must be a text of at most {MAX_STACK_CHARS} printable characters"
        raise RejectedError(Reason.STAGE, msg)
    stage, *frames = value.split(";")
    stage_name(stage, f"the stage in {names.PROFILE_STACK}")
    if not frames or not all(frames) or len(frames) > MAX_FRAMES:
        msg = f"{names.PROFILE_STACK} must be a stage and 1 to {MAX_FRAMES} frames, separated by semicolons"
        raise RejectedError(Reason.STAGE, msg)
    return value


# Limits of the cache, at most a few tens of megabytes; two thousand series need fewer entries.
MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 50_000, 512

# Metrics whose keys may contain the place of the process, so that processes of one service do not share identities.
_BY_PLACE = frozenset({names.REQUEST_BY_ATTRIBUTE, names.REPLICA_STAGE_TIME, names.OPEN_TIME})
# Attributes whose values are size buckets.
_SIZE_BUCKETS = {names.BATCH_BAND: BATCH_SIZES, names.TOKEN_BAND: TOKEN_COUNTS}


class SeriesCache:
    """Cache of the identities of points by their attributes, parsed or serialized. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[bytes, Identity]] = {}
        self._shared: dict[tuple[object, ...], Identity] = {}
        self._size = 0

    def of(
        self, reader: SeriesReader, metric: str, attributes: Sequence[bytes] | Sequence[Attributes]
    ) -> Sequence[Identity | None]:
        """Return the identity of each point of *metric*; None for invalid attributes."""
        if self._size > MAX_REMEMBERED:
            self._known, self._shared, self._size = {}, {}, 0
        process = (*reader.process, metric, reader.place if metric in _BY_PLACE else "")
        self._size += process not in self._known
        known = self._known.setdefault(process, {})
        # Points of one metric are all parsed or all serialized.
        is_serialized = bool(attributes) and isinstance(attributes[0], bytes)
        found: list[Identity | None] = [None] * len(attributes)
        if is_serialized:
            found = [*map(known.get, cast("Sequence[bytes]", attributes))]
        if None in found:
            for number, one in enumerate(attributes):
                found[number] = found[number] or self._read(reader, metric, one, known)
        return found

    def _read(
        self, reader: SeriesReader, metric: str, sent: bytes | Attributes, known: dict[bytes, Identity]
    ) -> Identity | None:
        attributes = read_attributes(sent) if isinstance(sent, bytes) else sent
        try:
            key = (reader.series(attributes), metric, stage_of(metric, attributes, reader.place))
        except RejectedError:
            return None
        self._size += isinstance(sent, bytes) or (key not in self._shared) * (1 + len(key[2]) // MAX_REMEMBERED_BYTES)
        identity = self._shared.setdefault(key, Identity(*key))
        if isinstance(sent, bytes) and len(sent) <= MAX_REMEMBERED_BYTES:
            known[sent] = identity
        return identity


def stage_of(metric: str, attributes: Attributes, replica: str) -> str:
    """Return the key of a point within its series: a stage, or another value that *metric* defines, such as a size bucket."""
    key = names.METRICS[metric]
    value = attributes.get(key, stages.OVERHEAD if key == names.DOMINANT else None)
    if key in _SIZE_BUCKETS and value not in _SIZE_BUCKETS[key].names:
        msg = f"{key} must be one of {', '.join(_SIZE_BUCKETS[key].names)}, got {'nothing' if value is None else repr(printable_text(value)[:40])}"
        raise RejectedError(Reason.STAGE, msg)
    if key == names.PROFILE_STACK:
        return stack_of(value)
    if key == names.ATTRIBUTE:
        return _attribute_of(value, replica)
    if metric == names.REPLICA_STAGE_TIME:
        return _replica_stage_of(value, replica)
    if metric == names.OPEN_TIME:
        # In a saved run the value has its measure and its place already.
        return hardware_key(OPEN, split_hardware_key(printable_text(value or ""))[1] or replica)
    name = stage_name(value, key)
    if key == names.STALL and (split_stall_key(name)[0] not in STALL_CAUSES or not split_stall_key(name)[1]):
        msg = f"{key} must be one of {', '.join(STALL_CAUSES)}, a colon and a stage, got {name[:40]!r}"
        raise RejectedError(Reason.STAGE, msg)
    return name


_ATTRIBUTE_NAME = re.compile(r"[a-z0-9_.-]{1,40}")


def _attribute_of(value: Scalar | None, replica: str) -> str:
    """Return *value*, an attribute of a point, as the attribute of a request and its value; *replica* completes the replica."""
    name, text = split_attribute_key(value) if isinstance(value, str) and "=" in value else ("", "")
    if not _ATTRIBUTE_NAME.fullmatch(name) or len(text) > MAX_VALUE_CHARS or not text.isprintable():
        msg = (
            f"{names.ATTRIBUTE} must be `name=value`, with a name of 1 to 40 of a-z, 0-9, `_`, `.` and `-`, and a value of at "
            f"most {MAX_VALUE_CHARS} printable characters"
        )
        raise RejectedError(Reason.STAGE, msg)
    return attribute_key(name, text or replica if name == REPLICA.key else text)


def _replica_stage_of(value: Scalar | None, replica: str) -> str:
    """Return *value*, a stage, with the place *replica*; in a saved run *value* has its place already."""
    stage, known = split_replica_stage_key(value) if isinstance(value, str) else (value, "")
    return replica_stage_key(stage_name(stage, names.STAGE), printable_text(known) or replica)
