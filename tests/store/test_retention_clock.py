"""Clock changes: no data are lost, duplicated or stored at a wrong time.

Random sequences of changes run on every engine, single changes on SQLite.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.store_contents import check_tiers, contents, known, requests
from tests.support.raw_requests import NOON, Clock, OpenSite, Request, Site

YEAR = 365 * 86_400


def live(one: Site, start: int, steps: int, ahead: int = 0) -> None:
    for at in range(start, start + 60 * steps, 60):
        one.clock.now = max(at + ahead, 0)
        one.write([Request({"forward": 1_000_000}, at)])
        one.store.maintain()


def by_minute(one: Site, start: int, steps: int) -> list[int]:
    minutes = range(start, start + 60 * steps, 60)
    return [one.store.read.latency(one.between(at - at % 60, at - at % 60 + 60)).count for at in minutes]


@pytest.mark.parametrize("jump", [-NOON, -10 * YEAR, -86_400, -3600, -60, 60, 3600, 86_400, 2 * YEAR])
def test_a_clock_that_jumps_loses_nothing(sqlite: Site, jump: int) -> None:
    live(sqlite, NOON - 600, 10)
    live(sqlite, NOON, 10, jump)
    live(sqlite, NOON + 600, 10)
    sqlite.clock.now = NOON + 6 * 3600
    sqlite.store.maintain()

    assert by_minute(sqlite, NOON - 600, 30) == [1] * 30
    assert requests(sqlite) == 30
    assert contents(sqlite, 3600, 3600) == contents(sqlite, 10, 3600)


@pytest.mark.parametrize("jump", [86_400, 30 * 86_400, YEAR, 10 * YEAR])
def test_a_host_whose_clock_was_ahead_deletes_nothing(sqlite: Site, jump: int) -> None:
    live(sqlite, NOON - 600, 10)
    live(sqlite, NOON + jump, 10)
    live(sqlite, NOON, 10)

    assert by_minute(sqlite, NOON - 600, 20) == [1] * 20
    assert by_minute(sqlite, NOON + jump, 10) == [1] * 10
    assert requests(sqlite) == 30


def test_data_expire_a_day_after_a_gap(sqlite: Site) -> None:
    live(sqlite, NOON, 10)
    later = NOON + 3 * YEAR
    live(sqlite, later, 2)
    before = by_minute(sqlite, NOON, 10)
    for hour in range(6, 60, 6):
        live(sqlite, later + hour * 3600, 1)

    assert before == [1] * 10
    assert by_minute(sqlite, NOON, 10) == [0] * 10
    assert by_minute(sqlite, later, 2) == [1] * 2


def test_a_restart_without_a_clock_continues(sqlite: Site) -> None:
    live(sqlite, NOON - 60, 1)
    sqlite.reopen()
    live(sqlite, NOON, 70, -NOON)

    assert by_minute(sqlite, NOON - 60, 71) == [1] * 71
    assert {tier.seconds: tier.watermark for tier in known(sqlite)}[3600] == NOON + 3600


def test_without_a_clock_data_after_a_gap_count_at_the_last_time(site: Site) -> None:
    live(site, NOON - 3600, 1)
    live(site, NOON, 5, -NOON)
    live(site, NOON + 300, 5)

    assert by_minute(site, NOON - 3600, 1) == [6]
    assert by_minute(site, NOON + 300, 5) == [1] * 5


def test_two_collectors_with_different_clocks_lose_nothing(sql: Site) -> None:
    other = sql.another(Clock())
    for number, ahead in enumerate((3600, 86_400, 3 * YEAR)):
        start = NOON + 1200 * number
        live(sql, start, 10)
        live(other, start + 600, 10, ahead)

    assert by_minute(sql, NOON, 60) == [1] * 60
    assert requests(sql) == 60


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
def test_any_clock_changes_leave_tiers_consistent(open_site: OpenSite, steps: list[tuple[int, list[int]]]) -> None:
    one = open_site()
    now, sent = NOON, 0
    # The store has earlier data, because with an empty store in 1970 the correct time is unknown.
    one.write([Request({"forward": 1_000_000}, now)])
    for jump, ages in steps:
        now += 600
        one.clock.now = now + jump
        one.write([Request({"forward": 1_000_000}, now)])
        one.write([Request({"forward": 1_000_000}, now - age) for age in ages])
        one.store.maintain()
        sent += 1 + len(ages)

    assert requests(one) == sent + 1
    check_tiers(one)
