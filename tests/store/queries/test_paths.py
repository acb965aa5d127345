"""Queries across services."""

from __future__ import annotations

import pytest

from stagelens.core.attributes import ATTRIBUTE_SCALE, CALLER, attribute_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_BY_ATTRIBUTE
from stagelens.store import Batch, Point
from tests.support.raw_requests import Request, Series, Site
from tests.support.traced_services import AT, MS, distributed


@pytest.fixture
def one(sqlite: Site) -> Site:
    requests = (
        [each for number in (1, 2) for each in distributed(number)] + distributed(3)[:2] + distributed(4, "uniform")
    )
    sqlite.store.write([Batch("traces", traces=requests)])
    quick = Request({"preprocess": 5 * MS}, AT, Series("gateway"))
    slow = Request({"preprocess": 10 * MS, "dependency": 90 * MS}, AT, Series("gateway"))
    sqlite.write([*[quick] * 90, *[slow] * 10])
    return sqlite


def test_the_requests_of_a_trace_are_found_by_its_id(one: Site) -> None:
    found = one.store.read.requests_of_trace(f"{1:032X}")

    assert found == distributed(1)
    assert one.store.read.requests_of_trace("") == []


def test_the_paths_of_slow_requests_are_added_up(one: Site) -> None:
    slow_paths = one.store.read.slow_paths(one.around(service="gateway"), 0.95)

    assert slow_paths is not None
    assert (slow_paths.requests, slow_paths.complete, slow_paths.missing) == (4, 3, {"triton": 1})
    shares = {(share.service, share.stage): share.share for share in slow_paths.shares}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx(
        {
            ("triton", "forward"): 0.3 * 0.75,
            ("triton", "queue"): 0.2 * 0.75,
            ("ranker", "network"): 0.1 * 0.75,
            ("ranker", "dependency"): 0.6 * 0.25,
            ("ranker", "postprocess"): 0.1,
            ("gateway", "network"): 0.2,
            ("gateway", "preprocess"): 0.1,
        }
    )
    assert one.store.read.slow_paths(one.around(service="bank"), 0.95) is None


def test_without_counted_callers_the_map_is_that_of_retained_traces(one: Site) -> None:
    found = {(each.caller, each.called): each for each in one.store.read.service_map(one.around())}

    assert found.keys() == {("gateway", "ranker"), ("ranker", "triton")}
    edge = found["gateway", "ranker"]
    assert (edge.latency, edge.retained, edge.sampled) == (None, 4, 1)
    assert edge.share == pytest.approx(0.7)
    assert found["ranker", "triton"].share == pytest.approx(2 * 50 / (3 * 70))


def test_a_service_below_one_that_is_not_retained_is_not_called_by_its_caller(sqlite: Site) -> None:
    sqlite.store.write([Batch("traces", traces=[*distributed(1)[::2]])])

    assert sqlite.store.read.service_map(sqlite.around()) == []


def test_counted_callers_have_latency_and_errors(one: Site) -> None:
    counts = {
        ("gateway", "ok"): [0.02] * 30,
        ("gateway", "error"): [0.5] * 2,
        ("batch", "ok"): [0.1],
        ("", "ok"): [0.3],
    }
    points: list[Point] = []
    for (caller, status), seconds in counts.items():
        histogram = Histogram(ATTRIBUTE_SCALE)
        for second in seconds:
            histogram.record(second)
        keys = (attribute_key(CALLER.key, caller), attribute_key("tenant", "acme"), attribute_key("Caller", "x"))
        series = Series("ranker", status=status)
        points += [Point(series, REQUEST_BY_ATTRIBUTE, key, AT, histogram) for key in keys]
    one.store.write([Batch("attributes", points)])
    for _ in range(2):
        found = {(each.caller, each.called): each for each in one.store.read.service_map(one.around())}

        assert found.keys() == {("gateway", "ranker"), ("ranker", "triton"), ("batch", "ranker")}
        gateway, batch = found["gateway", "ranker"], found["batch", "ranker"]
        assert gateway.latency is not None
        assert (gateway.latency.count, gateway.errors, gateway.retained) == (32, 2, 4)
        assert batch.latency is not None
        assert (batch.latency.count, batch.retained, batch.sampled, batch.share) == (1, 0, 0, None)
        one.store.maintain()
