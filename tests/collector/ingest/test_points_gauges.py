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


def foreign(metric: dict[str, Any], resource: dict[str, Any] | None = None) -> pipeline.Export:
    about = [
        {"key": key, "value": {"intValue": value} if isinstance(value, int) else {"stringValue": value}}
        for key, value in (RESOURCE if resource is None else resource).items()
    ]
    sent = {"resource": {"attributes": about}, "scopeMetrics": [{"metrics": [metric]}]}
    return export_of("application/json", json.dumps({"resourceMetrics": [sent]}).encode())


def number(value: float | str, seconds: float = 0, **attributes: str) -> dict[str, Any]:
    return {
        "asDouble": value,
        "startTimeUnixNano": str(int((NOW - seconds) * NS)) if seconds else "0",
        "timeUnixNano": str(NOW * NS),
        "attributes": [
            {"key": key.replace("_", "."), "value": {"stringValue": text}} for key, text in attributes.items()
        ],
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


def test_cpu_modes_are_added_up() -> None:
    gauge = {"dataPoints": [number(0.25, cpu_mode="user"), number(0.5, cpu_mode="system")]}

    assert stored_values(foreign({"name": CPU_SHARE.metric, "gauge": gauge})) == {"cpu_share web-1:7": 0.75}


def test_a_non_monotonic_sum_is_a_current_value() -> None:
    points = [number(3e9, seconds=86_400)]
    found = foreign({"name": MEMORY.metric, "sum": {"dataPoints": points, "aggregationTemporality": 2}})

    assert stored_values(found) == {"memory web-1:7": 3e9}
    assert [point.at for point in found.batch.points] == [NOW]


@pytest.mark.parametrize(
    ("resource", "where"),
    [
        ({"host.name": "node", "k8s.pod.name": "web-5d9c-x2", "process.pid": 1}, "web-5d9c-x2:1"),
        ({"service.instance.id": "4f"}, "4f:4f"),
        ({"host.name": "h", "service.instance.id": "4f"}, "h:4f"),
    ],
)
def test_a_replica_is_named_by_its_most_specific_attribute(resource: dict[str, Any], where: str) -> None:
    gauge = {"dataPoints": [number(0.5)]}

    assert stored_values(foreign({"name": CPU_SHARE.metric, "gauge": gauge}, {"service.name": "shop", **resource})) == {
        f"cpu_share {where}": 0.5
    }


@pytest.mark.parametrize(
    "metric",
    [
        {"name": CPU.metric, "sum": {"dataPoints": [number(9, 10)], "aggregationTemporality": 2, "isMonotonic": True}},
        {"name": CPU.metric, "gauge": {"dataPoints": [number(9, 10)]}},
        {"name": MEMORY.metric, "sum": {"dataPoints": [number(9)], "aggregationTemporality": 1}},
        {"name": GPU.metric, "histogram": {"dataPoints": [{"count": 1}]}},
    ],
)
def test_unsupported_gauges_are_ignored(metric: dict[str, Any]) -> None:
    found = foreign(metric)

    assert (stored_values(found), found.tally.ignored, found.tally.rejected.total()) == ({}, 1, 0)


def test_host_metrics_without_a_service_are_ignored() -> None:
    found = foreign({"name": CPU_SHARE.metric, "gauge": {"dataPoints": [number(0.5)]}}, {"host.name": "web-1"})

    assert (stored_values(found), found.tally.ignored) == ({}, 1)


def test_gpu_encoder_use_is_not_compute_use() -> None:
    points = [number(0.1, hw_id="gpu0", hw_gpu_task=task) for task in ("general", "encoder", "decoder")]

    assert stored_values(foreign({"name": GPU.metric, "gauge": {"dataPoints": points}})) == {"gpu web-1/gpu0": 0.1}


def test_unknown_directions_are_ignored() -> None:
    points = [number(1000, 10, network_io_direction=way, hw_id="gpu0") for way in ("receive", "sideways")]
    found = foreign(
        {"name": PCIE_IN.metric, "sum": {"dataPoints": points, "aggregationTemporality": 1, "isMonotonic": True}}
    )

    assert stored_values(found) == {"pcie_in web-1/gpu0": 100.0}


@pytest.mark.parametrize("value", [-1.0, "NaN", "Infinity", 1e30])
def test_an_impossible_value_is_refused_and_named(value: float | str) -> None:
    gauge = {"dataPoints": [number(value), number(0.5)]}
    found = foreign({"name": CPU_SHARE.metric, "gauge": gauge})

    assert stored_values(found) == {"cpu_share web-1:7": 0.5}
    assert found.tally.error_message.startswith("process.cpu.utilization[0]: value must lie between 0 and 2**44")


def test_the_points_of_a_metric_are_limited() -> None:
    points = [number(0.5, hw_id=f"gpu{index}") for index in range(MAX_GAUGE_POINTS + 10)]
    found = foreign({"name": GPU.metric, "gauge": {"dataPoints": points}})

    assert (len(stored_values(found)), found.tally.ignored) == (MAX_GAUGE_POINTS, 10)


def test_a_metric_name_determines_its_reader() -> None:
    assert all(len({each.kind for each in found}) == 1 for found in BY_METRIC.values())
