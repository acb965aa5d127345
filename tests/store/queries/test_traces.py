"""Queries for retained traces, and their search: filters, counts of the values, and pages."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pandas as pd
import pytest

from stagelens.store import Batch, RetainedTrace, Retention
from stagelens.store.queries import trace_search
from stagelens.store.queries.trace_search import FoundTraces, TraceFilter
from tests.support.raw_requests import NOON, NS, OpenSite, Request, Series, Site, retained

SHOP = Series("shop", "1", route="/buy")


def trace(
    number: int, milliseconds: int, dominant: str, series: Series = SHOP, **attributes: str | int
) -> RetainedTrace:
    request = Request({dominant: milliseconds * 1_000_000 - 500, "overhead": 500}, NOON - 60 * number, series)
    named = {f"inference.attribute.{key}": value for key, value in attributes.items()}
    one = retained(request, number)
    return replace(
        one,
        started_ns=one.started_ns + 123_456_789,
        spans=[{**one.spans[0], "attributes": {"batch": 4}}],
        attributes={"http.response.status_code": 200, "cached": False, "stagelens.stall.gc": 7, **named},
        parent_id=f"{number + 100:016x}",
    )


TRACES = [
    trace(1, 50, "forward", tenant="acme", replica="web-1:7", request_size=5000),
    trace(2, 900, "queue", tenant="acme", replica="web-2:7", request_size=4096),
    trace(3, 800, "queue", tenant="bolt", replica="web-2:7", request_size=100),
    trace(4, 700, "load", replace(SHOP, route="/sell", status="error"), replica="web-2:7"),
    trace(5, 60, "forward", Series("bank"), tenant="acme"),
]


@pytest.fixture
def one(sqlite: Site) -> Site:
    sqlite.store.write([Batch("traces", traces=TRACES)])
    sqlite.write([Request({"forward": step * 10_000_000}, series=SHOP) for step in range(1, 101)])
    return sqlite


def numbers(found: FoundTraces | pd.DataFrame) -> list[int]:
    page = found.page if isinstance(found, FoundTraces) else found
    return [int(trace_id, 16) for trace_id in page["trace_id"]]


def test_a_trace_round_trips_unchanged(one: Site) -> None:
    read = one.store.read

    assert read.trace(TRACES[1].trace_id) == TRACES[1]
    assert read.trace(TRACES[1].trace_id.upper()) == TRACES[1]
    assert read.trace("00000000") == TRACES[0]
    for unknown in ("f" * 32, "", "0", "0000000", "%", "g" * 32, "' OR 1=1 --"):
        assert read.trace(unknown) is None


def test_a_trace_sent_twice_is_stored_once(one: Site) -> None:
    one.store.write([Batch("again", traces=[TRACES[0], TRACES[0], trace(9, 10, "forward")])])

    assert numbers(one.store.read.exemplars(one.around(), order="time")) == [1, 2, 3, 4, 5, 9]


def test_two_requests_of_one_distributed_trace_are_two(one: Site) -> None:
    read, first = one.store.read, TRACES[1]
    retry = replace(first, span_id="ab" * 8, started_ns=first.started_ns + NS, duration_ns=first.duration_ns - NS // 4)
    third = replace(first, span_id="cd" * 8, started_ns=first.started_ns - NS, duration_ns=first.duration_ns - NS // 2)
    one.store.write([Batch("retry", traces=[retry, third])])
    listed = read.exemplars(one.around(), dominant="queue")
    opened = [read.trace(f"{row.trace_id}-{row.span_id}") for row in listed.itertuples()]

    assert opened == [first, TRACES[2], retry, third]
    assert numbers(read.one_per_cause(one.around(), 3)) == [2, 4, 5]
    assert numbers(read.one_per_cause(one.around(), 6)) == [2, 4, 5, 3, 2, 2]
    assert read.trace(first.trace_id) == read.trace(f"{first.trace_id}-{'AB' * 8}") == retry
    assert read.trace(f"{first.trace_id}-{'ef' * 8}") is None
    assert read.trace(f"{first.trace_id[:8]}-{first.span_id}") is None


def test_exemplars_are_the_slowest_or_the_newest(one: Site) -> None:
    read = one.store.read

    assert numbers(read.exemplars(one.around(), limit=3)) == [2, 3, 4]
    assert numbers(read.exemplars(one.around(), order="time", limit=2)) == [1, 2]
    assert numbers(read.exemplars(one.around(), dominant="forward")) == [5, 1]
    assert numbers(read.exemplars(one.around(service="bank"))) == [5]
    assert numbers(read.exemplars(one.between(NOON - 180, NOON - 100))) == [2, 3]


@pytest.mark.parametrize(
    ("between", "found"), [((0.06, 0.9), [3, 4, 5]), ((0.9, math.inf), [2]), ((-1.0, 0.06), [1]), ((1e30, 1e40), [])]
)
def test_exemplars_between_two_latencies_are_selected(
    one: Site, between: tuple[float, float], found: list[int]
) -> None:
    frame = one.store.read.exemplars(one.around(), between_seconds=between)

    assert sorted(numbers(frame)) == found


def test_an_exemplar_has_its_rank(one: Site) -> None:
    found = one.store.read.exemplars(one.around(service="shop")).set_index("dominant")
    alone = one.store.read.exemplars(one.around(service="bank"))

    assert found["rank"]["load"] == pytest.approx(0.7, abs=0.02)
    assert found["duration_seconds"]["load"] == pytest.approx(0.7)
    assert found["stages"]["load"] == {"load": pytest.approx(0.7), "overhead": pytest.approx(5e-7)}
    assert alone["rank"].isna().all()


def test_one_per_cause_shows_every_cause_first(one: Site) -> None:
    read = one.store.read

    assert numbers(read.one_per_cause(one.around(), 4)) == [2, 4, 5, 3]
    assert numbers(read.one_per_cause(one.around(), 2)) == [2, 4]


def test_equally_slow_causes_are_ordered_by_trace_id(sqlite: Site) -> None:
    sqlite.store.write([Batch("equal", traces=[trace(9, 30, "a"), trace(7, 30, "c"), trace(8, 30, "b")])])

    assert numbers(sqlite.store.read.one_per_cause(sqlite.around(), 3)) == [7, 8, 9]


def test_the_result_has_the_retention_rule_and_expiry(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(traces=timedelta(days=3), traces_per_service=500))
    reasons = ["slow", "slow", "error", "uniform"]
    one.store.write(
        [Batch("a", traces=[replace(trace(n, 50, "forward"), because=why) for n, why in enumerate(reasons, 1)])]
    )
    one.store.write([Batch("b", traces=[trace(5, 60, "forward", Series("bank"))])])
    read, shop = one.store.read, one.around(service="shop")
    for found in (read.exemplars(shop, limit=1), read.one_per_cause(shop, 1), read.exemplars(shop, dominant="queue")):
        rule = found.attrs["rule"]

        assert found.attrs["kept"] == {"error": 1, "slow": 2, "uniform": 1}
        assert (found.attrs["retention_seconds"], found.attrs["kept_a_service"]) == (259_200, 500)
        assert all(word in rule for word in ("forced", "failed", "slowest", "cold-start", "random"))


def test_the_url_of_a_retained_request_never_changes(one: Site) -> None:
    listed = one.store.read.exemplars(one.around())[["trace_id", "span_id"]].to_numpy().tolist()
    one.store.maintain()
    one.store.write([Batch("again", traces=TRACES)])
    one.reopen()
    now = one.store.read.exemplars(one.around())[["trace_id", "span_id"]].to_numpy().tolist()

    assert now == listed
    assert [one.store.read.trace(f"{trace_id}-{span_id}") for trace_id, span_id in listed] == [*TRACES[1:], TRACES[0]]


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ((("http.response.status_code", "200"),), [2, 3, 4, 5, 1]),
        ((("cached", "False"),), [2, 3, 4, 5, 1]),
        ((("batch", "4"),), [2, 3, 4, 5, 1]),
        ((("batch", "5"),), []),
        ((("no", ""),), []),
        ((("tenant", ""),), [2, 3, 5, 1]),
        ((("tenant", "acme"), ("replica", "web-2:7")), [2]),
        ((("tenant", "acme"), ("tenant", "bolt"), ("replica", "web-2:7")), [2, 3]),
        ((("inference.attribute.tenant", "bolt"),), [3]),
        ((("request_size", "4096"),), [2, 1]),
        ((("request_size", "9999"),), [2, 1]),
    ],
)
def test_requests_are_found_by_attributes(one: Site, attributes: tuple[tuple[str, str], ...], found: list[int]) -> None:
    assert numbers(one.store.read.search_traces(one.around(), TraceFilter(attributes=attributes))) == found


def test_the_other_conditions_apply_too(one: Site) -> None:
    read = one.store.read
    acme = (("tenant", "acme"),)

    assert numbers(read.search_traces(one.around(), TraceFilter("forward", attributes=acme))) == [5, 1]
    assert numbers(read.search_traces(one.around(service="shop"), TraceFilter("forward", attributes=acme))) == [1]
    assert numbers(read.search_traces(one.around(), TraceFilter(between_seconds=(0.06, 0.8)))) == [4, 5]
    assert numbers(read.search_traces(one.around(status="error"), TraceFilter())) == [4]


def test_values_are_counted_among_the_matching_requests(one: Site) -> None:
    search_traces = one.store.read.search_traces(one.around(), TraceFilter("queue", attributes=(("tenant", "acme"),)))

    assert (numbers(search_traces), search_traces.matching, search_traces.searched, search_traces.retained) == (
        [2],
        1,
        5,
        2,
    )
    assert search_traces.dimensions["dominant"] == {"forward": 2, "queue": 1}
    assert search_traces.dimensions["service"] == {"shop": 1}
    assert search_traces.attributes["tenant"] == {"acme": 1, "bolt": 1}
    assert search_traces.attributes["replica"] == {"web-2:7": 1}
    everything = one.store.read.search_traces(one.around(), TraceFilter())
    slowest = everything.page.iloc[0]
    assert {"tenant": "acme", "replica": "web-2:7", "request_size": "4096"}.items() <= slowest["attributes"].items()
    assert (slowest["route"], slowest["duration_seconds"]) == ("/buy", 0.9)
    assert list(everything.attributes["tenant"].items()) == [("acme", 3), ("bolt", 1)]
    assert everything.attributes["request_size"] == {"4096": 2, "64": 1}
    assert everything.dimensions["status"] == {"ok": 4, "error": 1}
    assert "stagelens.stall.gc" not in everything.attributes


def test_pages_are_in_a_stable_order(one: Site) -> None:
    read, everything = one.store.read, TraceFilter()
    pages = [numbers(read.search_traces(one.around(), everything, limit=2, offset=offset)) for offset in (0, 2, 4, 6)]
    newest = [
        numbers(read.search_traces(one.around(), everything, order="time", limit=3, offset=offset)) for offset in (0, 3)
    ]

    assert pages == [[2, 3], [4, 5], [1], []]
    assert newest == [[1, 2, 3], [4, 5]]


def test_a_limited_search_says_so(one: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "MAX_SEARCHED", 2)
    read = one.store.read
    slowest = read.search_traces(one.around(), TraceFilter(attributes=(("tenant", "acme"),)))
    forward = read.search_traces(one.around(), TraceFilter("forward"))

    assert (numbers(slowest), slowest.matching, slowest.searched, slowest.retained) == ([2], 1, 2, 5)
    assert (numbers(forward), forward.searched, forward.retained) == ([5, 1], 2, 2)
    assert forward.dimensions["dominant"] == {"forward": 2}
