"""Queries for retained traces."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from stagelens.store import Batch, RetainedTrace, Retention
from tests.support.raw_requests import NOON, NS, OpenSite, Request, Series, Site

SHOP = Series("shop", "1", route="/buy")


def trace(number: int, milliseconds: int, dominant: str, series: Series = SHOP) -> RetainedTrace:
    spent = {dominant: milliseconds * 1_000_000 - 500, "overhead": 500}
    spans = [{"name": "work", "stage": dominant, "start_ns": 0, "duration_ns": 5, "attributes": {"batch": 4}}]
    return RetainedTrace(
        f"{number:032x}",
        f"{number:016x}",
        series,
        (NOON - 60 * number) * NS + 123_456_789,
        milliseconds * 1_000_000,
        "slow",
        dominant,
        spent,
        spans,
        {"http.response.status_code": 200, "cached": False},
        parent_id=f"{number + 100:016x}",
    )


TRACES = [
    trace(1, 50, "forward"),
    trace(2, 900, "queue"),
    trace(3, 800, "queue"),
    trace(4, 700, "load"),
    trace(5, 60, "forward", Series("bank")),
]


@pytest.fixture
def one(sqlite: Site) -> Site:
    sqlite.store.write([Batch("traces", traces=TRACES)])
    sqlite.write([Request({"forward": step * 10_000_000}, series=SHOP) for step in range(1, 101)])
    return sqlite


def numbers(frame: object) -> list[int]:
    return [int(trace_id, 16) for trace_id in frame["trace_id"]]  # type: ignore[index] - pandas' stubs


def test_a_trace_round_trips_unchanged(one: Site) -> None:
    read = one.store.read

    assert read.trace(TRACES[1].trace_id) == TRACES[1]
    assert read.trace(TRACES[1].trace_id.upper()) == TRACES[1]
    assert read.trace("00000000") == TRACES[0]
    assert read.trace("f" * 32) is None


@pytest.mark.parametrize("asked", ["", "0", "0000000", "%", "g" * 32, "' OR 1=1 --"])
def test_an_invalid_id_finds_nothing(one: Site, asked: str) -> None:
    assert one.store.read.trace(asked) is None


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
    assert [one.store.read.trace(f"{trace_id}-{span_id}") for trace_id, span_id in listed] == [
        TRACES[1],
        TRACES[2],
        TRACES[3],
        TRACES[4],
        TRACES[0],
    ]
