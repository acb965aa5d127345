"""Writes: each batch is stored once or not at all."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from stagelens.core.errors import StoreError
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point
from tests.support.raw_requests import NOON, NS, OpenSite, PointAggregator, Request, Series, Site, retained


def batch(name: str, n: int = 1, at: int = NOON - 60) -> Batch:
    return Batch(name, PointAggregator().points([Request({"forward": 1_000_000}, at)] * n))


def test_a_batch_counts_once(site: Site) -> None:
    first = site.store.write([batch("a", 3), batch("b", 5), batch("a", 3)])
    again = site.store.write([batch("b", 5), batch("c", 7)])
    site.reopen()
    after = site.store.write([batch("c", 7)])

    assert (first, again, after) == ([True, True, False], [False, True], [False])
    assert site.store.read.latency(site.around()).count == 15


def test_the_given_histograms_are_not_modified(site: Site) -> None:
    histograms = [Histogram(), Histogram(scale=2), Histogram(scale=7)]
    for histogram in histograms:
        histogram.record(0.1)
    series = Series("shop")
    site.store.write([Batch("a", [Point(series, REQUEST_DURATION, "forward", NOON, each) for each in histograms])])

    assert [(each.scale, each.count) for each in histograms] == [(5, 1), (2, 1), (7, 1)]
    assert site.store.read.latency(site.around()).count == 3


@pytest.mark.parametrize(
    ("skew", "expected"), [(-3600, -3600), (30, 30), (3600, 0), (10**9, 0), (-(10**9), 0), (-NOON, 0)]
)
def test_implausible_times_count_at_arrival(site: Site, skew: int, expected: int) -> None:
    site.write([Request({"forward": 1_000_000}, NOON + skew)])
    at = NOON + expected
    trace = retained(Request({"forward": 5}, NOON + skew), 1)
    site.store.write([Batch("t", traces=[trace])])
    stored = site.store.read.trace(trace.trace_id)

    assert site.store.read.latency(site.between(at - at % 10, at + 1)).count == 1
    assert stored is not None
    assert stored.started_ns == at * NS


def test_a_full_disk_loses_no_acknowledged_data(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1_000_000})] * 10)
    large = Batch(
        "large",
        PointAggregator().points(
            [Request({"forward": step * 1_000_000}, NOON - step, Series("new")) for step in range(1, 3000)]
        ),
    )
    pages = {"limit": 24}

    def limit(connection: sqlite3.Connection, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages['limit']}").close()

    event.listen(sqlite.store.engine, "checkout", limit)
    with pytest.raises(
        StoreError,
        match=r"cannot write to .*stagelens\.db: the disk is full, or the file has reached STAGELENS_STORAGE_BUDGET; free",
    ):
        sqlite.store.write([large])
    while_full = sqlite.store.read.latency(sqlite.around()).count
    pages["limit"] = 100_000
    counted = sqlite.store.write([large])

    assert (while_full, counted) == (10, [True])
    assert sqlite.store.read.latency(sqlite.around()).count == 10 + 2999
    assert sqlite.store.read.latency(sqlite.around(service="new")).count == 2999


def test_writes_resume_after_a_read_only_file(sqlite: Site) -> None:
    read_only = {"on": 1}

    def forbid(connection: sqlite3.Connection, *_: Any) -> None:
        connection.execute(f"PRAGMA query_only = {read_only['on']}").close()

    event.listen(sqlite.store.engine, "checkout", forbid)
    with pytest.raises(StoreError, match="it is read-only"):
        sqlite.store.write([batch("a")])
    with pytest.raises(StoreError, match="it is read-only"):
        sqlite.store.maintain()
    read_only["on"] = 0

    assert sqlite.store.write([batch("a")]) == [True]
    assert sqlite.store.read.services(*_day(sqlite)).service.tolist() == ["shop"]


def _day(one: Site) -> tuple[datetime, datetime]:
    now = datetime.fromtimestamp(one.clock.now, UTC)
    return now - timedelta(days=1), now + timedelta(minutes=1)


def test_a_lock_of_another_writer_is_an_error_that_names_it(sqlite: Site) -> None:
    event.listen(sqlite.store.engine, "checkout", lambda c, *_: c.execute("PRAGMA busy_timeout = 20").close())
    other = sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process is writing to it"):
        sqlite.store.write([batch("a")])
    other.execute("ROLLBACK")
    other.close()

    assert sqlite.store.write([batch("a")]) == [True]


def fail_after_writing(one: Site) -> None:
    with one.store.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO mine VALUES (1)")
        _ = 1 // 0


def test_a_transaction_of_the_caller_is_atomic(site: Site) -> None:
    with site.store.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (x INTEGER)")
    with pytest.raises(ZeroDivisionError):
        fail_after_writing(site)
    with site.store.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM mine").scalar()

    assert rows == 0


def test_concurrent_writers_and_readers_are_consistent(site: Site) -> None:
    done = threading.Event()

    def send(worker: int) -> list[bool]:
        return [each for step in range(15) for each in site.store.write([batch(f"{worker % 3}-{step}", 4)])]

    def read() -> set[int]:
        seen: set[int] = set()
        while True:
            # At least once, even if this thread runs late.
            last = done.is_set()
            seen.add(site.store.read.latency(site.around()).count % 4)
            site.store.maintain()
            if last:
                return seen

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        accepted = [result for results in pool.map(send, range(6)) for result in results]
        done.set()
        partial = [reader.result() for reader in readers]

    assert sum(accepted) == 3 * 15
    assert site.store.read.latency(site.around()).count == 3 * 15 * 4
    assert partial == [{0}, {0}]


def test_the_revision_grows_with_every_write_of_a_service(open_site: OpenSite) -> None:
    one, shop, bank = open_site(), Series("shop"), Series("bank")
    batches = [
        Batch("points", PointAggregator().points([Request({"forward": 1}, series=shop)])),
        *[Batch("trace", traces=[retained(Request({"forward": 5}, NOON, bank), 1)])] * 2,
    ]
    read, seen = one.store.read, list[tuple[int, ...]]()
    for batch in batches:
        one.store.write([batch])
        seen.append((read.revision(), read.revision("shop"), read.revision("bank")))
    one.store.maintain()

    assert (read.revision(), read.revision("shop"), read.revision("bank")) == seen[-1]
    assert seen == [(1, 1, 0), (2, 1, 2), (2, 1, 2)]


def test_the_state_reports_the_freshness_of_the_store(site: Site) -> None:
    empty = site.store.read.state()
    site.store.write([Batch("a", batch("").points, dropped=2, instance="x"), Batch("b", instance="y", dropped=3)])
    site.clock.now += 50
    site.store.write([Batch("c", instance="x"), Batch("d", instance="z"), Batch("of no agent", batch("").points)])
    full = site.store.read.state()
    site.clock.now += 61
    silent = site.store.read.state()

    assert (empty.last_received, empty.instances, empty.dropped, empty.oldest) == (None, 0, 0, None)
    assert (full.instances, full.dropped) == (3, 5)
    assert full.last_received == datetime.fromtimestamp(NOON + 50, UTC)
    assert full.oldest == datetime.fromtimestamp(NOON - 60, UTC)
    assert full.size_bytes >= empty.size_bytes > 0
    assert silent.instances == 0
