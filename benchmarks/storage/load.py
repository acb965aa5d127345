"""Filling a store with a dataset, past the writer: the same rows in the same order, but not one request at a time."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import numpy as np
from sqlalchemy import Connection, insert, update

from stagelens.store import Batch, KeptTrace, Series, SeriesCaps, Store, schema
from stagelens.store.engines import database
from stagelens.store.point_table import PointTable
from stagelens.store.schema import FINEST, take_part
from stagelens.store.series import SeriesIndex, SeriesNumbers
from stagelens.store.storage import PreparedWrite
from stagelens.store.write import add_to_ledger

from .dataset import DAY, NOW, Rows, Shape
from .pool import STAGES, pools

# Writes there would have been: with fewer the numbers of parts would be shorter.
_PARTS = 1_300_000
_TRACES_PER_SERVICE = 20_000
_INSTANCES_PER_SERVICE = 8
_BATCH_SECONDS = 10
_NS = 1_000_000_000


def load(store: Store, shape: Shape) -> dict[int, int]:
    """Fill *store*, which must be empty and live at `NOW`, with *shape*.

    Returns:
        How many bytes the database grew by for the rows of each tier; as it sees it itself.
    """
    _write_traces(store, shape)
    with store.transaction() as connection:
        connection.execute(update(schema.store).values(last_part=_PARTS))
        _insert_batches(connection)
        owners = _owners(connection, shape)
    rows = Rows(shape, pools(), owners)
    grown: dict[int, int] = dict.fromkeys(schema.TIERS, 0)
    # Finer tiers of an hour come before the coarser: each stretch of one tier is weighed as a whole.
    for tier, chunks in groupby(rows.chunks(), key=itemgetter(0)):
        before = _used(store)
        for _, buckets in chunks:
            _apply(store, rows, tier, buckets)
        grown[tier] += _used(store) - before
    with store.transaction() as connection:
        _finish(connection, shape)
    return grown


def _used(store: Store) -> int:
    """Return the bytes of the tables; 0 where asking takes long, that is anywhere but in SQLite."""
    if store.engine.dialect.name != "sqlite":
        return 0
    with store.engine.connect() as connection:
        return database.used_bytes(connection)


def _apply(store: Store, rows: Rows, tier: int, buckets: range) -> None:
    def prepare(connection: Connection) -> PreparedWrite:
        part = take_part(connection)
        made = rows.rows(tier, buckets, part)
        if tier == FINEST:
            made = store.points.finest_rows(PointTable.of(made).added_up(tier), part)
        return PreparedWrite(part, made, lambda connection: add_to_ledger(connection, made))

    store.points.apply(store.engine, prepare)


def _owners(connection: Connection, shape: Shape) -> list[SeriesNumbers]:
    index = SeriesIndex(SeriesCaps())
    index.refresh(connection, database.generation(connection))
    return [index.intern(connection, series, NOW) for series in shape.streams]


def _write_traces(store: Store, shape: Shape) -> None:
    """Keep requests of every stream, over the seven days they are kept; this also makes the series."""
    random = np.random.default_rng(1)
    each = max(1, _TRACES_PER_SERVICE * 5 // len(shape.streams))
    ages = np.sort(random.uniform(0, min(7, shape.days) * DAY, each * len(shape.streams)))[::-1]
    traces = [
        _trace(number, shape.streams[number % len(shape.streams)], NOW - 1 - float(age), random)
        for number, age in enumerate(ages)
    ]
    for start in range(0, len(traces), 1000):
        store.write([Batch(f"traces:{start}", traces=traces[start : start + 1000])])


def _trace(number: int, series: Series, at: float, random: np.random.Generator) -> KeptTrace:
    stages: dict[str, int] = dict(
        zip(STAGES, (random.lognormal(-4, 1, len(STAGES)) * _NS).astype(int).tolist(), strict=True)
    )
    dominant = max(("forward", "queue"), key=lambda stage: stages[stage])
    spans = [
        {"name": stage, "stage": stage, "start_ns": 0, "duration_ns": spent, "attributes": {}}
        for stage, spent in stages.items()
    ]
    trace_id, span_id = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}", f"{number:016x}"
    started, duration = int(at * _NS), sum(stages.values())
    return KeptTrace(trace_id, span_id, series, started, duration, "slow", dominant, stages, spans)


def _insert_batches(connection: Connection) -> None:
    """Put in the names of a day's batches."""
    instances = [f"service-{service}/{number}" for service in range(5) for number in range(_INSTANCES_PER_SERVICE)]
    rows = [
        {"id": f"{instance}:{at}", "received": at, "instance": instance, "dropped": 0}
        for at in range(NOW - DAY, NOW, _BATCH_SECONDS)
        for instance in instances
    ]
    connection.execute(insert(schema.batches), rows)


def _finish(connection: Connection, shape: Shape) -> None:
    last = take_part(connection)
    connection.execute(update(schema.services).values(revision=last))
    first = shape.kept_from(schema.COARSEST)
    connection.execute(update(schema.series).values(first_seen=first, last_seen=NOW - 10))
    for tier in schema.TIERS:
        table = schema.rollups
        values = {
            "kept_from": shape.kept_from(tier),
            "watermark": shape.watermark(tier) if tier != schema.FINEST else 0,
        }
        connection.execute(update(table).where(table.c.tier == tier).values(**values))
