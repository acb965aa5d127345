"""Data points: accepted and refused values, and the partial success for the sender."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.collector.ingest.points import PointReader
from stagelens.collector.ingest.validation import MAX_BUCKETS, Reason, RejectedError, TimeWindow, stack_of
from stagelens.collector.otlp import json_encoding
from stagelens.collector.otlp.model import EXPONENTIAL_HISTOGRAM, HistogramPoint, Metric, ResourceMetrics
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store import Point

DAY = 86_400
SECOND = 1_000_000_000


def read(body: dict[str, Any]) -> PointReader:
    """Parse *body* with the default time window."""
    now = int(time.time())
    reader = PointReader(TimeWindow(now - DAY, now + DAY))
    reader.read(json_encoding.read_metrics(json.dumps(body).encode()))
    return reader


def points(body: dict[str, Any]) -> list[Point]:
    """Parse *body* and return the accepted points."""
    return list(read(body).points)


def refused(body: dict[str, Any]) -> tuple[dict[str, int], str]:
    """Parse *body* and return the number of refused points and the message."""
    reader = read(body)
    return {str(reason): count for reason, count in reader.tally.rejected.items()}, reader.tally.error_message


def with_attributes(**values: str) -> list[dict[str, Any]]:
    return [{"key": getattr(names, key), "value": {"stringValue": value}} for key, value in values.items()]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_point_preserves_every_value(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.record(seconds)
    now = time.time_ns()
    point = {"attributes": [], "startTimeUnixNano": str(now), "timeUnixNano": str(now), **histogram.to_otlp()}
    metric = {
        "name": names.REQUEST_DURATION,
        "exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": [point]},
    }
    reader = read({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})

    assert [point.histogram for point in reader.points] == [histogram]


def test_the_dimensions_of_a_point_are_its_resource_and_its_attributes(bodies: Any) -> None:
    attributes = with_attributes(
        MODEL="m", MODEL_VERSION="3", ROUTE="/r", DEVICE="cpu", STATUS="error", DOMINANT="queue"
    )
    point = points(bodies.metrics(bodies.point(attributes=attributes)))[0]
    series = point.series

    assert (series.service, series.version, series.model, series.model_version) == ("shop", "1", "m", "3")
    assert (series.route, series.device, series.status, point.stage) == ("/r", "cpu", "error", "queue")


def test_a_point_is_stored_at_the_middle_of_its_interval(bodies: Any) -> None:
    point = points(bodies.metrics(bodies.point()))[0]

    assert point.at == (bodies.now_ns - 5 * SECOND) // SECOND


def test_a_point_without_start_is_stored_at_its_end(bodies: Any) -> None:
    point = points(bodies.metrics(bodies.point(startTimeUnixNano="0")))[0]

    assert point.at == bodies.now_ns // SECOND


def test_missing_attributes_have_defaults(bodies: Any) -> None:
    body = bodies.metrics(bodies.point(attributes=[]))
    body["resourceMetrics"][0]["resource"] = {}
    point = points(body)[0]

    assert (point.series.service, point.series.status, point.stage) == ("unknown_service", "ok", "overhead")


def test_an_error_type_makes_the_status_an_error(bodies: Any) -> None:
    point = points(bodies.metrics(bodies.point(attributes=with_attributes(ERROR_TYPE="ValueError"))))[0]

    assert point.series.status == "error"


def test_long_and_unprintable_values_are_made_safe(bodies: Any) -> None:
    attributes = with_attributes(ROUTE="/\x00\x1b" + "x" * 300, MODEL="größe")
    series = points(bodies.metrics(bodies.point(attributes=attributes)))[0].series

    assert (series.route, series.model) == ("/\ufffd\ufffd" + "x" * 197, "größe")


def test_numbers_are_attribute_values(bodies: Any) -> None:
    attributes = [
        {"key": names.MODEL_VERSION, "value": {"intValue": "3"}},
        {"key": names.MODEL, "value": {"boolValue": True}},
    ]
    series = points(bodies.metrics(bodies.point(attributes=attributes)))[0].series

    assert (series.model_version, series.model) == ("3", "true")


def test_metrics_of_other_names_are_ignored(bodies: Any) -> None:
    body = bodies.metrics(bodies.point(), bodies.point(), name="http.server.duration", temporality=2)
    reader = read(body)

    assert (list(reader.points), reader.tally.ignored, reader.tally.error_message) == ([], 2, "")


def test_a_bad_point_is_refused_alone_and_named(bodies: Any) -> None:
    reader = read(bodies.metrics(bodies.point(), bodies.point(count="5"), bodies.point()))

    assert len(reader.points) == 2
    assert reader.tally.error_message == (
        "inference.request.duration[1]: count is 5, but its buckets and zeroCount contain 1"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scale": 21}, "scale"),
        ({"scale": -11}, "scale"),
        ({"count": "2"}, "count"),
        ({"zeroCount": "1"}, "count"),
        ({"count": str(2**60), "positive": {"offset": 0, "bucketCounts": [str(2**60)]}}, "count"),
        ({"positive": {"offset": 0, "bucketCounts": ["-1"]}}, "negative"),
        ({"count": -1}, "negative"),
        ({"negative": {"offset": 0, "bucketCounts": ["1"]}}, "negative"),
        ({"sum": "NaN"}, "sum"),
        ({"sum": "Infinity"}, "sum"),
        ({"sum": -1.0}, "sum"),
        ({"sum": 100.0}, "sum"),
        ({"sum": None}, "sum"),
        ({"positive": {"offset": 2**30, "bucketCounts": ["1"]}}, "buckets"),
        ({"positive": {"offset": 0, "bucketCounts": ["0"] * MAX_BUCKETS + ["1"]}}, "buckets"),
        ({"timeUnixNano": "0", "startTimeUnixNano": "0"}, "time"),
        ({"timeUnixNano": str(2**64 - 1)}, "time"),
        ({"startTimeUnixNano": "1"}, "time"),
        ({"attributes": with_attributes(STATUS="fine")}, "status"),
        ({"attributes": with_attributes(DOMINANT="")}, "stage"),
        ({"attributes": with_attributes(DOMINANT="x" * 65)}, "stage"),
        ({"attributes": with_attributes(DOMINANT="a\nb")}, "stage"),
    ],
)
def test_implausible_points_are_refused(bodies: Any, changes: dict[str, Any], reason: str) -> None:
    rejected, message = refused(bodies.metrics(bodies.point(), bodies.point(**changes)))

    assert rejected == {reason: 1}
    assert message.startswith("inference.request.duration[1]: ")


def test_times_from_the_future_and_the_far_past_are_refused(bodies: Any) -> None:
    ahead, behind = (
        bodies.point(timeUnixNano=str(bodies.now_ns + hours * 3600 * SECOND), startTimeUnixNano="0")
        for hours in (25, -25)
    )
    rejected, message = refused(bodies.metrics(ahead, behind))

    assert rejected == {"time": 2}
    assert message.count("check the sender's clock") == 2


def test_an_interval_with_its_end_before_its_start_is_refused(bodies: Any) -> None:
    rejected, _ = refused(bodies.metrics(bodies.point(startTimeUnixNano=str(bodies.now_ns + SECOND))))

    assert rejected == {"time": 1}


def test_cumulative_points_are_refused_with_the_fix(bodies: Any) -> None:
    rejected, message = refused(bodies.metrics(bodies.point(), bodies.point(), temporality=2))

    assert rejected == {"temporality": 2}
    assert "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta" in message


def test_a_stagelens_metric_of_another_type_is_refused_with_the_fix(bodies: Any) -> None:
    data = {"aggregationTemporality": 1, "dataPoints": [{"count": "1"}]}
    rejected, message = refused(bodies.request({"name": names.REQUEST_DURATION, "histogram": data}))

    assert rejected == {"type": 1}
    assert "ExponentialBucketHistogramAggregation" in message


def test_a_stage_metric_needs_a_stage(bodies: Any) -> None:
    rejected, message = refused(bodies.metrics(bodies.point(attributes=[]), name=names.STAGE_DURATION))

    assert rejected == {"stage": 1}
    assert "inference.stage must be 1 to 64 printable characters, got nothing" in message


@pytest.mark.parametrize(("band", "shown"), [("3", "'3'"), ("2-4", "'2-4'"), (None, "nothing"), (7, "'7'")])
def test_a_batch_size_is_in_a_bucket(bodies: Any, band: Any, shown: str) -> None:
    kind = "intValue" if isinstance(band, int) else "stringValue"
    attributes = [] if band is None else [{"key": names.BATCH_BAND, "value": {kind: band}}]
    rejected, message = refused(bodies.metrics(bodies.point(attributes=attributes), name=names.BATCH_DURATION))
    good = bodies.point(attributes=with_attributes(BATCH_BAND="1024+"))
    reader = read(bodies.metrics(good, name=names.BATCH_DURATION))

    assert rejected == {"stage": 1}
    assert "inference.batch.band must be one of 1, 2-3, 4-7, 8-15" in message
    assert message.endswith(f"got {shown}")
    assert [point.stage for point in reader.points] == ["1024+"]


def test_a_token_count_is_in_a_bucket(bodies: Any) -> None:
    good, bad = (bodies.point(attributes=with_attributes(TOKEN_BAND=band)) for band in ("131072+", "1024+"))
    rejected, message = refused(bodies.metrics(bad, name=names.FIRST_TOKEN_BY_INPUT))
    reader = read(bodies.metrics(good, name=names.FIRST_TOKEN_BY_INPUT))

    assert rejected == {"stage": 1}
    assert "inference.token.band must be one of 1, 2-3, 4-7" in message
    assert [point.stage for point in reader.points] == ["131072+"]


@pytest.mark.parametrize("stall", ["gc", "gc:", "forward", "weather:forward", ":forward"])
def test_a_stall_has_a_cause_and_a_stage(bodies: Any, stall: str) -> None:
    good, bad = (bodies.point(attributes=with_attributes(STALL=each), sum=None) for each in ("gc:rerank", stall))
    rejected, message = refused(bodies.metrics(bad, name=names.STALL_TIME))
    reader = read(bodies.metrics(good, name=names.STALL_TIME))

    assert rejected == {"stage": 1}
    assert "inference.stall must be one of gc, loop, cpu, compile, a colon and a stage" in message
    assert message.endswith(f"got {stall!r}")
    assert [point.stage for point in reader.points] == ["gc:rerank"]


@pytest.mark.parametrize(
    "stack",
    ["", "forward", "forward;", ";serve:f", "a;;b", "a;\n", "s" * 65 + ";f", "a;" + "f" * 10_000, "a" + ";f" * 25],
)
def test_a_stack_has_a_stage_and_frames(bodies: Any, stack: str) -> None:
    right = "forward" + ";package.module:Class.function@package/module.py:41" * 24
    good, bad = (bodies.point(attributes=with_attributes(PROFILE_STACK=each), sum=None) for each in (right, stack))
    rejected, message = refused(bodies.metrics(bad, name=names.PROFILE_TIME))
    reader = read(bodies.metrics(good, name=names.PROFILE_TIME))

    assert rejected == {"stage": 1}
    assert "inference.profile.stack" in message
    assert [point.stage for point in reader.points] == [right]


@given(st.text(max_size=200))
def test_any_stack_is_accepted_or_refused(text: str) -> None:
    reason, key = Reason.STAGE, text
    try:
        key = stack_of(text)
    except RejectedError as error:
        reason = error.reason
    assert (reason, key) == (Reason.STAGE, text)


def test_stage_time_counts_microseconds_and_has_no_sum(bodies: Any) -> None:
    point = bodies.point(attributes=with_attributes(STAGE="forward"), count="900", sum=None)
    point["positive"]["bucketCounts"] = ["900"]
    reader = read(bodies.metrics(point, name=names.STAGE_TIME))

    assert [(point.histogram.count, point.histogram.sum) for point in reader.points] == [(900, 0.0)]


def test_a_point_without_values_is_nothing(bodies: Any) -> None:
    reader = read(bodies.metrics(bodies.point(()), bodies.point(flags=1, count="7")))

    assert (list(reader.points), reader.tally.rejected) == ([], {})


def test_a_finer_scale_is_downscaled(bodies: Any) -> None:
    fine = Histogram(scale=10)
    fine.record(0.1, 7)
    point = points(bodies.metrics(bodies.point(**fine.to_otlp())))[0]

    assert (point.histogram.scale, point.histogram.count) == (5, 7)


def test_many_refusals_are_summarized(bodies: Any) -> None:
    rejected, message = refused(bodies.metrics(*[bodies.point(count="9")] * 100))

    assert rejected == {"count": 100}
    assert message.endswith("; and 95 more")
    assert len(message) < 1000


def test_dropped_requests_are_added_up(bodies: Any) -> None:
    points = [{"asInt": "3"}, {"asDouble": 2.0}, {"asInt": "-1"}, {"asDouble": "NaN"}]
    total = {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": points}
    reader = read(bodies.request({"name": names.REQUESTS_DROPPED, "sum": total}))

    assert reader.dropped == 5
    assert reader.tally.rejected == {"number": 2}


def test_dropped_requests_must_be_a_counter(bodies: Any) -> None:
    total = {"aggregationTemporality": 1, "isMonotonic": False, "dataPoints": [{"asInt": "3"}]}
    rejected, message = refused(bodies.request({"name": names.REQUESTS_DROPPED, "sum": total}))

    assert (rejected, "record it with a counter" in message) == ({"type": 1}, True)


def test_the_size_of_a_batch_is_limited() -> None:
    now = time.time_ns()
    point = HistogramPoint(
        attributes={names.STAGE: "forward"},
        start_ns=now,
        time_ns=now,
        flags=0,
        count=MAX_BUCKETS,
        sum=None,
        scale=5,
        zero=0,
        offset=-10_000,
        counts=[1] * MAX_BUCKETS,
        negative=False,
    )
    metric = Metric(names.STAGE_TIME, EXPONENTIAL_HISTOGRAM, 27, temporality=1, histograms=[point] * 27)
    reader = PointReader(TimeWindow(0, now))
    reader.read([ResourceMetrics({}, [metric])])

    assert (len(reader.points), reader.tally.rejected) == (25, {Reason.SIZE: 2})


def test_a_batch_adds_up_within_64_bits() -> None:
    now = time.time_ns()
    point = HistogramPoint(
        attributes={names.STAGE: "forward"},
        start_ns=now,
        time_ns=now,
        flags=0,
        count=2**44,
        sum=None,
        scale=5,
        zero=0,
        offset=0,
        counts=[2**44],
        negative=False,
    )
    metric = Metric(names.STAGE_TIME, EXPONENTIAL_HISTOGRAM, 2**9, temporality=1, histograms=[point] * 2**9)
    reader = PointReader(TimeWindow(0, now))
    reader.read([ResourceMetrics({}, [metric])])

    assert (len(reader.points), reader.tally.rejected) == (2**4, {Reason.SIZE: 2**9 - 2**4})
