"""Contents of a store, row by row, for any engine."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, func, select

from stagelens.core.histogram import Histogram
from stagelens.store import schema
from stagelens.store.bucket_blobs import decode_buckets
from stagelens.store.engines import database
from stagelens.store.engines.database import SqlPoints
from stagelens.store.points import PointRow, is_kind_of_replica
from tests.support.raw_requests import Site

# Later than the start of any bucket. [Unix seconds]
FOREVER = 4_000_000_000

# Rows and bytes by tier and slot.
Ledger = dict[tuple[int, int], tuple[int, int]]


def known(one: Site) -> list[schema.Tier]:
    with database.reading(one.store.engine) as connection:
        return schema.read_tiers(connection)


def rows(one: Site, tier: int) -> list[PointRow]:
    with database.reading(one.store.engine) as connection:
        kept_from = {each.seconds: each.kept_from for each in schema.read_tiers(connection)}
        return one.store.points.load(connection, tier, kept_from[tier], FOREVER).rows(tier, 0)


def histogram_of(row: PointRow) -> Histogram:
    buckets = decode_buckets([row.histogram])
    histogram = Histogram(row.scale, dict(zip(buckets.index.tolist(), buckets.amount.tolist(), strict=True)), row.zero)

    assert row.count == histogram.count
    return histogram


def contents(one: Site, tier: int, width: int, before: int = FOREVER) -> dict[tuple[Any, ...], Histogram]:
    """Return the data of *tier* by series before *before*, aggregated to buckets of *width* seconds.

    The tiers of hours and days have no rows of replicas.
    """
    found: dict[tuple[Any, ...], Histogram] = {}
    for row in rows(one, tier):
        if (
            row.metric > 0
            and row.bucket < before
            and not (width >= schema.WITHOUT_REPLICAS and is_kind_of_replica(row.metric, row.stage))
        ):
            key = (row.service_id, row.metric, row.series_id, row.stage, schema.floor_to(row.bucket, width))
            found.setdefault(key, Histogram(row.scale)).merge(histogram_of(row))
    return found


def totals(one: Site, tier: int) -> dict[tuple[Any, ...], Histogram]:
    found: dict[tuple[Any, ...], Histogram] = {}
    for row in rows(one, tier):
        if row.metric < 0:
            key = (row.service_id, -row.metric, row.series_id, row.stage, row.bucket)
            found.setdefault(key, Histogram(row.scale)).merge(histogram_of(row))
    return found


def added_totals(one: Site, tier: int) -> dict[tuple[Any, ...], Histogram]:
    series = schema.series
    with database.reading(one.store.engine) as connection:
        owner = {row.id: row.total_id for row in connection.execute(select(series.c.id, series.c.total_id))}
    found: dict[tuple[Any, ...], Histogram] = {}
    without = {schema.METRIC_CODES[name] for name in schema.WITHOUT_TOTALS}
    for (service_id, metric, series_id, stage, bucket), histogram in contents(one, tier, tier).items():
        if metric in without:
            continue
        key = (service_id, metric, owner[series_id], stage, bucket)
        found.setdefault(key, Histogram(histogram.scale)).merge(histogram)
    return found


def ledger(one: Site) -> Ledger:
    table = schema.ledger
    with database.reading(one.store.engine) as connection:
        return {(row.tier, row.slot): (row.rows, row.bytes) for row in connection.execute(select(table))}


def stored_rows(one: Site, tier: int) -> list[PointRow]:
    if not isinstance(one.store.points, SqlPoints):
        return rows(one, tier)
    kept_from = next(each.kept_from for each in known(one) if each.seconds == tier)
    columns = [schema.points.c[name] for name in PointRow._fields]
    wanted = select(*columns).where(schema.points.c.tier == tier, schema.points.c.bucket >= kept_from)
    with database.reading(one.store.engine) as connection:
        return [PointRow(*row) for row in connection.execute(wanted)]


def counted(one: Site) -> Ledger:
    found: Ledger = {}
    for tier in schema.TIERS:
        for row in stored_rows(one, tier):
            key = tier, schema.floor_to(row.bucket, schema.SLOT_SECONDS[tier])
            n, size = found.get(key, (0, 0))
            found[key] = n + 1, size + len(row.histogram)
    return found


def check_tiers(one: Site) -> None:
    """Assert that every tier equals the sum of the finest, that totals do, and that the ledger has the rows."""
    for tier in known(one)[1:]:
        assert contents(one, tier.seconds, tier.seconds) == contents(one, 10, tier.seconds, tier.watermark)
        assert totals(one, tier.seconds) == added_totals(one, tier.seconds)
    assert ledger(one) == counted(one)


def number(one: Site, table: Table) -> int:
    with database.reading(one.store.engine) as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def requests(one: Site) -> int:
    return one.store.read.latency(one.between(0, FOREVER)).count
