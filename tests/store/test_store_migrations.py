"""Migrations of the schema: upgrade from older versions and downgrade, with data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import inspect, select, text

from stagelens.core.histogram import Histogram
from stagelens.store import Batch, KeptTrace, Selection, schema
from stagelens.store.engines import database
from tests.store.store_contents import FOREVER, added_totals, contents, counted, known, ledger, requests, totals
from tests.support.raw_requests import NOON, NS, Request, Series, Site

SERIES = (Series("shop", "1", route="/a"), Series("shop", "1", route="/b"), Series("shop", "2"), Series("bank"))
TRACE = KeptTrace("ab" * 16, "01" * 8, SERIES[0], NOON * NS, 5, "slow", "forward", {"forward": 5})


def fill(one: Site) -> None:
    """Write requests of three hours, roll up, and write late ones."""
    for late in (0, 1):
        one.write(
            [
                Request({"forward": 1_000_000 * (1 + step), "queue": 500}, NOON - 97 * step, SERIES[step % 4])
                for step in range(120)
            ]
        )
        one.store.write([Batch(f"traces-{late}", traces=[TRACE])])
        one.store.maintain()


def page_results(one: Site) -> list[tuple[Any, Any]]:
    """Return the results shown on pages."""
    read, found = one.store.read, list[tuple[Any, Any]]()
    for service in ("shop", "bank"):
        for start in (NOON - 4 * 3600, NOON - 5000, NOON - 1000):
            selection: Selection = one.between(start, NOON + 60, service=service)
            latency = read.latency(selection)
            found.append((latency.buckets, read.breakdown(selection, [0.5, 0.99]).to_dict()))
    return found


def revision_2(one: Site) -> None:
    """Downgrade the store to revision 0002: no totals, no ledger, rollups as part 0."""
    database.migrate(one.store.engine, "0002")
    tables = set(inspect(one.store.engine).get_table_names())

    assert not tables & {"store", "intents", "ledger"}
    assert "total_id" not in {column["name"] for column in inspect(one.store.engine).get_columns("series")}


def test_a_database_of_revision_2_is_upgraded(database_points_site: Callable[..., Site]) -> None:
    one = database_points_site()
    fill(one)
    before = page_results(one)
    revision_2(one)
    one.reopen()
    after = page_results(one)

    assert after == before
    assert ledger(one) == counted(one)
    for tier in known(one)[1:]:
        assert totals(one, tier.seconds) == added_totals(one, tier.seconds)
    fill(one)
    one.clock.now += 4000
    one.store.maintain()
    assert requests(one) == 2 * 240
    assert ledger(one) == counted(one)
    for tier in known(one)[1:]:
        assert contents(one, tier.seconds, tier.seconds) == contents(one, 10, tier.seconds, tier.watermark)
        assert totals(one, tier.seconds) == added_totals(one, tier.seconds)


def test_revisions_continue_after_the_upgrade(database_points_site: Callable[..., Site]) -> None:
    one = database_points_site()
    fill(one)
    before = one.store.read.revision()
    revision_2(one)
    one.reopen()
    one.write([Request({"forward": 1})])

    assert one.store.read.revision() > before


def test_a_downgrade_and_upgrade_preserve_the_points(database_points_site: Callable[..., Site]) -> None:
    one = database_points_site()
    fill(one)
    series = [contents(one, tier, tier) for tier in schema.TIERS]
    for _ in range(2):
        revision_2(one)
        one.reopen()
        one.store.maintain()

    assert [contents(one, tier, tier) for tier in schema.TIERS] == series
    assert one.store.read.trace("ab" * 16) is not None


def test_a_migration_that_fails_changes_nothing(database_points_site: Callable[..., Site]) -> None:
    one = database_points_site()
    fill(one)
    revision_2(one)
    with database.writing(one.store.engine, "cannot write to") as connection:
        connection.execute(text("CREATE TABLE ledger (mine INTEGER)"))
    before = sorted(inspect(one.store.engine).get_table_names())
    with pytest.raises(database.StoreError, match=r"cannot open .*already exists"):
        database.migrate(one.store.engine)
    with one.store.engine.connect() as connection:
        remaining = connection.execute(select(schema.points.c.count).where(schema.points.c.bucket < FOREVER)).all()

    assert sorted(inspect(one.store.engine).get_table_names()) == before
    assert remaining


def test_an_empty_histogram_is_migrated(database_points_site: Callable[..., Site]) -> None:
    one = database_points_site()
    one.write([Request({"forward": 0})])
    revision_2(one)
    one.reopen()

    assert one.store.read.latency(one.around()) == Histogram(zero=1, scale=5)
