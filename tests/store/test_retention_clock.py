"""Clocks that jump: nothing is lost, doubled or put where it does not belong.

Random histories of jumps run on every engine, single jumps on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.store_contents import added_totals, contents, counted, known, ledger, requests, totals
from tests.support.raw_requests import NOON, Clock, Request, Site

YEAR = 365 * 86_400


def live(one: Site, start: int, steps: int, ahead: int = 0) -> None:
    """Write a request every minute, as agents whose clocks are right do, and maintain; the store's clock is *ahead*."""
    for at in range(start, start + 60 * steps, 60):
        one.clock.now = max(at + ahead, 0)
        one.write([Request({"forward": 1_000_000}, at)])
        one.store.maintain()


def by_minute(one: Site, start: int, steps: int) -> list[int]:
    """How many requests each minute from *start* on has."""
    minutes = range(start, start + 60 * steps, 60)
    return [one.store.read.latency(one.between(at - at % 60, at - at % 60 + 60)).count for at in minutes]


@pytest.mark.parametrize("jump", [-NOON, -10 * YEAR, -86_400, -3600, -60, 60, 3600, 86_400, 2 * YEAR])
def test_a_clock_that_jumps_loses_nothing(sqlite_site: Callable[..., Site], jump: int) -> None:
    """The store's own clock jumps by so many seconds, and back: what agents say in between is where they say it was."""
    one = sqlite_site()
    live(one, NOON - 600, 10)
    live(one, NOON, 10, jump)
    live(one, NOON + 600, 10)
    one.clock.now = NOON + 6 * 3600
    one.store.maintain()

    assert by_minute(one, NOON - 600, 30) == [1] * 30
    assert requests(one) == 30
    assert contents(one, 3600, 3600) == contents(one, 10, 3600)


def test_after_a_restart_without_a_clock_everything_goes_on(sqlite_site: Callable[..., Site]) -> None:
    """A machine that comes up in 1970 counts, rolls up and recognises what it has counted."""
    one = sqlite_site()
    live(one, NOON - 60, 1)
    one.reopen()
    live(one, NOON, 70, -NOON)

    assert by_minute(one, NOON - 60, 71) == [1] * 71
    assert known(one)[-1].watermark == NOON + 3600


def test_without_a_clock_what_comes_after_a_gap_counts_where_time_stands(site: Callable[..., Site]) -> None:
    """Nobody can tell how long the machine was off: nothing is lost, and what comes with a right clock is right."""
    one = site()
    live(one, NOON - 3600, 1)
    live(one, NOON, 5, -NOON)
    live(one, NOON + 300, 5)

    assert by_minute(one, NOON - 3600, 1) == [6]
    assert by_minute(one, NOON + 300, 5) == [1] * 5


def test_two_collectors_that_disagree_about_the_time_lose_nothing(own_points_site: Callable[..., Site]) -> None:
    """One of them lives an hour, a day, and then years ahead; both maintain."""
    one = own_points_site()
    other = one.another(Clock())
    for number, ahead in enumerate((3600, 86_400, 3 * YEAR)):
        start = NOON + 1200 * number
        live(one, start, 10)
        live(other, start + 600, 10, ahead)

    assert by_minute(one, NOON, 60) == [1] * 60
    assert requests(one) == 60


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([-NOON, -YEAR, -7200, -300, 0, 300, 7200, YEAR]),
            st.lists(st.integers(0, 5400), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_history_of_jumps_breaks_a_tier(site: Callable[..., Site], steps: list[tuple[int, list[int]]]) -> None:
    """However the clock jumps while right agents send, perhaps late: every request once, and tiers, totals and ledger agree."""
    one = site()
    now, sent = NOON, 0
    # The store has been there before: of an empty one that wakes in 1970 nobody can tell what is right.
    one.write([Request({"forward": 1_000_000}, now)])
    for jump, ages in steps:
        now += 600
        one.clock.now = now + jump
        one.write([Request({"forward": 1_000_000}, now)])
        one.write([Request({"forward": 1_000_000}, now - age) for age in ages])
        one.store.maintain()
        sent += 1 + len(ages)

    assert requests(one) == sent + 1
    for tier in known(one)[1:]:
        assert contents(one, tier.seconds, tier.seconds) == contents(one, 10, tier.seconds, tier.watermark)
        assert totals(one, tier.seconds) == added_totals(one, tier.seconds)
    assert ledger(one) == counted(one)
