"""Data points: accepted and refused values, their keys, and the partial success for the sender."""

from __future__ import annotations

from typing import Any

import pytest

from stagelens.collector.ingest import points as ingest
from stagelens.collector.ingest.points import MAX_BUCKETS, PointReader
from stagelens.collector.ingest.validation import Reason
from stagelens.core import names
from stagelens.core.hardware import HOST, POD, PROCESS_ID
from stagelens.core.histogram import Histogram
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE
from tests.collector.conftest import attributes
from tests.collector.metrics import points_of, read_json

STACK = "forward" + ";package.module:Class.function@package/module.py:41" * 24


def read(body: dict[str, Any]) -> PointReader:
    return points_of(*read_json(body))


def refused(body: dict[str, Any]) -> tuple[dict[str, int], str]:
    reader = read(body)
    return {str(reason): count for reason, count in reader.tally.rejected.items()}, reader.tally.error_message


def with_attributes(**values: Any) -> list[dict[str, Any]]:
    return attributes({getattr(names, key): value for key, value in values.items()})


def test_the_dimensions_of_a_point_are_its_resource_and_its_attributes(bodies: Any) -> None:
    long = "/\x00\x1b" + "x" * 300
    sent = with_attributes(MODEL="größe", MODEL_VERSION=3, ROUTE=long, DEVICE=True, STATUS="error", DOMINANT="queue")
    failed = bodies.point(attributes=with_attributes(ERROR_TYPE="ValueError"))
    first, second = read(bodies.metrics(bodies.point(attributes=sent), failed)).points
    nameless = bodies.metrics(bodies.point(attributes=[]))
    nameless["resourceMetrics"][0]["resource"] = {}
    (third,) = read(nameless).points
    series = first.series

    assert (series.service, series.version, series.model, series.model_version) == ("shop", "1", "größe", "3")
    assert (series.route, series.device, series.status) == ("/\ufffd\ufffd" + "x" * 197, "true", "error")
    assert (first.stage, second.series.status) == ("queue", "error")
    assert (third.series.service, third.series.status, third.stage) == ("unknown_service", "ok", "overhead")


@pytest.mark.parametrize(("changes", "before_seconds"), [({}, 5), ({"startTimeUnixNano": "0"}, 0)])
def test_a_point_is_stored_at_the_middle_of_its_interval(
    bodies: Any, changes: dict[str, Any], before_seconds: int
) -> None:
    (point,) = read(bodies.metrics(bodies.point(**changes))).points

    assert point.at == bodies.now_ns // 10**9 - before_seconds


def buckets(*counts: str, offset: int = 0) -> dict[str, Any]:
    return {"offset": offset, "bucketCounts": [*counts]}


IMPLAUSIBLE: dict[str, list[dict[str, Any]]] = {
    "scale": [{"scale": 21}, {"scale": -11}],
    "count": [
        *({"count": "2"}, {"zeroCount": "1"}, {"count": -1}),
        {"count": str(2**60), "positive": buckets(str(2**60))},
        {"positive": buckets("-1")},
    ],
    "negative": [{"negative": buckets("1")}],
    "sum": [{"sum": value} for value in ("NaN", "Infinity", -1.0, 100.0, None)],
    "buckets": [{"positive": buckets("1", offset=2**30)}, {"positive": buckets(*["0"] * MAX_BUCKETS, "1")}],
    "time": [
        *({"timeUnixNano": "0", "startTimeUnixNano": "0"}, {"timeUnixNano": str(2**64 - 1)}),
        *({"startTimeUnixNano": "1"}, {"startTimeUnixNano": str(2**62)}),
    ],
    "status": [{"attributes": with_attributes(STATUS="fine")}],
    "stage": [{"attributes": with_attributes(DOMINANT=value)} for value in ("", "x" * 65, "a\nb")],
}


