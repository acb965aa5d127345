"""Exposition in text and in protobuf: equal, escaped, valid for promtool, and as in docs/metrics.md and in alert rules."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.proto import parse_length_prefixed
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.parser import text_string_to_metric_families

from stagelens.alerts import export
from stagelens.alerts.serve import AlertMetrics
from stagelens.collector import exposition, prometheus
from stagelens.collector.exposition import MetricFamily, write_protobuf, write_text
from stagelens.collector.prometheus import Counters
from stagelens.core import names
from stagelens.core.histogram import SCALE, Histogram
from stagelens.core.prometheus_names import FAMILIES
from stagelens.store import Store
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
    native = read(write_protobuf([], counters_of(histogram).read()))[NAME].metric[0].histogram
    unfolded, index, count, deltas = dict[int, int](), 0, 0, list(native.positive_delta)
    for span in native.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += deltas.pop(0)
            unfolded[index - 1] = count
            index += 1

    (family,) = text_string_to_metric_families(write_text(counters_of(histogram).read()).decode())
    classic = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}

    assert unfolded == histogram.buckets
    assert classic == {repr(bucket.upper_bound): bucket.cumulative_count for bucket in native.bucket} | {
        "+Inf": histogram.count
    }
    assert (native.schema, native.zero_count, native.sample_count) == (SCALE, histogram.zero, histogram.count)
    assert deltas == []


@given(st.text(max_size=20))
def test_any_service_name_is_escaped_in_both_formats(service: str) -> None:
    counted = counters_of(Histogram(buckets={0: 1}), service).read()
    (family,) = text_string_to_metric_families(write_text(counted).decode())
    native = read(write_protobuf([], counted))[NAME].metric[0]
    labels = {pair.name: pair.value for pair in native.label}

    assert family.samples[0].labels["service_name"] == labels["service_name"] == counted[0].labels[0][0][1]


def test_plain_metrics_are_equal_in_both_formats() -> None:
    registry = CollectorRegistry()
    Counter("a", "Counted.", ("by",), registry=registry).labels("x").inc(3)
    Gauge("b", "Shown.", registry=registry).set(-1.5)
    ClientHistogram("c", "Timed.", buckets=(1.0, 2.0), registry=registry).observe(1.5)
    found = read(write_protobuf(registry.collect(), []))
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
    native = served.client.get("/metrics", headers={"accept": OF_PROMETHEUS})
    services = {
        sample.labels["service_name"]
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if "service_name" in sample.labels
    }

    assert page.headers["content-type"] == exposition.TEXT_MEDIA_TYPE
    assert native.headers["content-type"] == exposition.PROTOBUF_MEDIA_TYPE
    assert [each.histogram.sample_count for each in read(native.content)[NAME].metric] == [1, 2]
    assert f'{NAME}_count{{service_name="shop",status="ok",service_version="1",environment=""}} 2' in page.text
    assert services == {"shop", re.sub(r"[\0-\37]", "\ufffd", HOSTILE)}


@pytest.mark.stacks
def test_the_exposition_passes_promtool(served: Any, bodies: Any) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1,)), service=HOSTILE))
    page = served.client.get("/metrics")

    assert prometheus_tool.run("check", "metrics", given=page.content) == (0, "")


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text()
OWN_NAME = re.compile(r"\bstagelens_(?:collector|alerts)_\w+")


@pytest.fixture
def exposed_names(served: Any, store: Store) -> set[str]:
    served.collector.metrics.include(AlertMetrics(store))
    lines = served.client.get("/metrics").text.splitlines()
    found = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    # The client library adds the creation time of counters.
    return {name for name in found if name.startswith("stagelens_") and not name.endswith("_created")}


def test_every_metric_is_documented(exposed_names: set[str]) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `stagelens_")]
    described = {name for row in rows for name in OWN_NAME.findall(row.split("|")[1])}

    assert described == exposed_names
    assert all(row.count("|") == 4 and row.split("|")[3].strip() for row in rows)


def test_other_pages_name_existing_metrics(exposed_names: set[str]) -> None:
    named = {
        page.name: {name for name in OWN_NAME.findall(page.read_text()) if not name.endswith("_")}
        for page in DOCS.glob("*.md")
    }

    assert len(named["runbook.md"]) > 10
    assert {page: names - exposed_names for page, names in named.items() if names - exposed_names} == {}


def test_every_histogram_is_on_the_page_about_prometheus() -> None:
    page = (DOCS / "prometheus.md").read_text().partition("\n## Exported histograms\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(stagelens_\w+_seconds)`", page, re.MULTILINE)) == {each.name for each in FAMILIES}


@pytest.mark.stacks
def test_the_monitoring_rules_are_valid_and_use_existing_metrics(tmp_path: Path, exposed_names: set[str]) -> None:
    written = export.write_self_monitoring_rules()
    file = tmp_path / "rules.yml"
    file.write_text(written)
    code, output = prometheus_tool.run("check", "rules", file)
    expressions = " ".join(rule["expr"] for rule in yaml.safe_load(written)["groups"][0]["rules"])

    assert code == 0, output
    assert {name.removesuffix("_bucket") for name in OWN_NAME.findall(expressions)} <= exposed_names


def test_counters_used_by_alerts_exist_from_the_start(served: Any, store: Store) -> None:
    served.collector.metrics.include(AlertMetrics(store, channels=lambda: ["slack"]))
    exposition = served.client.get("/metrics").text
    lines = exposition.splitlines()
    rules = yaml.safe_load(export.write_self_monitoring_rules())["groups"][0]["rules"]
    growing = [re.search(r"(?:increase|delta)\((\w+)(?:\{(.*?)\})?\[", rule["expr"]) for rule in rules]
    asked = [(found[1], (found[2] or "").replace("!=", "=")) for found in growing if found is not None]

    assert {each.name for each in text_string_to_metric_families(exposition)}.isdisjoint(each.name for each in FAMILIES)
    assert len(asked) == 4
    for name, label in asked:
        assert any(line.startswith((f"{name} ", f"{name}{{")) and label in line for line in lines), name
