"""Rollup: every tier equals the sum of the finest, with late data and kills."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from stagelens import store
from stagelens.core import names
from stagelens.core.errors import StoreError
from stagelens.core.histogram import Histogram
from stagelens.store import Batch, Point, schema
from tests.store.store_contents import (
    check_tiers,
    histogram_of,
    known,
    rows,
)
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site, attribute_points

SERIES = (Series("shop", "1"), Series("shop", "2", status="error"), Series("bank"))
START = NOON - 3 * 3600

REQUESTS = st.lists(
    st.builds(
        Request,
        st.dictionaries(st.sampled_from(["forward", "queue", "mine"]), st.integers(0, 10**10), min_size=1),
        st.integers(START, NOON),
        st.sampled_from(SERIES),
    ),
    min_size=1,
    max_size=6,
)
# Random events: a batch (perhaps of a coarser client), a pause with maintenance, maintenance that is killed at its n-th
# statement, and a restart.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), REQUESTS, st.sampled_from([5, 5, 3])),
        st.tuples(st.just("maintain"), st.integers(0, 5000)),
        st.tuples(st.just("crash"), st.integers(1, 60)),
        st.tuples(st.just("restart")),
    ),
    max_size=12,
)


# Ends of a window: anywhere, and often at bucket boundaries of the coarser tiers.
EDGES = st.one_of(
    st.integers(START - 100, NOON + 100),
    st.sampled_from([START - 3600, START, START + 3600, START + 7200, NOON - 120, NOON - 60, NOON, NOON + 3600]),
)


class ProcessKilledError(Exception):
    """Simulated kill of the process."""


def crash(one: Site, statement: int) -> None:
    left = [statement]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ProcessKilledError

    event.listen(one.store.engine, "before_cursor_execute", count)
    try:
        one.store.maintain()
    except ProcessKilledError:
        pass
    finally:
        event.remove(one.store.engine, "before_cursor_execute", count)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS)
def test_a_tier_equals_its_recomputation_from_the_finest(open_site: OpenSite, events: list[Any]) -> None:
    one = open_site()
    one.clock.now = START + 600
    for kind, *arguments in events:
        if kind == "write":
            one.write(arguments[0], scale=arguments[1])
            one.store.write([Batch(uuid.uuid4().hex, attribute_points(arguments[0]))])
        elif kind == "maintain":
            one.clock.now += arguments[0]
            one.store.maintain()
        elif kind == "crash":
            one.clock.now += 60
            crash(one, arguments[0])
        else:
            one.reopen()

    check_tiers(one)


@settings(max_examples=8, deadline=None)
@given(
    batches=st.lists(REQUESTS, min_size=1, max_size=4),
    edges=st.tuples(EDGES, EDGES),
    advance=st.integers(0, 7200),
)
def test_any_window_is_one_histogram_of_its_samples(
    open_site: OpenSite, batches: list[list[Request]], edges: tuple[int, int], advance: int
) -> None:
    one = open_site()
    for batch in batches:
        one.write(batch)
        one.clock.now += advance
        one.store.maintain()
    start, end = sorted(edges)
    expected = Histogram()
    for request in (request for batch in batches for request in batch):
        if start <= request.at - request.at % 10 < end:
            expected.record(request.seconds)
    found = one.store.read.latency(one.between(start, end))

    assert (found.buckets, found.zero) == (expected.buckets, expected.zero)
    assert found.sum == pytest.approx(expected.sum)


def test_a_long_silence_is_skipped(site: Site) -> None:
    site.write([Request({"forward": 1}, NOON - 60)])
    site.store.maintain()
    site.clock.now += 100 * 86_400
    site.write([Request({"forward": 1}, int(site.clock.now))])
    statements: list[str] = []
    event.listen(site.store.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    site.store.maintain()

    assert len(statements) < 100 * len(schema.TIERS)
    assert all(site.clock.now - tier.watermark < tier.seconds + 3600 for tier in known(site)[1:])


def test_counts_beyond_64_bits_do_not_overflow(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 10**6}, NOON - 600, Series("bank"))])
    lie = Histogram(zero=2**61, sum=1e18)
    lie.buckets.update({0: 2**60, 40: 2**60 - 1})
    shop = store.Series("shop")
    lies = [Point(shop, names.REQUEST_DURATION, "forward", at, lie) for at in (NOON - 600, NOON - 4200)]
    for number in range(4):
        sqlite.store.write([Batch(f"lie {number}", lies * 2)])
    sqlite.clock.now += 7200
    sqlite.store.maintain()
    shop_id = max(row.service_id for row in rows(sqlite, 10))

    for tier in (10, 60, 3600):
        found = [row for row in rows(sqlite, tier) if row.service_id == shop_id]
        assert found
        assert all(2**60 < row.count <= 2**62 and histogram_of(row).count == row.count for row in found)
    assert sqlite.store.read.latency(sqlite.between(START, NOON, service="bank")).count == 1
    with pytest.raises(StoreError, match="add up to more than"):
        sqlite.store.read.latency(sqlite.between(START, NOON))