@pytest.mark.parametrize(
    ("reason", "changes"), [(reason, changes) for reason, each in IMPLAUSIBLE.items() for changes in each]
)
def test_implausible_points_are_refused(bodies: Any, changes: dict[str, Any], reason: str) -> None:
    rejected, message = refused(bodies.metrics(bodies.point(), bodies.point(**changes)))

    assert rejected == {reason: 1}
    assert message.startswith("inference.request.duration[1]: ")


def test_points_of_a_wrong_kind_are_refused_with_the_fix(bodies: Any) -> None:
    cumulative = refused(bodies.metrics(bodies.point(), bodies.point(), temporality=2))
    data = {"aggregationTemporality": 1, "isMonotonic": False, "dataPoints": [{"count": "1"}]}
    classic = refused(bodies.request({"name": names.REQUEST_DURATION, "histogram": data}))
    up_down = refused(bodies.request({"name": names.REQUESTS_DROPPED, "sum": data}))

    assert [rejected for rejected, _ in (cumulative, classic, up_down)] == [
        {"temporality": 2},
        {"type": 1},
        {"type": 1},
    ]
    assert "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta" in cumulative[1]
    assert "ExponentialBucketHistogramAggregation" in classic[1]
    assert "record it with a counter" in up_down[1]


@pytest.mark.parametrize(
    ("metric", "valid", "invalid", "message"),
    [
        (names.STAGE_DURATION, ["queue"], [None], "inference.stage must be 1 to 64 printable characters, got nothing"),
        (
            names.BATCH_DURATION,
            ["1024+"],
            ["3", "2-4", None, 7],
            "inference.batch.band must be one of 1, 2-3, 4-7, 8-15",
        ),
        (names.FIRST_TOKEN_BY_INPUT, ["131072+"], ["1024+"], "inference.token.band must be one of 1, 2-3, 4-7"),
        (
            names.STALL_TIME,
            ["gc:rerank"],
            ["gc", "gc:", "forward", "weather:forward", ":forward"],
            "inference.stall must be one of gc, loop, cpu, compile, a colon and a stage, got",
        ),
        (
            names.PROFILE_TIME,
            [STACK],
            [
                "",
                *("forward", "forward;", ";serve:f", "a;;b", "a;\n"),
                *("s" * 65 + ";f", "a;" + "f" * 10_000, "a" + ";f" * 25),
            ],
            "inference.profile.stack",
        ),
        (
            REQUEST_BY_ATTRIBUTE,
            ["tenant=acme", "tenant=a=b", "tenant=", "request_size=4096", "x.y-z_1=Größe 7"],
            [None, 7, "", "tenant", "=acme", "Tenant=acme", "a b=c", f"{'n' * 41}=x", f"a={'v' * 201}", "a=b\nc"],
            "inference.attribute must be `name=value`",
        ),
        (REPLICA_STAGE_TIME, ["forward;pod-2:7"], ["", 7, "x" * 65, ";web-1:7", "a\nb"], "inference.stage must be"),
    ],
)
def test_the_key_of_a_point_is_valid(
    bodies: Any, metric: str, valid: list[str], invalid: list[Any], message: str
) -> None:
    reader = read(keyed(bodies, metric, *valid, *invalid))

    assert keys(reader) == valid
    assert reader.tally.rejected == {"stage": len(invalid)}
    assert reader.tally.error_message.startswith(f"{metric}[{len(valid)}]: ")
    assert message in reader.tally.error_message


def keyed(bodies: Any, metric: str, *values: object, **resource: str) -> dict[str, Any]:
    """Return an export of *metric* with a point for each of *values*; *resource* replaces the attributes of the resource."""
    key = names.METRICS[metric]
    points = [bodies.point(attributes=attributes({key: value} if value is not None else {})) for value in values]
    if metric in names.TIME_METRICS:
        points = [point | {"sum": None} for point in points]
    body = bodies.metrics(*points, name=metric)
    if resource:
        body["resourceMetrics"][0]["resource"]["attributes"] = attributes({names.SERVICE_NAME: "shop"} | resource)
    return body


