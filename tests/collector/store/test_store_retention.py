"""Forgetting: what is past its time goes, what is left still answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from raw_requests import NOON, NS, Request, Series, Site
from sqlalchemy import func, select

from stagelens.collector.store import Batch, KeptTrace, Retention, schema

SHORT = Retention(seconds_10=timedelta(hours=2), minutes=timedelta(hours=6), hours=timedelta(days=2))


def rows(one: Site, tier: int) -> int:
    """How many rows *tier* has."""
    with one.store.engine.connect() as connection:
        return connection.execute(select(func.count()).where(schema.points.c.tier == tier)).scalar_one()


def trace(number: int, at: int, service: str = "shop") -> KeptTrace:
    """A kept trace."""
    return KeptTrace(f"{number:032x}", f"{number:016x}", Series(service), at * NS, 5, "slow", "forward", {"forward": 5})


def test_every_tier_is_kept_for_its_own_time(site: Callable[..., Site]) -> None:
    """Old requests are still counted from coarser tiers after the finer rows are gone, until the last tier forgets them."""
    one = site(retention=SHORT)
    one.write([Request({"forward": 1_000_000}, NOON - 30)] * 5)
    counts: list[tuple[int, int, int, int]] = []
    for hours in (0, 3, 8, 60):
        one.clock.now = NOON + 3600 * hours
        one.store.maintain()
        total = one.store.read.latency(one.between(NOON - 7200, NOON + 90 * 3600)).count
        counts.append((total, rows(one, 10) > 0, rows(one, 60) > 0, rows(one, 3600) > 0))

    assert counts == [
        (5, True, False, False),
        (5, False, True, True),
        (5, False, False, True),
        (0, False, False, False),
    ]


@settings(max_examples=20, deadline=None)
@given(
    ages=st.lists(st.integers(0, 30 * 3600), min_size=1, max_size=12),
    jumps=st.lists(st.integers(0, 20_000), max_size=5),
)
def test_nothing_is_lost_or_doubled_at_the_seams(site: Callable[..., Site], ages: list[int], jumps: list[int]) -> None:
    """Whatever was forgotten from finer tiers, and however late it came, a window over all counts every request once."""
    one = site(retention=SHORT)
    for age, jump in zip(ages, [*jumps, *[0] * len(ages)], strict=False):
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - age)])
        one.clock.now += jump
        one.store.maintain()

    assert one.store.read.latency(one.between(NOON - 40 * 3600, NOON + 40 * 3600)).count == len(ages)


def test_nothing_is_forgotten_before_it_is_rolled_up(site: Callable[..., Site]) -> None:
    """A tier that is to be kept for less time than its roll-up takes is kept until then."""
    one = site(retention=Retention(seconds_10=timedelta(seconds=10), minutes=timedelta(minutes=1)))
    for _ in range(8):
        one.clock.now += 550
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - 15)] * 3)
        one.store.maintain()

    assert one.store.read.latency(one.around()).count == 24


def test_what_comes_too_late_for_a_tier_is_not_written_to_it(site: Callable[..., Site]) -> None:
    """A row older than a tier keeps goes to the coarser ones only."""
    one = site(retention=SHORT)
    one.store.maintain()
    one.write([Request({"forward": 1_000_000}, NOON - 3 * 3600)])

    assert (rows(one, 10), rows(one, 60), rows(one, 3600)) == (0, 3, 3)


def test_steps_are_as_wide_as_what_is_left(site: Callable[..., Site]) -> None:
    """Where only hours are kept, a chart asked for by the minute has a point an hour, and says so."""
    one = site(retention=SHORT)
    one.write([Request({"forward": 1_000_000}, NOON - 60 * step) for step in range(1, 120)])
    one.clock.now += 8 * 3600
    one.store.maintain()
    frame = one.store.read.quantiles_over_time(one.between(NOON - 7200, NOON), [0.5], timedelta(minutes=1))

    assert frame["n"].tolist() == [59, 60]
    assert frame.attrs["step_seconds"] == 3600


def test_names_of_batches_are_kept_a_day(site: Callable[..., Site]) -> None:
    """A retry within a day is recognised; the name is forgotten after it."""
    one = site()
    one.store.write([Batch("a")])
    one.clock.now += 86_000
    one.store.maintain()
    within = one.store.write([Batch("a")])
    one.clock.now += 1000
    one.store.maintain()

    assert (within, one.store.write([Batch("a")])) == ([False], [True])


def test_traces_are_kept_by_time_and_by_number(site: Callable[..., Site]) -> None:
    """Those past their time go, and of a service that has too many the oldest."""
    one = site(retention=Retention(traces_per_service=3))
    many = [trace(number, NOON - number) for number in range(1, 10)]
    one.store.write(
        [Batch("a", traces=[*many, trace(100, NOON - 8 * 86_400, "old"), trace(101, NOON - 86_400, "bank")])]
    )
    one.store.maintain()
    found = one.store.read.exemplars(one.between(NOON - 30 * 86_400, NOON + 60), order="time")

    assert found["trace_id"].tolist() == [f"{number:032x}" for number in (1, 2, 3, 101)]


def test_a_series_that_comes_back_is_counted_again(site: Callable[..., Site]) -> None:
    """A series without any data left is forgotten, and frees its place; when it returns it is a new one."""
    one = site(retention=SHORT)
    one.write([Request({"forward": 1})])
    one.clock.now += 4 * 86_400
    one.store.maintain()
    with one.store.engine.connect() as connection:
        left = connection.execute(select(func.count()).select_from(schema.series)).scalar_one()
    one.write([Request({"forward": 1}, int(one.clock.now))] * 2)

    assert left == 0
    assert one.store.read.latency(one.around(service="shop")).count == 2
