"""Points of attributes and replicas: valid keys, and the place of the process that the collector adds."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from stagelens.collector.ingest import points as ingest
from stagelens.collector.ingest.points import PointReader
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp import json_encoding, protobuf_encoding
from stagelens.collector.otlp.model import ResourceMetrics
from stagelens.core import names
from stagelens.core.hardware import HOST, POD, PROCESS_ID
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE
from tests.collector.conftest import attributes, last_day

DAY = 86_400


def read(*export: ResourceMetrics) -> PointReader:
    """Return the reader of *export*."""
    now = int(time.time())
    reader = PointReader(TimeWindow(now - DAY, now + DAY))
    reader.read(export)
    return reader


def keys(reader: PointReader) -> list[str]:
    """Return the keys of the accepted points."""
    return [point.stage for point in reader.points]


def body(bodies: Any, metric: str, *values: object, **resource: str) -> dict[str, Any]:
    """Return an export of *metric* with a point for each of *values*; *resource* replaces the attributes of the resource."""
    key = names.METRICS[metric]
    points = [bodies.point(attributes=attributes({key: value} if value is not None else {})) for value in values]
    if metric in names.TIME_METRICS:
        points = [point | {"sum": 0.0} for point in points]
    made = bodies.metrics(*points, name=metric)
    if resource:
        made["resourceMetrics"][0]["resource"]["attributes"] = attributes({names.SERVICE_NAME: "shop"} | resource)
    return made


def as_json(made: dict[str, Any]) -> list[ResourceMetrics]:
    """Parse *made* as JSON."""
    return json_encoding.read_metrics(json.dumps(made).encode())


def as_protobuf(made: dict[str, Any]) -> list[ResourceMetrics]:
    """Parse *made* as protobuf."""
    return protobuf_encoding.read_metrics(ParseDict(made, ExportMetricsServiceRequest()).SerializeToString())


@pytest.mark.parametrize("key", ["tenant=acme", "tenant=a=b", "tenant=", "request_size=4096", "x.y-z_1=Größe 7"])
@pytest.mark.parametrize("parse", [as_json, as_protobuf])
def test_attributes_keep_their_names_and_values(bodies: Any, parse: Any, key: str) -> None:
    assert keys(read(*parse(body(bodies, REQUEST_BY_ATTRIBUTE, key)))) == [key]


@pytest.mark.parametrize(
    "key", [None, 7, "", "tenant", "=acme", "Tenant=acme", "a b=c", f"{'n' * 41}=x", f"a={'v' * 201}", "a=b\nc"]
)
def test_invalid_attributes_are_refused(bodies: Any, key: object) -> None:
    reader = read(*as_json(body(bodies, REQUEST_BY_ATTRIBUTE, "tenant=a", key)))

    assert keys(reader) == ["tenant=a"]
    assert reader.tally.rejected == {"stage": 1}
    assert reader.tally.error_message.startswith(
        "inference.request.by_attribute[1]: inference.attribute must be `name=value`"
    )


@pytest.mark.parametrize("parse", [as_json, as_protobuf])
def test_a_replica_is_the_place_of_its_process(bodies: Any, parse: Any) -> None:
    for _ in range(2):
        for pod in ("web-1", "web-2"):
            resource = {HOST: "node", POD: pod, PROCESS_ID: "7"}
            latency = read(*parse(body(bodies, REQUEST_BY_ATTRIBUTE, "replica=", "tenant=a", **resource)))
            spent = read(*parse(body(bodies, REPLICA_STAGE_TIME, "forward", **resource)))

            assert keys(latency) == [f"replica={pod}:7", "tenant=a"]
            assert keys(spent) == [f"forward;{pod}:7"]


def test_processes_in_one_export_have_their_own_places(bodies: Any) -> None:
    export = [
        item
        for pod in ("web-1", "web-2")
        for item in as_protobuf(body(bodies, REQUEST_BY_ATTRIBUTE, "replica=", **{POD: pod, PROCESS_ID: "7"}))
    ]

    assert keys(read(*export)) == ["replica=web-1:7", "replica=web-2:7"]


def test_known_places_are_kept(bodies: Any) -> None:
    known = body(bodies, REQUEST_BY_ATTRIBUTE, "replica=web-1:7", names="x")
    spent = body(bodies, REPLICA_STAGE_TIME, "forward;web-1:7", "forward", names="x")

    assert keys(read(*as_json(known))) == ["replica=web-1:7"]
    assert keys(read(*as_json(spent))) == ["forward;web-1:7", "forward;"]


def test_invalid_stages_of_replicas_are_refused(bodies: Any) -> None:
    reader = read(*as_json(body(bodies, REPLICA_STAGE_TIME, "", 7, "x" * 65, ";web-1:7", "a\nb")))

    assert keys(reader) == []
    assert reader.tally.rejected == {"stage": 5}


def test_known_identities_are_not_parsed_again(bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = body(bodies, REQUEST_BY_ATTRIBUTE, "replica=", "tenant=a", **{POD: "web-9", PROCESS_ID: "7"})
    first = read(*as_protobuf(made))
    monkeypatch.setattr(ingest._SERIES_CACHE, "_read", None)  # pyright: ignore[reportPrivateUsage] - no other is used

    assert keys(read(*as_protobuf(made))) == keys(first) == ["replica=web-9:7", "tenant=a"]


def test_attributes_reach_the_queries(served: Any, bodies: Any) -> None:
    for pod, count in (("web-1", 2), ("web-2", 1)):
        for metric, key in ((REQUEST_BY_ATTRIBUTE, "replica="), (REPLICA_STAGE_TIME, "forward")):
            made = body(bodies, metric, *[key] * count, **{POD: pod, PROCESS_ID: "7"})
            assert served.post("/v1/metrics", made).status_code == 200
    shop = replace(last_day(), service="shop")
    found, table = served.store.read.attributes(shop), served.store.read.replica_counts(shop)

    assert {value: counts.sum() for value, counts in found.requests["replica"].items()} == {"web-1:7": 2, "web-2:7": 1}
    assert [(each.place, each.requests.sum(), each.stages["forward"].sum()) for each in table.replicas] == [
        ("web-1:7", 2, 2),
        ("web-2:7", 1, 1),
    ]