def keys(reader: PointReader) -> list[str]:
    return [point.stage for point in reader.points]


def test_a_replica_is_the_place_of_its_process(bodies: Any) -> None:
    together = []
    for pod in ("web-1", "web-2"):
        resource = {HOST: "node", POD: pod, PROCESS_ID: "7"}
        latency = keyed(bodies, REQUEST_BY_ATTRIBUTE, "replica=", "tenant=a", "replica=web-9:7", **resource)
        spent = keyed(bodies, REPLICA_STAGE_TIME, "forward", "forward;web-9:7", **resource)
        together += read_json(latency)

        for _ in range(2):
            assert keys(read(latency)) == [f"replica={pod}:7", "tenant=a", "replica=web-9:7"]
            assert keys(read(spent)) == [f"forward;{pod}:7", "forward;web-9:7"]
    assert keys(points_of(*together))[::3] == ["replica=web-1:7", "replica=web-2:7"]
    assert keys(read(keyed(bodies, REPLICA_STAGE_TIME, "forward", names="x"))) == ["forward;"]


def test_known_identities_are_not_parsed_again(bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = keyed(bodies, REQUEST_BY_ATTRIBUTE, "replica=", "tenant=a", **{POD: "web-9", PROCESS_ID: "7"})
    first = read(body)
    monkeypatch.setattr(ingest._SERIES_CACHE, "_read", None)  # pyright: ignore[reportPrivateUsage] - no other is used

    assert keys(read(body)) == keys(first) == ["replica=web-9:7", "tenant=a"]


def test_stage_time_counts_microseconds_and_has_no_sum(bodies: Any) -> None:
    point = bodies.point(attributes=with_attributes(STAGE="forward"), count="900", sum=None)
    point["positive"]["bucketCounts"] = ["900"]
    reader = read(bodies.metrics(point, name=names.STAGE_TIME))

    assert [(point.histogram.count, point.histogram.sum) for point in reader.points] == [(900, 0.0)]


def test_a_finer_scale_is_downscaled(bodies: Any) -> None:
    fine = Histogram(scale=10)
    fine.record(0.1, 7)
    (point,) = read(bodies.metrics(bodies.point(**fine.to_otlp()))).points

    assert (point.histogram.scale, point.histogram.count) == (5, 7)


def test_many_refusals_are_summarized(bodies: Any) -> None:
    rejected, message = refused(bodies.metrics(*[bodies.point(count="9")] * 100, bodies.point(scale=21)))

    assert rejected == {"count": 100, "scale": 1}
    assert message == (
        "inference.request.duration[100]: scale must lie between -10 and 20, got 21; "
        "inference.request.duration[0]: count is 9, but its buckets and zeroCount contain 1 (and 99 more)"
    )


def test_dropped_requests_are_added_up(bodies: Any) -> None:
    points = [{"asInt": "3"}, {"asDouble": 2.0}, {"asInt": "-1"}, {"asDouble": "NaN"}]
    total = {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": points}
    reader = read(bodies.request({"name": names.REQUESTS_DROPPED, "sum": total}))

    assert (reader.dropped, reader.tally.rejected) == (5, {"number": 2})


@pytest.mark.parametrize(
    ("counts", "sent", "accepted"), [([1] * MAX_BUCKETS, 27, 25), ([2**44], 2**9, 2**4)], ids=["buckets", "counts"]
)
def test_the_size_of_a_batch_is_limited(bodies: Any, counts: list[int], sent: int, accepted: int) -> None:
    positive = {"offset": -10_000, "bucketCounts": counts}
    point = bodies.point(attributes=with_attributes(STAGE="forward"), count=sum(counts), sum=None, positive=positive)
    reader = read(bodies.metrics(*[point] * sent, name=names.STAGE_TIME))

    assert (len(reader.points), reader.tally.rejected) == (accepted, {Reason.SIZE: sent - accepted})
