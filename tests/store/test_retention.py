"""Retention: expired data are deleted, and remaining data give correct results."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.store import Batch, Indicator, RetainedTrace, Retention, schema
from tests.store.store_contents import contents, number, requests
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site, retained

SHORT = Retention(seconds_10=timedelta(hours=2), minutes=timedelta(hours=6), hours=timedelta(days=2))


TICK = Series("tick")
HALF_DAY = 43_200


def pass_time(one: Site, seconds: int) -> None:
    end = one.clock.now + seconds
    for left in range(seconds // HALF_DAY, -1, -1):
        one.clock.now = end - left * HALF_DAY
        one.write([Request({"forward": 1}, int(one.clock.now) - 60, TICK)])
    one.store.maintain()


def has(one: Site, tier: int, before: int = NOON) -> bool:
    return bool(contents(one, tier, tier, before))


def trace(number: int, at: int, service: str = "shop") -> RetainedTrace:
    return retained(Request({"forward": 5}, at, Series(service)), number)


def test_every_tier_has_its_retention(open_site: OpenSite) -> None:
    one = open_site(retention=SHORT)
    one.write([Request({"forward": 1_000_000}, NOON - 30)] * 5)
    counts: list[tuple[int, bool, bool, bool]] = []
    for hours in (0, 3, 5, 52):
        pass_time(one, 3600 * hours)
        total = one.store.read.latency(one.between(NOON - 7200, NOON + 90 * 3600, service="shop")).count
        counts.append((total, has(one, 10), has(one, 60), has(one, 3600)))

    assert counts == [
        (5, True, False, False),
        (5, False, True, True),
        (5, False, False, True),
        (0, False, False, False),
    ]


@settings(max_examples=6, deadline=None)
@given(
    ages=st.lists(st.integers(0, 30 * 3600), min_size=1, max_size=12),
    jumps=st.lists(st.integers(0, 20_000), max_size=5),
)
def test_tier_boundaries_neither_lose_nor_duplicate_requests(
    open_site: OpenSite, ages: list[int], jumps: list[int]
) -> None:
    one = open_site(retention=SHORT)
    for age, jump in zip(ages, [*jumps, *[0] * len(ages)], strict=False):
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - age)])
        one.clock.now += jump
        one.store.maintain()

    assert one.store.read.latency(one.between(NOON - 40 * 3600, NOON + 40 * 3600)).count == len(ages)


def test_nothing_expires_before_its_rollup(open_site: OpenSite) -> None:
    one = open_site(retention=Retention(seconds_10=timedelta(seconds=10), minutes=timedelta(minutes=1)))
    for _ in range(8):
        one.clock.now += 550
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - 15)] * 3)
        one.store.maintain()

    assert one.store.read.latency(one.around()).count == 24


def test_data_too_late_for_a_tier_are_not_written_to_it(open_site: OpenSite) -> None:
    one = open_site(retention=SHORT)
    one.store.maintain()
    one.write([Request({"forward": 1_000_000}, NOON - 3 * 3600)])

    assert [has(one, tier) for tier in (10, 60, 3600)] == [False, True, True]


def test_steps_are_as_wide_as_the_remaining_tier(open_sql: OpenSite) -> None:
    one = open_sql(retention=SHORT)
    one.write([Request({"forward": 1_000_000}, NOON - 60 * step) for step in range(1, 120)])
    pass_time(one, 8 * 3600)
    read, hour, minute = one.store.read, one.between(NOON - 3600, NOON), timedelta(minutes=1)
    frames = [
        read.breakdown_over_time(hour, None, minute),
        read.quantiles_over_time(hour, [0.5], minute),
        read.heat(hour, minute),
        read.tally_series(hour, Indicator("latency", 1.0), minute),
        read.bad_over_time(hour, 1.0, minute),
        read.fleet_over_time(hour.start, hour.end, minute),
    ]

    assert [frame.attrs["step_seconds"] for frame in frames] == [3600] * 6
    assert [len(frame) for frame in frames] == [1] * 6
    # Where minutes are deleted, steps are hours.
    wider = read.quantiles_over_time(one.between(NOON - 7200, NOON), [0.5], minute)
    assert (wider["n"].tolist(), wider.attrs["step_seconds"]) == ([59, 60], 3600)


def test_batch_names_are_retained_for_a_day(site: Site) -> None:
    site.store.write([Batch("a")])
    site.clock.now += 86_000
    site.store.maintain()
    within = site.store.write([Batch("a")])
    site.clock.now += 1000
    site.store.maintain()

    assert (within, site.store.write([Batch("a")])) == ([False], [True])


def test_traces_expire_by_age_and_number(open_site: OpenSite) -> None:
    one = open_site(retention=Retention(traces_per_service=3))
    many = [trace(number, NOON - number) for number in range(1, 10)]
    one.store.write(
        [Batch("a", traces=[*many, trace(100, NOON - 8 * 86_400, "old"), trace(101, NOON - 86_400, "bank")])]
    )
    one.store.maintain()
    exemplars = one.store.read.exemplars(one.between(NOON - 30 * 86_400, NOON + 60), order="time")

    assert exemplars["trace_id"].tolist() == [f"{number:032x}" for number in (1, 2, 3, 101)]


def test_a_returning_series_is_a_new_series(open_site: OpenSite) -> None:
    one = open_site(retention=SHORT)
    other = one.another()
    one.write([Request({"forward": 1})])
    other.write([Request({"forward": 1})])
    pass_time(one, 4 * 86_400)
    left = number(one, schema.series)
    for collector in (other, one):
        collector.write([Request({"forward": 1}, int(one.clock.now))] * 2)
    pass_time(one, 3 * 3600)

    assert left == 1
    assert one.store.read.latency(one.around(service="shop")).count == 4
    assert one.store.read.latency(one.around(service="shop", route="")).count == 4
    assert number(one, schema.series) == 2


def test_nothing_expires_without_new_data(open_site: OpenSite) -> None:
    one = open_site(retention=SHORT)
    one.write([Request({"forward": 1})])
    one.clock.now += 365 * 86_400
    one.store.maintain()
    before = requests(one)
    pass_time(one, 60)
    early = one.store.read.latency(one.between(0, int(one.clock.now), service="shop")).count
    pass_time(one, 2 * HALF_DAY + 3600)
    late = one.store.read.latency(one.between(0, int(one.clock.now), service="shop")).count

    assert (before, early, late) == (1, 1, 0)
