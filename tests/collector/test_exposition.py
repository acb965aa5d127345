"""Exposition in text and in protobuf: equal, escaped, and valid for promtool."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import httpx
import pytest
from google.protobuf.proto import parse_length_prefixed
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.parser import text_string_to_metric_families

from stagelens.collector import exposition, prometheus
from stagelens.collector import exposition as protobuf
from stagelens.collector import exposition as text
from stagelens.collector.exposition import MetricFamily
from stagelens.collector.prometheus import Counters
from stagelens.core import names
from stagelens.core.histogram import SCALE, Histogram
from stagelens.store.points import Point, PointColumns
from stagelens.store.series import Series
from tests.support import prometheus_tool

OF_PROMETHEUS = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
NAME = "stagelens_request_duration_seconds"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "EMPTY_SECONDS", 0.0)


def counters_of(histogram: Histogram, service: str = "shop") -> Counters:
    made = Counters()
    made.count(PointColumns.of([Point(Series(service), names.REQUEST_DURATION, "forward", 0, histogram)]))
    return made


def read(body: bytes) -> dict[str, Any]:
    stream, found = BytesIO(body), dict[str, Any]()
    while family := parse_length_prefixed(MetricFamily, stream):
        found[family.name] = family
    return found


@given(st.lists(st.floats(1e-5, 1e4) | st.just(0.0), max_size=60))
def test_a_native_histogram_equals_the_counted_histogram(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.record(seconds)
    native = read(protobuf.write_protobuf([], counters_of(histogram).read()))[NAME].metric[0].histogram
    unfolded, index, count, deltas = dict[int, int](), 0, 0, list(native.positive_delta)
    for span in native.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += deltas.pop(0)
            unfolded[index - 1] = count
            index += 1

    assert unfolded == histogram.buckets
    assert (native.schema, native.zero_count, native.sample_count) == (SCALE, histogram.zero, histogram.count)
    assert deltas == []


@given(st.text(max_size=20))
def test_any_service_name_is_escaped_in_both_formats(service: str) -> None:
    counted = counters_of(Histogram(buckets={0: 1}), service).read()
    (family,) = text_string_to_metric_families(text.write_text(counted).decode())
    native = read(protobuf.write_protobuf([], counted))[NAME].metric[0]
    labels = {pair.name: pair.value for pair in native.label}

    assert family.samples[0].labels["service_name"] == labels["service_name"] == counted[0].labels[0][0][1]


def test_classic_buckets_are_equal_in_both_formats() -> None:
    counted = counters_of(Histogram(buckets={-40: 3, 0: 2, 500: 1}, zero=4)).read()
    (family,) = text_string_to_metric_families(text.write_text(counted).decode())
    written = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    native = read(protobuf.write_protobuf([], counted))[NAME].metric[0].histogram
    beside = {repr(bucket.upper_bound): bucket.cumulative_count for bucket in native.bucket}

    assert beside | {"+Inf": native.sample_count} == written
    assert written["0.25"] == 4
    assert written["+Inf"] == 10


def test_plain_metrics_are_equal_in_both_formats() -> None:
    registry = CollectorRegistry()
    Counter("a", "Counted.", ("by",), registry=registry).labels("x").inc(3)
    Gauge("b", "Shown.", registry=registry).set(-1.5)
    ClientHistogram("c", "Timed.", buckets=(1.0, 2.0), registry=registry).observe(1.5)
    found = read(protobuf.write_protobuf(registry.collect(), []))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {(sample.name, *sample.labels.values()): sample.value for each in families for sample in each.samples}

    assert found["a_total"].metric[0].counter.value == samples["a_total", "x"] == 3
    assert found["b"].metric[0].gauge.value == samples["b",] == -1.5
    assert [(bucket.upper_bound, bucket.cumulative_count) for bucket in found["c"].metric[0].histogram.bucket] == [
        (1.0, 0),
        (2.0, 1),
        (float("inf"), 1),
    ]
    assert found["c"].metric[0].histogram.sample_sum == samples["c_sum",] == 1.5


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (OF_PROMETHEUS, exposition.PROTOBUF_MEDIA_TYPE),
        ("", exposition.TEXT_MEDIA_TYPE),
        ("*/*", exposition.TEXT_MEDIA_TYPE),
        ("application/openmetrics-text;version=1.0.0,*/*;q=0.1", exposition.TEXT_MEDIA_TYPE),
        ("application/vnd.google.protobuf", exposition.TEXT_MEDIA_TYPE),
        (OF_PROMETHEUS.replace("encoding=delimited", "encoding=text"), exposition.TEXT_MEDIA_TYPE),
        (OF_PROMETHEUS.replace("delimited,", "delimited;q=0.2,"), exposition.TEXT_MEDIA_TYPE),
        (OF_PROMETHEUS.replace("delimited,", "delimited;q=much,"), exposition.TEXT_MEDIA_TYPE),
        (";;;,,=;q=", exposition.TEXT_MEDIA_TYPE),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, expected: str) -> None:
    assert exposition.negotiate(accept) == expected


HOSTILE = 'a "b" \\ {}\n# TYPE x counter\r\t\0推論'


def test_a_service_may_have_any_name(served: Any, bodies: Any) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1, 0.3))))
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1,)), service=HOSTILE))
    page = served.client.get("/metrics")
    services = {
        sample.labels["service_name"]
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if "service_name" in sample.labels
    }

    assert f'{NAME}_count{{service_name="shop",status="ok",service_version="1",environment=""}} 2' in page.text
    assert services == {"shop", re.sub(r"[\0-\37]", "\ufffd", HOSTILE)}


@pytest.mark.stacks
def test_the_exposition_passes_promtool(served: Any, bodies: Any) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1,)), service=HOSTILE))
    page = served.client.get("/metrics")

    assert prometheus_tool.run("check", "metrics", given=page.content) == (0, "")


def test_both_formats_come_with_their_media_types(
    served: Any, bodies: Any, until: Callable[[Callable[[], object]], None]
) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1,))))

    def asked(accept: str) -> httpx.Response:
        return served.client.get("/metrics", headers={"accept": accept})

    until(lambda: NAME in asked("*/*").text)
    native = asked(OF_PROMETHEUS)

    assert native.headers["content-type"] == exposition.PROTOBUF_MEDIA_TYPE
    assert read(native.content)[NAME].metric[0].histogram.sample_count == 1
    assert asked("*/*").headers["content-type"] == exposition.TEXT_MEDIA_TYPE
