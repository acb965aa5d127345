"""Hardware gauges and sums, of Stagelens agents and of other programs that use the same names.

A metric of another type, such as a cumulative counter, is ignored like an unknown metric, because another backend may need it.
Metrics of a process without a service name are ignored, too, because an OpenTelemetry Collector on a host reports all processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.hardware import BY_METRIC, DIRECTION, GENERAL, GPU_ID, GPU_TASK, Measure, hardware_key
from ...core.histogram import Histogram
from ...core.names import DEVICE, HARDWARE, SERVICE_NAME
from ...store import Point
from ..otlp import model
from .series import SeriesReader, place_of
from .validation import MAX_COUNT, NANOSECONDS, IngestResult, Reason, RejectedError, TimeWindow, printable_text

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
    sums: dict[tuple[str, int], float] = {}
    for index, point in enumerate(metric.numbers[:MAX_GAUGE_POINTS]):
        try:
            for name, at, value in _gauge_values(metric.name, point, resource, window):
                # Values of the same measure, such as system and user CPU time, are added.
                sums[name, at] = sums.get((name, at), 0.0) + value
        except RejectedError as error:
            tally.reject(error.reason, f"{metric.name}[{index}]: {error}")
    series = SeriesReader(resource).series({})
    return [Point(series, HARDWARE, name, at, _single_value(value)) for (name, at), value in sums.items()]


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
