"""Copy of a store into another one: complete for all pairs of engines, also after interruptions."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import MetaData, select, text

from stagelens.core.errors import StoreError
from stagelens.store import Batch, Event, Selection, Series, Store, backup, schema
from stagelens.store.audit import AuditEntry
from stagelens.store.points import PointTable
from tests.store.clickhouse_server import embedded_url
from tests.store.questions import query_results
from tests.support.raw_requests import NOON, NS, SHOP, OpenSite, PointAggregator, Request, Site, retained

HOUR = 3600
PERCENTILES = (0.5, 0.9, 0.99, 0.999)
# Each engine is the source once and the target once, because reading does not depend on the engine of the target.
PAIRS = [
    ("sqlite", "sqlite"),
    pytest.param("sqlite", "postgresql", marks=pytest.mark.stacks),
    pytest.param("postgresql", "sqlite+clickhouse", marks=pytest.mark.stacks),
    pytest.param("sqlite+clickhouse", "sqlite", marks=pytest.mark.stacks),
]
# Without histograms coarser than the default, because a copy merges parts of two scales to the coarser one.
OF_FINE_HISTOGRAMS = ("all_minutes", "minutes", "spent", "sums")
DESK = Series("desk", "2", environment="prod", model="bert", route="/répondre", device="cuda:0", status="error")


class Interrupted(Exception):  # noqa: N818 - it is what happens to the copy
    """Simulated kill of the copy."""


def no_progress(_done: int, _total: int) -> None: ...


def interrupt_after(calls: int) -> Callable[[int, int], None]:
    numbers = itertools.count()

    def progress(_done: int, _total: int) -> None:
        if next(numbers) == calls:
            raise Interrupted

    return progress


@pytest.fixture
def source(open_site: OpenSite) -> Site:
    return filled(open_site())


@pytest.fixture(scope="module")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "stagelens.db"
    filled(Site(f"sqlite:///{path}", {})).close()
    return path


@pytest.fixture
def file_source(filled_file: Path, tmp_path: Path, opened_sites: list[Site]) -> Site:
    """Store in a file with data of every kind, for tests that do not depend on the engine of the source."""
    opened_sites.append(Site(f"sqlite:///{shutil.copy(filled_file, tmp_path)}", {}))
    return opened_sites[-1]


def filled(one: Site) -> Site:
    one.clock.now = NOON - 7 * HOUR
    for step in range(0, 7 * HOUR, 2400):
        at = NOON - 7 * HOUR + step
        one.clock.now = at + 30
        for part in range(2):
            requests = [
                Request({"queue": 1_000_000 + 777 * n, "forward": 3_000_000 * (n % 7 + part + 1)}, at + n, series)
                for n in range(12)
                for series in (SHOP, DESK)
            ]
            one.write(requests, scale=5 - part)
        one.store.maintain()
    one.clock.now = NOON
    one.write([Request({"forward": 9_000_000}, NOON - 5 * HOUR)])
    write_entries(one, "before")
    write_traces(one)
    write_incident(one)
    return one


def write_traces(one: Site) -> None:
    traces = [replace(retained(Request({"forward": n * NS}, NOON - n), n), attributes={"a": n}) for n in range(1, 6)]
    points = PointAggregator().points([Request({"forward": 1_000_000})])
    one.store.write([Batch("known", points, traces, instance="agent-1", dropped=7, spans=b"waits")])


def write_entries(one: Site, name: str) -> None:
    at = datetime.fromtimestamp(NOON - HOUR, UTC)
    one.store.add_event(Event(at, "shop", "deploy", "v2", name))
    one.store.add_audit_entry(AuditEntry(at, name, "slack", "acknowledge"))


def write_incident(one: Site) -> None:
    with one.store.transaction() as connection:
        tables = MetaData()
        tables.reflect(connection, only=["incidents", "outbox"])
        for name, given in (
            ("incidents", {"id": "i", "finding": {"p99": [1.5, None, "µ"]}}),
            ("outbox", {"incident": "i"}),
        ):
            table = tables.tables[name]
            # Each column gets a value of its type, whatever its name.
            rest = {column.name: column.type.python_type("1") for column in table.columns if column.name not in given}
            connection.execute(table.insert().values(rest | given))


def assert_same(one: Store, other: Store, around: Selection) -> None:
    expected, actual = query_results(one, around), query_results(other, around)
    for question in OF_FINE_HISTOGRAMS:
        del expected[question], actual[question]

    assert {question: result for question, result in actual.items() if result != expected[question]} == {}


def other_rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    with store.engine.connect() as connection:
        found = {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in backup.copied_tables(connection)
        }
    del found["store"]
    return found


@pytest.mark.parametrize(("open_site", "open_target"), PAIRS, indirect=True)
def test_a_copy_equals_its_source_and_continues(source: Site, open_target: OpenSite) -> None:
    """Every query and every table is equal after a copy from any engine and to any engine.

    Then repeated batches are detected, new series and other rows get new ids, revisions grow and rollups continue.
    """
    target = open_target()
    moved = backup.copy_store(source.store, target.store, no_progress)

    assert moved == sum(tier.rows for tier in source.store.read.storage().tiers)
    assert_same(source.store, target.store, source.around())
    assert other_rows(target.store) == other_rows(source.store)
    assert len(other_rows(target.store)["outbox"]) == 1
    assert not backup.is_copy_unfinished(target.store.engine)

    revision = target.store.read.revision()
    again = target.store.write([Batch("known", PointAggregator().points([Request({"forward": 1_000_000})]))])
    write_entries(target, "after")
    target.store.write([Batch("more spans", spans=b"wait, too")])
    target.write([Request({"forward": 1_000_000}, series=Series("new", "1")), Request({"forward": 5_000_000})])
    target.clock.now += 2 * HOUR
    target.store.maintain()
    around = target.around()

    assert again == [False]
    assert {len(other_rows(target.store)[name]) for name in ("events", "audit", "inbox")} == {2}
    assert target.store.read.revision() > revision
    assert target.store.read.latency(around).count == source.store.read.latency(around).count + 2
    assert target.store.read.latency(Selection(around.start, around.end, service="new")).count == 1


@pytest.mark.stacks
def test_points_move_to_clickhouse_and_back(
    file_source: Site, open_sqlite: OpenSite, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = open_sqlite(points_url=embedded_url(tmp_path_factory.getbasetemp() / "clickhouse"))
    back = open_sqlite()
    with pytest.raises(Interrupted):
        backup.copy_store(file_source.store, there.store, interrupt_after(3))
    there.reopen()
    with pytest.raises(Interrupted):
        backup.copy_store(file_source.store, there.store, interrupt_after(6))
    file_source.write([Request({"forward": 1_000_000}, NOON - 6 * HOUR)])
    backup.copy_store(file_source.store, there.store, no_progress)
    assert_same(file_source.store, there.store, file_source.around())
    there.write([Request({"forward": 7_000_000}, NOON - HOUR)])
    there.store.maintain()
    backup.copy_store(there.store, back.store, no_progress)

    assert_same(there.store, back.store, there.around())
    assert other_rows(back.store) == other_rows(there.store)


def test_there_is_one_row_per_key(file_source: Site, sql: Site) -> None:
    backup.copy_store(file_source.store, sql.store, no_progress)
    with sql.store.engine.connect() as connection:
        twice = connection.execute(
            text("SELECT 1 FROM points GROUP BY tier, service_id, metric, bucket, series_id, stage HAVING count(*) > 1")
        ).first()
        rows = connection.execute(text("SELECT tier, count(*) FROM points GROUP BY tier ORDER BY tier")).all()

    assert twice is None
    stored = dict.fromkeys(schema.TIERS, 0) | {schema.tier_width(code): count for code, count in rows}
    assert {tier.seconds: tier.rows for tier in sql.store.read.storage().tiers} == stored
    assert stored[schema.FINEST] < file_source.store.read.storage().tiers[0].rows


def test_a_target_with_data_is_refused(file_source: Site, open_target: OpenSite) -> None:
    target, empty = open_target(), open_target()
    assert backup.copy_store(empty.store, target.store, no_progress) == 0
    target.write([Request({"forward": 1_000_000})])
    with pytest.raises(StoreError, match=r"is not empty \(data in .*series.*use an empty database"):
        backup.copy_store(file_source.store, target.store, no_progress)

    assert target.store.read.latency(target.around()).count == 1
    assert not backup.is_copy_unfinished(target.store.engine)


def test_an_interrupted_copy_continues(file_source: Site, sql: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted):
        backup.copy_store(file_source.store, sql.store, interrupt_after(5))
    unfinished, seen = backup.is_copy_unfinished(sql.store.engine), sql.store.read.revision()
    loads: list[int] = []
    real = file_source.store.points.load
    monkeypatch.setattr(
        file_source.store.points, "load", lambda *arguments: (loads.append(arguments[2]), real(*arguments))[1]
    )
    sql.reopen()
    backup.copy_store(file_source.store, sql.store, no_progress)
    with file_source.store.engine.connect() as connection:
        stretches = len(list(backup.stretches_of(connection)))

    assert (unfinished, seen) == (True, 0)
    assert len(loads) == stretches - 5
    assert_same(file_source.store, sql.store, file_source.around())


def test_a_changed_source_is_copied_again(file_source: Site, sqlite: Site, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Interrupted):
        backup.copy_store(file_source.store, sqlite.store, interrupt_after(9))
    file_source.write([Request({"forward": 1_000_000}, NOON - 6 * HOUR)])
    backup.copy_store(file_source.store, sqlite.store, no_progress)

    assert "starting over" in caplog.text
    assert_same(file_source.store, sqlite.store, file_source.around())


def test_small_stretches_are_copied_as_well_as_large_ones(
    file_source: Site, sqlite: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[tuple[int, int]] = []
    monkeypatch.setattr(backup, "STRETCH_ROWS", 5)
    total = backup.copy_store(file_source.store, sqlite.store, lambda *counted: progress.append(counted))
    with file_source.store.engine.connect() as connection:
        stretches = list(backup.stretches_of(connection))

    assert len(stretches) > 50
    assert all(a.stop <= b.start for a, b in itertools.pairwise(stretches) if a.tier == b.tier)
    assert_same(file_source.store, sqlite.store, file_source.around())
    assert progress[0] == (0, total)
    assert progress == sorted(progress)
    assert progress[-1][0] == pytest.approx(total, rel=0.05)


def test_a_copy_that_differs_is_refused(file_source: Site, sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PointTable.added_up

    def lossy(table: PointTable, width: int) -> PointTable:
        summed = real(table, width)
        return summed.where(np.arange(len(summed)) > 0)

    monkeypatch.setattr(PointTable, "added_up", lossy)
    with pytest.raises(StoreError, match=r"in the 10 s tier counts \d+, not \d+.*repeat the copy"):
        backup.copy_store(file_source.store, sqlite.store, no_progress)

    assert backup.is_copy_unfinished(sqlite.store.engine)
    assert sqlite.store.read.revision() == 0


def test_two_copies_into_one_target_do_not_mix(file_source: Site, sql: Site) -> None:
    stretch = itertools.count()

    def meanwhile(_done: int, _total: int) -> None:
        if next(stretch) == 3:
            other = Store.open(sql.url, clock=sql.clock)
            with pytest.raises(Interrupted):
                backup.copy_store(file_source.store, other, interrupt_after(5))
            other.close()

    with pytest.raises(StoreError, match="another process copies into"):
        backup.copy_store(file_source.store, sql.store, meanwhile)
    backup.copy_store(file_source.store, sql.store, no_progress)

    assert_same(file_source.store, sql.store, file_source.around())
