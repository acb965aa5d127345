"""Closed buckets are read once, until late data or a deletion changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from sqlalchemy import event

from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

DAY = 86_400
SERIES = Series("shop", "1")


def fill(one: Site) -> Site:
    for hours in range(-20 * 24, 15, 24):
        one.clock.now = NOON + 3600 * hours
        at = int(one.clock.now) - 60
        one.write([Request({"forward": 1_000_000}, at, SERIES), Request({"queue": 5_000_000}, at, Series("bank"))])
    one.clock.now = NOON + 14 * 3600
    one.store.maintain()
    return one


def count(one: Site) -> int:
    now = int(one.clock.now)
    return one.store.read.latency(one.between(now - 20 * DAY, now + 10, service="shop")).count


def reads_of_days(one: Site, query: Callable[[], object]) -> int:
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(one.store.engine, "before_cursor_execute", note)
    query()
    event.remove(one.store.engine, "before_cursor_execute", note)
    return sum("histogram FROM points WHERE tier = 24" in statement for statement in statements)


def test_new_data_do_not_void_closed_days(open_sqlite: OpenSite) -> None:
    one = fill(open_sqlite())
    before = count(one)

    def look() -> int:
        one.clock.now += 10
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - 1, SERIES)])
        return count(one)

    assert reads_of_days(one, look) == 0
    assert look() == before + 2


def test_late_and_deleted_data_are_in_the_next_result(open_site: OpenSite) -> None:
    one = fill(open_site())
    before = count(one)
    one.write([Request({"forward": 1_000_000}, int(one.clock.now) - 3 * 3600, SERIES)])

    assert count(one) == before + 1 > 1
    one.store.forget(["shop"])
    assert count(one) == 0


def test_the_closed_days_of_all_services_answer_for_each(open_sqlite: OpenSite) -> None:
    one = fill(open_sqlite())
    now = int(one.clock.now)
    window = one.between(now - 20 * DAY, now + 10, service="shop")
    fresh = one.store.read.breakdown(window, (0.5, 0.99))
    one.reopen()
    one.store.read.fleet(window.start, window.end, (0.5,))
    read = one.store.read
    results: list[Any] = []

    assert reads_of_days(one, lambda: results.append(read.breakdown(window, (0.5, 0.99)))) == 0
    assert reads_of_days(one, lambda: results.append(read.latency(window).count)) == 0
    pd.testing.assert_frame_equal(results[0], fresh)
    assert results[1] == fresh.attrs["requests"]
