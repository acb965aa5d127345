"""PostgreSQL: partitions, connection loss, locks and long reads."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import event, text

from stagelens.core.errors import StoreError
from stagelens.store import Batch, RetainedTrace, Retention, Store, schema
from stagelens.store.engines import database
from tests.store.store_contents import contents, counted, ledger, requests
from tests.support.postgresql_server import Server, postgresql
from tests.support.raw_requests import NOON, NS, OpenSite, PointAggregator, Request, Series, Site

pytestmark = pytest.mark.stacks

TICK = Series("tick")


def partitions(one: Site) -> set[str]:
    with database.reading(one.store.engine) as connection:
        return set(
            connection.scalars(
                text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'points'::regclass")
            )
        )


def name_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def replace_database(server: Server, url: str, template: str = "template0") -> None:
    with server.connect() as connection:
        connection.execute(f"DROP DATABASE {name_of(url)} WITH (FORCE)")  # pyright: ignore[reportArgumentType, reportCallIssue]
        connection.execute(f"CREATE DATABASE {name_of(url)} TEMPLATE {template}")  # pyright: ignore[reportArgumentType, reportCallIssue]


def restore_tables(server: Server, url: str, copy: str) -> None:
    words = [f"--host={server.folder}", "--username=stagelens"]
    dump = subprocess.run([server.programs / "pg_dump", *words, copy], check=True, capture_output=True)
    restore = [server.programs / "psql", *words, "--quiet", "--set=ON_ERROR_STOP=1", name_of(url)]
    emptied = b"DROP SCHEMA public CASCADE; CREATE SCHEMA public;\n"
    subprocess.run(restore, input=emptied + dump.stdout, check=True, capture_output=True)


@pytest.fixture
def server(postgresql_server: Server) -> Generator[Server]:
    with postgresql(postgresql_server.programs) as own:
        yield own


def test_partitions_are_created_and_dropped(open_postgresql: OpenSite) -> None:
    one = open_postgresql(retention=Retention(timedelta(hours=6), timedelta(days=2)))
    seen: list[set[str]] = []
    # Data after a gap delete nothing until they have arrived for a day.
    for hours in (0, 12, 24, 96, 116, 136):
        one.clock.now = NOON + 3600 * hours
        one.write([Request({"forward": 1_000_000}, int(one.clock.now) - 600)])
        one.store.maintain()
        seen.append({name.rpartition("_")[0] for name in partitions(one)})
    left = partitions(one)

    assert seen[-1] == {f"points_{schema.tier_code(tier)}" for tier in schema.TIERS}
    assert len([name for name in left if name.startswith("points_10_")]) == 1
    assert f"points_10_{NOON - 6 * 3600}" not in left
    assert requests(one) == 6
    assert ledger(one) == counted(one)


def test_a_partition_in_use_is_dropped_later(open_postgresql: OpenSite) -> None:
    one = open_postgresql(retention=Retention(timedelta(hours=1), timedelta(days=2)))
    one.write([Request({"forward": 1_000_000}, NOON - 60)] * 3)
    one.store.maintain()
    one.clock.now = NOON + 86_400
    one.write([Request({"forward": 1}, int(one.clock.now), TICK)])
    with database.reading(one.store.engine) as connection:
        before = one.store.points.load(connection, 10, NOON - 3600, NOON).rows(10, 0)
        one.store.maintain()
        after = one.store.points.load(connection, 10, NOON - 3600, NOON).rows(10, 0)
        remaining = contents(one, 10, 10, NOON)
    one.store.maintain()

    assert after == before != []
    assert remaining
    assert not contents(one, 10, 10, NOON)
    assert one.store.read.latency(one.between(NOON - 3600, NOON)).count == 3


def test_a_new_partition_does_not_wait_for_readers(postgresql: Site) -> None:
    postgresql.write([Request({"forward": 1_000_000}, NOON - 60)])
    with database.reading(postgresql.store.engine) as connection:
        before = postgresql.store.points.load(connection, 10, 0, NOON + 86_400).rows(10, 0)
        postgresql.clock.now = NOON + 7 * 3600
        postgresql.write([Request({"forward": 1_000_000}, int(postgresql.clock.now))])
        after = postgresql.store.points.load(connection, 10, 0, NOON + 86_400).rows(10, 0)

    assert after == before
    assert requests(postgresql) == 2


def test_a_recovered_server_is_used_again(server: Server) -> None:
    one = Site(server.new_database(), {})
    batch = Batch("again", [])
    one.write([Request({"forward": 1_000_000})])
    server.stop()
    for call in (one.store.maintain, one.store.read.state, lambda: one.store.write([batch])):
        with pytest.raises(StoreError, match="the server cannot be reached; check that it runs"):
            call()
    server.start()
    one.store.maintain()

    assert one.store.write([batch]) == [True]
    one.write([Request({"forward": 1_000_000})])
    assert requests(one) == 2
    one.close()


def test_a_server_failure_during_a_write_counts_it_once(server: Server) -> None:
    one = Site(server.new_database(), {})
    one.write([Request({"forward": 1_000_000})])
    for step in (2, 6, 9, 12):
        left = [step]

        def die(*_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                server.stop()

        event.listen(one.store.engine, "before_cursor_execute", die)
        batch = Batch(
            f"dies-{step}", PointAggregator().points([Request({"forward": 1_000_000}, NOON, Series(f"s{step}"))])
        )
        with pytest.raises(StoreError, match="cannot write to"):
            one.store.write([batch])
        event.remove(one.store.engine, "before_cursor_execute", die)
        server.start()

        assert one.store.write([batch]) == [True]
    assert requests(one) == 5
    assert ledger(one) == counted(one)
    one.close()


def test_a_database_that_was_created_again_counts_nothing_until_a_restart(postgresql_server: Server) -> None:
    url = postgresql_server.new_database()
    one = Site(url, {})
    one.write([Request({"forward": 1_000_000})])
    replace_database(postgresql_server, url)
    for call in (one.store.maintain, one.store.services, lambda: one.store.write([Batch("again", [])])):
        with pytest.raises(StoreError, match="a table is missing, as in a new database; restart Stagelens"):
            call()
    one.reopen()
    one.write([Request({"forward": 1_000_000})])

    assert requests(one) == 1
    one.close()


@pytest.mark.parametrize("in_place", [False, True])
def test_ids_of_a_replaced_database_are_not_used(postgresql_server: Server, in_place: bool) -> None:
    url = postgresql_server.new_database()
    one = Site(url, {})
    one.write([Request({"forward": 1_000_000}, series=Series("old"))])
    one.store.engine.dispose()  # a template must not be in use
    copy = name_of(postgresql_server.new_database(name_of(url)))
    for service in ("lost", "till"):
        one.write([Request({"forward": 1_000_000}, series=Series(service))])
    if in_place:
        restore_tables(postgresql_server, url, copy)
    else:
        replace_database(postgresql_server, url, copy)
    other = one.another()
    for service in ("till", "lost", "desk"):
        other.write([Request({"forward": 1_000_000}, series=Series(service))])
    for service in ("old", "lost", "desk"):
        one.write([Request({"forward": 1_000_000}, series=Series(service))])

    counts = {name: one.store.read.latency(one.around(service=name)).count for name in ("old", "lost", "till", "desk")}
    assert counts == {"old": 2, "lost": 2, "till": 1, "desk": 2}
    assert ledger(one) == counted(one)
    one.close()


def test_a_long_lock_is_an_error_that_names_it(postgresql: Site) -> None:
    event.listen(
        postgresql.store.engine,
        "before_cursor_execute",
        lambda _c, _k, statement, parameters, *_: (statement.replace("'10s'", "'50ms'"), parameters),
        retval=True,
    )
    with (
        postgresql.another().store.transaction(),
        pytest.raises(StoreError, match="another process has been writing for a long"),
    ):
        postgresql.store.write([Batch("a")])

    assert postgresql.store.write([Batch("a")]) == [True]


def test_rewriting_the_traces_frees_disk_space(postgresql: Site) -> None:
    spans = [{"name": Random(7).randbytes(500).hex()}]
    traces = [
        RetainedTrace(f"{n:032x}", "01" * 8, Series("shop"), NOON * NS + n, 5, "slow", "forward", {"forward": 5}, spans)
        for n in range(2000)
    ]
    postgresql.store.write([Batch("a", traces=traces)])
    full = postgresql.store.read.state().size_bytes
    with postgresql.store.transaction() as connection:
        connection.execute(text("DELETE FROM traces WHERE started >= :since"), {"since": NOON * NS + 10})
    with postgresql.store.transaction() as connection:
        compact = database.dialect(connection.engine.url).compact_traces
        given_back = [compact(connection), compact(connection)]

    assert given_back == [True, False]
    assert postgresql.store.read.state().size_bytes < full / 2
    assert postgresql.store.read.trace(f"{5:032x}") is not None


def test_one_write_stores_more_traces_than_statement_parameters(postgresql: Site) -> None:
    trace = RetainedTrace("", "01" * 8, Series("shop"), NOON * NS, 5, "forced", "forward", {"forward": 5})
    traces = [replace(trace, trace_id=f"{number:032x}") for number in range(65_536)]
    postgresql.store.write([Batch("a", traces=traces[:10])])
    postgresql.store.write([Batch("b", traces=traces)])
    with postgresql.store.transaction() as connection:
        count = connection.execute(text("SELECT count(*) FROM traces")).scalar_one()

    assert count == len(traces)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:secret@/absent?host={folder}", "there is no such database or role"),
        ("postgresql://stagelens:secret@/absent?host={folder}", "there is no such database or role"),
        ("postgresql://me:secret@127.0.0.1:1/db", "the server cannot be reached"),
        ("postgresql://me:secret@/db?host=/nowhere", "the server cannot be reached"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named(postgresql_server: Server, url: str, words: str) -> None:
    with pytest.raises(StoreError, match=f"cannot open postgresql.*{words}") as refused:
        Store.open(url.format(folder=postgresql_server.folder))

    assert "secret" not in str(refused.value)


def test_an_error_does_not_contain_the_statement(postgresql: Site) -> None:
    with postgresql.store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE services RENAME TO gone")
    with pytest.raises(StoreError, match=r'"services" does not exist\)$'):
        postgresql.store.read.revision("shop")
