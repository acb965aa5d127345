"""Size budget: the store stays within it, and reports the data that it deleted early."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from stagelens.core.errors import StoreError
from stagelens.store import Batch, RetainedTrace, Retention, schema
from tests.store.store_contents import FOREVER, contents, counted, known, ledger, number, requests
from tests.support.raw_requests import NOON, OpenSite, PointAggregator, Request, Series, Site, retained

MB = 1 << 20
# Size of the write-ahead log that one writer and one reader cause before it is reused: twice wal_autocheckpoint.
WAL_BYTES = 2 * 2000 * 4096


def half_hour(one: Site, n_routes: int = 2) -> Batch:
    now = int(one.clock.now)
    made = [
        Request({"forward": 1_000_000 * (1 + (at * 7 + n) % 200)}, at, Series("shop", route=f"/{n}"))
        for at in range(now - 1800, now, 10)
        for n in range(n_routes)
    ]
    return Batch(f"at-{now}", PointAggregator().points(made))


def traces(one: Site, random: Random, step: int, count: int) -> list[RetainedTrace]:
    request = Request({"forward": 5}, int(one.clock.now), Series("shop"))
    return [
        replace(retained(request, step * 1000 + n), spans=[{"name": random.randbytes(600).hex()}]) for n in range(count)
    ]


def file_bytes(one: Site) -> tuple[int, int]:
    path = Path(one.url.removeprefix("sqlite:///"))
    log = Path(f"{path}-wal")
    return path.stat().st_size, log.stat().st_size if log.exists() else 0


def half_hours(one: Site, steps: range) -> Iterator[int]:
    """Write and maintain after each half an hour, and yield its number."""
    for step in steps:
        one.clock.now = NOON + 1800 * step
        one.store.write([half_hour(one)])
        one.store.maintain()
        yield step


def test_a_file_never_outgrows_its_budget(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(budget_bytes=MB))
    sizes = [file_bytes(one) for _ in half_hours(one, range(40))]
    state, tiers = one.store.read.state(), known(one)

    assert max(size for size, _ in sizes) <= MB
    assert max(log for _, log in sizes) <= WAL_BYTES
    assert requests(one) == 40 * 180 * 2
    assert state.size_bytes <= MB == state.budget_bytes
    # Coarser tiers are deleted after the finer.
    assert state.shortened == {tier.seconds: datetime.fromtimestamp(tier.kept_from, UTC) for tier in tiers[:2]}
    assert all(contents(one, tier.seconds, tier.seconds) for tier in tiers)
    assert ledger(one) == counted(one)


def test_an_exceeded_budget_recovers_at_the_next_maintenance(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(budget_bytes=2 * MB))
    refused, step = "", 0
    while not refused:
        one.clock.now = NOON + 1800 * step
        step += 1
        try:
            one.store.write([half_hour(one)])
        except StoreError as error:
            refused = str(error)
    before = requests(one)
    one.store.maintain()
    counted_now = one.store.write([half_hour(one)])
    size, _ = file_bytes(one)
    one.clock.now += 1800
    one.store.maintain()

    assert re.search("the file has reached STAGELENS_STORAGE_BUDGET; free space, or raise the budget", refused)
    assert before == (step - 1) * 180 * 2
    assert counted_now == [True]
    assert size <= 2 * MB
    assert one.store.write([half_hour(one)]) == [True]
    assert ledger(one) == counted(one)


def test_a_budget_smaller_than_an_hour_recovers_after_the_hour(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(budget_bytes=MB))
    for step in range(2):
        one.store.write([Batch(f"{step}", half_hour(one, 8).points)])
    with pytest.raises(StoreError, match="STAGELENS_STORAGE_BUDGET"):
        one.store.write([Batch("large", half_hour(one, 160).points)])
    one.clock.now += 2 * 3600
    one.store.maintain()
    written = one.store.write([Batch("after", [])])

    assert written == [True]
    one.write([Request({"forward": 1}, int(one.clock.now))])
    assert ledger(one) == counted(one)


def test_a_lowered_budget_applies_from_then_on(sqlite: Site) -> None:
    for step in range(20):
        sqlite.clock.now = NOON + 1800 * step
        sqlite.store.write([half_hour(sqlite)])
    sqlite.store.maintain()
    # Closing moves the write-ahead log into the file.
    sqlite.close()
    before, _ = file_bytes(sqlite)
    sqlite.options["retention"] = Retention(budget_bytes=before // 2)
    sqlite.reopen()
    sqlite.store.maintain()
    steps = [*half_hours(sqlite, range(20, 24))]

    assert file_bytes(sqlite)[0] <= before
    assert sqlite.store.read.state().size_bytes <= before // 2
    assert requests(sqlite) == (20 + len(steps)) * 180 * 2


def test_traces_are_deleted_before_the_last_tier(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(budget_bytes=2 * MB))
    random = Random(7)
    one.store.write([half_hour(one)])
    for step in range(40):
        one.clock.now += 60
        one.store.write([Batch(f"t{step}", traces=traces(one, random, step, 100))])
        one.store.maintain()
    newest = one.store.read.exemplars(one.between(0, FOREVER), order="time")

    assert 0 < number(one, schema.traces) < 4000
    assert newest["trace_id"][0] == f"{39000:032x}"
    assert requests(one) == 180 * 2
    assert file_bytes(one)[0] <= 2 * MB


def test_a_server_deletes_by_size(open_postgresql: OpenSite) -> None:
    one = open_postgresql(retention=Retention(budget_bytes=8 * MB))
    steps = [*half_hours(one, range(36))]
    state = one.store.read.state()

    assert state.size_bytes <= 8 * MB
    assert 10 in state.shortened
    assert 3600 not in state.shortened
    assert requests(one) == len(steps) * 180 * 2
    assert ledger(one) == counted(one)


def test_without_a_budget_no_retention_is_shortened(open_sql: OpenSite) -> None:
    one = open_sql(retention=Retention(seconds_10=timedelta(hours=1)))
    for hours in range(6):
        one.clock.now = NOON + 3600 * hours
        one.store.write([half_hour(one, 1)])
        one.store.maintain()
    one.options["retention"] = Retention()
    one.reopen()

    assert known(one)[0].kept_from > NOON
    assert one.store.read.state().shortened == {}


def test_traces_on_a_server_are_deleted_only_as_needed(open_postgresql: OpenSite) -> None:
    one = open_postgresql(retention=Retention(budget_bytes=6 * MB))
    random = Random(7)
    one.store.write([half_hour(one)])
    for step in range(6):
        one.clock.now += 60
        one.store.write([Batch(f"t{step}", traces=traces(one, random, step, 1000))])
        one.store.maintain()

    assert 1000 < number(one, schema.traces) < 6000
    assert one.store.read.state().size_bytes <= 6 * MB
    assert requests(one) == 180 * 2
