"""Copy of a store into another store of any engine, for backup, restore and migration, with a comparison of both.

Points are copied first, one stretch of time after another; each stretch is summed to one row per key and committed together with
the progress of the copy. All other tables follow in one last transaction, which also compares the fingerprints of both stores, so
that a copy is complete or not usable. An interrupted copy continues, unless the source has changed since the interruption.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from ..core.errors import StoreError
from . import schema
from .engines import database
from .points import PointTable
from .queries import fetch
from .schema import take_part
from .selection import Selection
from .storage import PointQuery, PreparedWrite, StoreSnapshot
from .store import Store
from .write import add_to_ledger

_ALL_TIME = Selection(datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
_QUANTILES = (0.5, 0.99)
# Limits of what is held in memory at once. [rows]
STRETCH_ROWS = 50_000
# Size of the histograms of these rows; a row may be a block of many points. [bytes]
_STRETCH_BYTES = 4 * 1024**2
_ROWS_AT_ONCE = 1000
# Later than any bucket starts. [Unix seconds]
_FOREVER = 4_000_000_000
# Tables that are not copied: their content is only meaningful for the processes that write to this database.
_NOT_COPIED = {"alembic_version", "collectors", "intents", "ledger", "moves"}
# Tables that always have a row, which the copy overwrites.
_NEVER_EMPTY = {"store", "rollups"}


@dataclass(frozen=True, slots=True)
class StoreFingerprint:
    """Counts and quantiles that identify the contents of a store."""

    # Sum of the counts by tier (width in seconds), service and metric; totals count as separate metrics
    counts: dict[tuple[int, str, str], int]
    # p50 and p99 of each service over all data; in seconds, None without requests
    quantiles: dict[str, tuple[float | None, ...]]


def read_fingerprint(snapshot: StoreSnapshot) -> StoreFingerprint:
    names = snapshot.connection.scalars(sa.select(schema.services.c.name).order_by(schema.services.c.name)).all()
    counts: Counter[tuple[int, str, str]] = Counter()
    for key, count in _counts(snapshot):
        counts[key] += count
    return StoreFingerprint(dict(counts), {name: _quantiles(snapshot, name) for name in names})


def _counts(snapshot: StoreSnapshot) -> Iterator[tuple[tuple[int, str, str], int]]:
    series = schema.series
    rows = snapshot.connection.execute(sa.select(series.c.id, series.c.total_id, series.c.service)).all()
    owners = {row.id: row.service for row in rows} | {row.total_id: row.service for row in rows}
    for tier in schema.read_tiers(snapshot.connection):
        segment = schema.Segment(tier.seconds, tier.kept_from, _ALL_TIME.seconds[1])
        kinds: tuple[Literal["series", "total"], ...] = ("series",)
        if tier.seconds != schema.FINEST:
            kinds = ("series", "total")
        for metric in schema.METRIC_CODES:
            for by in kinds:
                question = PointQuery(_ALL_TIME, (metric,), by=by)
                for seen in snapshot.points.seen(snapshot.connection, question, [segment]):
                    name = metric if by == "series" else f"{metric} (totals)"
                    yield (tier.seconds, owners.get(seen.series_id, ""), name), seen.requests


def _quantiles(snapshot: StoreSnapshot, service: str) -> tuple[float | None, ...]:
    latency = fetch.request_latency(snapshot, Selection(_ALL_TIME.start, _ALL_TIME.end, service=service))
    return tuple(
        None if (estimate := latency.quantile(quantile)) is None else estimate.value for quantile in _QUANTILES
    )


def fingerprint_differences(expected: StoreFingerprint, actual: StoreFingerprint) -> list[str]:
    differences = [
        f"{metric} of {service or 'no service'} in the {tier} s tier counts {there}, not {here}"
        for (tier, service, metric) in sorted(expected.counts.keys() | actual.counts.keys())
        if (here := expected.counts.get((tier, service, metric), 0))
        != (there := actual.counts.get((tier, service, metric), 0))
    ]
    for service in sorted(expected.quantiles.keys() | actual.quantiles.keys()):
        here, there = expected.quantiles.get(service), actual.quantiles.get(service)
        if here != there:
            differences.append(f"p50 and p99 of {service} are {there}, not {here} seconds")
    return differences


# Progress of the copy into this database. The table exists only while a copy is unfinished.
_moves = sa.Table(
    "moves",
    sa.MetaData(),
    # Identifier of the source, see `_source_name`.
    sa.Column("source", sa.Text, nullable=False),
    # Number of copied stretches.
    sa.Column("done", sa.Integer, nullable=False),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stretch of time `[start, stop)` of *tier*, in Unix seconds, with about *rows* rows."""

    tier: int
    start: int
    stop: int
    rows: int


def copy_store(source: Store, target: Store, progress: Callable[[int, int], None]) -> int:
    """Copy *source* into *target*, or continue an interrupted copy, as of one moment of the source.

    Returns:
        Number of rows of points in the source.

    Raises:
        StoreError: The target holds other data, a database cannot be read or written, or the copy differs.
    """
    with database.reading(source.engine) as connection:
        snapshot = StoreSnapshot(connection, source.points)
        stretches = list(stretches_of(connection))
        done = _begin_copy(target, _source_name(connection))
        total, moved = sum(stretch.rows for stretch in stretches), 0
        progress(moved, total)
        for number, stretch in enumerate(stretches):
            if number >= done:
                table = source.points.load(connection, stretch.tier, stretch.start, stretch.stop)
                _write_stretch(target, table, stretch.tier, number)
            moved += stretch.rows
            progress(moved, total)
        _finish_copy(snapshot, target)
    return total


def is_copy_unfinished(engine: sa.Engine) -> bool:
    """Return whether a copy into this database was started and not completed."""
    with database.reading(engine) as connection:
        return sa.inspect(connection).has_table(_moves.name)


