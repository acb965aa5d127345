"""Hardware metrics from OTLP gauges and sums, of Stagelens agents and of other programs that use the same names.

A metric whose type does not fit, such as a cumulative counter, is ignored like an unknown metric: another backend may need it.
Metrics of a process without a service name are ignored, because an OpenTelemetry Collector on a host reports all processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.hardware import (
    BY_METRIC,
    DIRECTION,
    GENERAL,
    GPU_ID,
    GPU_TASK,
    HOST,
    POD,
    PROCESS_ID,
    Measure,
    Of,
    hardware_key,
    place,
)
from ...core.histogram import Histogram
from ...core.names import DEVICE, HARDWARE, SERVICE_INSTANCE, SERVICE_NAME
from ...store import Point
from ..otlp.model import CUMULATIVE, DELTA, GAUGE, NO_RECORDED_VALUE, SUM, Attributes, Metric, NumberPoint
from .validation import (
    MAX_COUNT,
    NANOSECONDS,
    IngestResult,
    Reason,
    RejectedError,
    SeriesReader,
    TimeWindow,
    printable_text,
)

# More than the GPUs of a machine or the CPU modes of a process.
MAX_POINTS = 256
# Twice the default export interval of OpenTelemetry.
MAX_INTERVAL_SECONDS = 120
_DEVICE_KEYS = {"gpu": GPU_ID, "device": DEVICE}


def read_gauges(metric: Metric, resource: Attributes, window: TimeWindow, tally: IngestResult) -> list[Point]:
    """Return the points of *metric*, one of `core.hardware`; invalid points are counted in *tally*.

    Args:
        metric: The metric as received.
        resource: Attributes of its resource.
        window: Plausible times.
        tally: Counts ignored and rejected points.
    """
    kind = BY_METRIC[metric.name][0].kind
    if not _is_kind(metric, kind) or SERVICE_NAME not in resource:
        tally.ignored += metric.size
        return []
    tally.ignored += max(0, len(metric.numbers) - MAX_POINTS)
    found: dict[tuple[str, int], float] = {}
    for index, point in enumerate(metric.numbers[:MAX_POINTS]):
        try:
            for name, at, value in _values(metric.name, point, resource, window):
                # Values of one measure, such as system and user time, are added.
                found[name, at] = found.get((name, at), 0.0) + value
        except RejectedError as error:
            tally.reject(error.reason, f"{metric.name}[{index}]: {error}")
    series = SeriesReader(resource).series({})
    return [Point(series, HARDWARE, name, at, _single_value(value)) for (name, at), value in found.items()]


def _is_kind(metric: Metric, kind: str) -> bool:
    """Return whether *metric* has the OTLP type of a measure of *kind*."""
    if kind == "rate":
        return metric.kind == SUM and metric.temporality == DELTA and metric.monotonic
    # An up-down sum is equivalent to a gauge.
    return metric.kind == GAUGE or (metric.kind == SUM and metric.temporality == CUMULATIVE and not metric.monotonic)


def _values(
    metric: str, point: NumberPoint, resource: Attributes, window: TimeWindow
) -> Iterator[tuple[str, int, float]]:
    """Yield the name, the time in Unix seconds and the value of each measure that *point* belongs to.

    Raises:
        RejectedError: Its number or its time is invalid.
    """
    if point.flags & NO_RECORDED_VALUE or point.attributes.get(GPU_TASK, GENERAL) != GENERAL:
        return
    if not 0 <= point.value <= MAX_COUNT:  # refuses NaN too
        msg = f"value must lie between 0 and 2**44, got {point.value}"
        raise RejectedError(Reason.NUMBER, msg)
    window.check(point.time_ns)
    start_ns = point.start_ns if 0 < point.start_ns < point.time_ns else point.time_ns
    seconds = (point.time_ns - start_ns) / NANOSECONDS
    # The middle of the interval, as for histograms. The start of a long interval is the start of the process.
    at = (point.time_ns if seconds > MAX_INTERVAL_SECONDS else (start_ns + point.time_ns) // 2) // NANOSECONDS
    for measure in BY_METRIC[metric]:
        if measure.direction and point.attributes.get(DIRECTION) != measure.direction:
            continue
        if measure.kind != "rate":
            yield _measure_name(measure, point, resource), at, float(point.value)
        elif seconds:
            yield _measure_name(measure, point, resource), at, point.value / seconds


def _measure_name(measure: Measure, point: NumberPoint, resource: Attributes) -> str:
    device = printable_text(point.attributes.get(_DEVICE_KEYS.get(measure.of, ""), ""))
    return hardware_key(measure.key, place_of(resource, measure.of, device))


def place_of(resource: Attributes, of: Of = "process", device: str = "") -> str:
    """Return the name of *resource*, or of a device of it, in the format of `core.hardware.place`."""
    instance = printable_text(resource.get(SERVICE_INSTANCE, ""))
    host = printable_text(resource.get(POD) or resource.get(HOST) or instance)
    process = printable_text(resource.get(PROCESS_ID) or instance)
    return place(of, host, process, device)


def _single_value(value: float) -> Histogram:
    histogram = Histogram()
    histogram.record(value)
    return histogram
