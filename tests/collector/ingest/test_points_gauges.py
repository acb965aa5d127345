"""Machine metrics in OTLP: exact for the Stagelens agent, and supported for other programs."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.collector.ingest import pipeline
from stagelens.collector.ingest.gauges import MAX_GAUGE_POINTS
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core.hardware import (
    BY_METRIC,
    CPU,
    CPU_SHARE,
    GPU,
    MEASURES,
    MEMORY,
    PCIE_IN,
    Reading,
    hardware_key,
    place,
)
from stagelens.core.names import HARDWARE
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval
from tests.collector.traces.otlp import attributes

NOW = 1_795_176_000
NS = 1_000_000_000
RESOURCE = {"service.name": "shop", "host.name": "web-1", "process.pid": 7, "service.instance.id": "abc"}
devices = st.text("abc0123:.-", min_size=1, max_size=12)
readings = st.lists(
    st.builds(Reading, st.sampled_from(MEASURES), st.floats(0, 1e11), devices),
    unique_by=lambda each: (each.measure, each.device),
).map(lambda found: list({_place(each): each for each in found}.values()))


def _place(sample: Reading) -> str:
    return hardware_key(sample.measure.key, place(sample.measure.of, "web-1", "7", sample.device))


def export_of(media_type: str, body: bytes) -> pipeline.Export:
    return pipeline.read_export("metrics", media_type, body, "a:1", TimeWindow(0, NOW + 60), SpanReader())


def gauge(name: str, *points: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "gauge": {"dataPoints": [*points]}}


def total(name: str, *points: dict[str, Any], temporality: int = 1, monotonic: bool = True) -> dict[str, Any]:
    data = {"dataPoints": [*points], "aggregationTemporality": temporality, "isMonotonic": monotonic}
    return {"name": name, "sum": data}


def foreign(metric: dict[str, Any], resource: dict[str, Any] = RESOURCE) -> pipeline.Export:
    about = attributes(resource)
    sent = {"resource": {"attributes": about}, "scopeMetrics": [{"metrics": [metric]}]}
    return export_of("application/json", json.dumps({"resourceMetrics": [sent]}).encode())


def number(value: float | str, seconds: float = 0, **values: str) -> dict[str, Any]:
    return {
        "asDouble": value,
        "startTimeUnixNano": str(int((NOW - seconds) * NS)) if seconds else "0",
        "timeUnixNano": str(NOW * NS),
        "attributes": attributes({key.replace("_", "."): text for key, text in values.items()}),
    }


def stored_values(found: pipeline.Export) -> dict[str, float]:
    assert {point.metric for point in found.batch.points} <= {HARDWARE}
    return {point.stage: point.histogram.sum for point in found.batch.points}


@settings(deadline=None, max_examples=30)
@given(readings, st.integers(1, 100))
def test_gauges_of_an_agent_are_stored_unchanged(sent: list[Reading], seconds: int) -> None:
    interval = ExportInterval((NOW - seconds) * NS, NOW * NS)
    body = gzip.decompress(Encoder(RESOURCE, lambda: None).metrics(interval, {}, {}, sent))
    found = export_of("application/x-protobuf", body)

    assert stored_values(found) == {_place(each): pytest.approx(each.value) for each in sent}
    assert {point.at for point in found.batch.points} <= {NOW - (seconds + 1) // 2}
    assert (found.tally.ignored, found.tally.rejected.total()) == (0, 0)


HALF = gauge(CPU_SHARE.metric, number(0.5))


MODES = gauge(CPU_SHARE.metric, number(0.25, cpu_mode="user"), number(0.5, cpu_mode="system"))
TASKS = gauge(GPU.metric, *(number(0.1, hw_id="gpu0", hw_gpu_task=task) for task in ("general", "encoder")))
WAYS = ("receive", "sideways")
IO = total(PCIE_IN.metric, *(number(1000, 10, network_io_direction=way, hw_id="gpu0") for way in WAYS))
# A current value, since the start of the process.
SINCE_START = total(MEMORY.metric, number(3e9, 86_400), temporality=2, monotonic=False)


@pytest.mark.parametrize(
    ("metric", "resource", "expected"),
    [
        (MODES, RESOURCE, {"cpu_share web-1:7": 0.75}),
        (TASKS, RESOURCE, {"gpu web-1/gpu0": 0.1}),
        (IO, RESOURCE, {"pcie_in web-1/gpu0": 100.0}),
        (SINCE_START, RESOURCE, {"memory web-1:7": 3e9}),
        # A replica is named by its most specific attribute.
        (HALF, {"host.name": "node", "k8s.pod.name": "web-x2", "process.pid": 1}, {"cpu_share web-x2:1": 0.5}),
        (HALF, {"service.instance.id": "4f"}, {"cpu_share 4f:4f": 0.5}),
        (HALF, {"host.name": "h", "service.instance.id": "4f"}, {"cpu_share h:4f": 0.5}),
    ],
)
def test_gauges_of_other_programs_are_stored(
    metric: dict[str, Any], resource: dict[str, Any], expected: dict[str, float]
) -> None:
    found = foreign(metric, {"service.name": "shop"} | resource)

    assert (stored_values(found), found.tally.ignored) == (expected, 0)
    assert {point.at for point in found.batch.points} == {NOW - 5 if metric is IO else NOW}


def test_unsupported_gauges_are_ignored() -> None:
    for metric, resource in (
        (total(CPU.metric, number(9, 10), temporality=2), RESOURCE),
        (gauge(CPU.metric, number(9, 10)), RESOURCE),
        (total(MEMORY.metric, number(9), monotonic=False), RESOURCE),
        ({"name": GPU.metric, "histogram": {"dataPoints": [{"count": 1}]}}, RESOURCE),
        # Of a machine, without a service.
        (HALF, {"host.name": "web-1"}),
    ):
        found = foreign(metric, resource)

        assert (stored_values(found), found.tally.ignored, found.tally.rejected.total()) == ({}, 1, 0)


@pytest.mark.parametrize("value", [-1.0, "NaN", "Infinity", 1e30])
def test_an_impossible_value_is_refused_and_named(value: float | str) -> None:
    found = foreign(gauge(CPU_SHARE.metric, number(value), number(0.5)))

    assert stored_values(found) == {"cpu_share web-1:7": 0.5}
    assert found.tally.error_message.startswith("process.cpu.utilization[0]: value must lie between 0 and 2**44")


def test_the_points_of_a_metric_are_limited() -> None:
    found = foreign(gauge(GPU.metric, *(number(0.5, hw_id=f"gpu{index}") for index in range(MAX_GAUGE_POINTS + 10))))

    assert (len(stored_values(found)), found.tally.ignored) == (MAX_GAUGE_POINTS, 10)


def test_a_metric_name_determines_its_reader() -> None:
    assert all(len({each.kind for each in found}) == 1 for found in BY_METRIC.values())