def _source_name(connection: sa.Connection) -> str:
    url, table = connection.engine.url, schema.ledger
    location = str(Path(url.database or "").resolve()) if url.get_backend_name() == "sqlite" else database.location(url)
    part = connection.execute(sa.select(schema.store.c.last_part)).scalar_one()
    held = connection.execute(sa.select(sa.func.count(), sa.func.sum(table.c.rows), sa.func.sum(table.c.bytes))).one()
    return f"{location} at {part}, {'/'.join(map(str, held))}"


def stretches_of(connection: sa.Connection) -> Iterator[Stretch]:
    """Yield stretches that cover all rows, in the order of the key of `points`; the rows of each fit into memory."""
    table = schema.ledger
    for tier in schema.read_tiers(connection):
        columns = (table.c.slot, table.c.rows, table.c.bytes)
        slots = sa.select(*columns).where(table.c.tier == tier.seconds).order_by(table.c.slot)
        for slot, rows, size in connection.execute(slots).all():
            stop = slot + schema.SLOT_SECONDS[tier.seconds]
            pieces = max(-(-rows // STRETCH_ROWS), -(-size // _STRETCH_BYTES))
            width = schema.ceil_to(-(-(stop - slot) // max(pieces, 1)), tier.seconds)
            starts = range(slot, stop, width)
            for start in starts:
                yield Stretch(tier.seconds, start, min(start + width, stop), rows // len(starts))


def _begin_copy(target: Store, source: str) -> int:
    """Start or continue a copy of *source* into *target*; return the number of stretches that are already copied."""
    with database.writing(target.engine, "cannot copy into") as connection:
        if not sa.inspect(connection).has_table(_moves.name):
            _refuse_filled(connection, target)
            _moves.create(connection)
            connection.execute(sa.insert(_moves).values(source=source, done=0))
            return 0
        before = connection.execute(sa.select(_moves)).one()
        if before.source == source:
            _log.info("continuing the interrupted copy")
            return before.done
        _log.warning("the source changed since the copy was interrupted: starting over")
        for tier in schema.TIERS:
            target.points.cut(connection, tier, _FOREVER)
        # `cut` finds points by the known services, which are copied last.
        connection.execute(sa.delete(schema.points))
        connection.execute(sa.delete(schema.ledger))
        connection.execute(sa.update(_moves).values(source=source, done=0))
        return 0


def _refuse_filled(connection: sa.Connection, target: Store) -> None:
    tables = [table for table in copied_tables(connection) if table.name not in _NEVER_EMPTY]
    filled = [table.name for table in tables if connection.execute(sa.select(table).limit(1)).first() is not None]
    if target.points.used_bytes(connection):
        filled.append("points")
    if filled:
        msg = (
            f"{database.location(connection.engine.url)} is not empty (data in {', '.join(filled)}); "
            "use an empty database"
        )
        raise StoreError(msg)


def _write_stretch(target: Store, table: PointTable, tier: int, number: int) -> None:
    def prepare(connection: sa.Connection) -> PreparedWrite:
        part = take_part(connection)
        summed = table.added_up(tier)
        added = target.points.finest_rows(summed, part) if tier == schema.FINEST else summed.rows(tier, part)

        def finish(connection: sa.Connection) -> None:
            add_to_ledger(connection, added)
            noted = sa.update(_moves).where(_moves.c.done == number).values(done=number + 1)
            if connection.execute(noted).rowcount != 1:
                msg = f"another process copies into {database.location(target.engine.url)} too; wait until it has finished"
                raise StoreError(msg)

        return PreparedWrite(part, added, finish)

    target.points.apply(target.engine, prepare)


def _finish_copy(snapshot: StoreSnapshot, target: Store) -> None:
    expected = read_fingerprint(snapshot)
    with database.writing(target.engine, "cannot copy into") as connection:
        part = connection.execute(sa.select(schema.store.c.last_part)).scalar_one()
        _copy_tables(snapshot.connection, connection)
        numbers = schema.store
        # The copy has rows with part numbers of both databases, so the last number must be the larger one.
        connection.execute(sa.update(numbers).where(numbers.c.last_part < part).values(last_part=part))
        differences = fingerprint_differences(expected, read_fingerprint(StoreSnapshot(connection, target.points)))
        if differences:
            msg = (
                f"{database.location(target.engine.url)} differs from its source, so the copy is incomplete: "
                f"{'; '.join(differences[:5])}. Empty the database and repeat the copy"
            )
            raise StoreError(msg)
        _moves.drop(connection)


def copied_tables(connection: sa.Connection) -> list[sa.Table]:
    # Partitions of points are tables, too.
    names = sa.inspect(connection).get_table_names()
    metadata = sa.MetaData()
    metadata.reflect(
        connection, only=[name for name in names if name not in _NOT_COPIED and not name.startswith("points")]
    )
    return metadata.sorted_tables


def _copy_tables(source: sa.Connection, target: sa.Connection) -> None:
    tables = copied_tables(target)
    theirs = {table.name: table for table in copied_tables(source)}
    for table in reversed(tables):
        target.execute(sa.delete(table))
    for table in tables:
        columns = [theirs[table.name].c[column.name] for column in table.columns]
        result = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(sa.select(*columns))
        for rows in result.mappings().partitions():
            target.execute(sa.insert(table), [dict(row) for row in rows])
        _continue_numbers(target, table)


def _continue_numbers(connection: sa.Connection, table: sa.Table) -> None:
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence(table.name, column.name))).scalar()
        if sequence is not None:
            highest = sa.func.max(column)
            connection.execute(sa.select(sa.func.setval(sequence, sa.func.coalesce(highest, 1), highest.is_not(None))))
