"""Copying a store into another, of any engine: what backup, restore and migrate are.

The points go first, one stretch of time after the other, each added up to one row a key and committed together with the
note of how far the copy is. Everything else follows in one last transaction, which also compares both stores: what is moved
is there as a whole or not at all. A copy that was killed goes on where it was, as long as nobody has written to the source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)

from ..core.errors import StoreError
from . import ledger, rollup, schema, store_fingerprint, tiers
from .engines import database
from .points import Change, Snapshot
from .rows import PointRow
from .store import Store

# Rows held in memory at once. [rows]
STRETCH_ROWS = 50_000
_ROWS_AT_ONCE = 1000
# Of `points`, up to the part.
_KEY_COLUMNS = PointRow._fields.index("part")
# No bucket starts later. [Unix seconds]
_FOREVER = 4_000_000_000
# Kept by what writes, and of no meaning in another database.
_OWN = {"alembic_version", "collectors", "destinations", "identity", "intents", "ledger", "moves"}
# Never empty, and overwritten.
_FILLED = {"store", "rollups"}

# How far the copy into this database is. It is there only while one is under way.
_moves = Table(
    "moves",
    MetaData(),
    # What is being copied, see `_name`.
    Column("source", Text, nullable=False),
    # Stretches that are there.
    Column("done", Integer, nullable=False),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of *tier* in `[start, stop)`, in Unix seconds: about so many of *rows*."""

    tier: int
    start: int
    stop: int
    rows: int


def move(source: Store, target: Store, progress: Callable[[int, int], None]) -> int:
    """Copy all of *source* into *target*, or the rest of it, as of one moment of the source.

    Args:
        source: Others may write to it.
        target: Nobody may write to it.
        progress: Told how many rows of points are done, and of how many.

    Returns:
        How many rows of points the source had.

    Raises:
        StoreError: The target holds something else, one of them cannot be read or written, or what was written differs.
    """
    with database.reading(source.engine) as connection:
        snapshot = Snapshot(connection, source.points)
        stretches = list(stretches_of(connection))
        done = _begin(target, _name(connection))
        total, moved = sum(stretch.rows for stretch in stretches), 0
        progress(moved, total)
        for number, stretch in enumerate(stretches):
            if number >= done:
                rows = source.points.load(connection, stretch.tier, stretch.start, stretch.stop)
                _write(target, sorted(rows), stretch.tier, number)
            moved += stretch.rows
            progress(moved, total)
        _finish(snapshot, target)
    return total


def is_unfinished(engine: Engine) -> bool:
    """Say whether a copy into this database has begun and not ended.

    Raises:
        StoreError: It cannot be read.
    """
    with database.reading(engine) as connection:
        return inspect(connection).has_table(_moves.name)


def _name(connection: Connection) -> str:
    """Return what is copied, in words that change when anyone writes points to it or forgets some."""
    url, table = connection.engine.url, schema.ledger
    place = str(Path(url.database or "").resolve()) if url.get_backend_name() == "sqlite" else database.location(url)
    part = connection.execute(select(schema.store.c.last_part)).scalar_one()
    held = connection.execute(select(func.count(), func.sum(table.c.rows), func.sum(table.c.bytes))).one()
    return f"{place} at {part}, {'/'.join(map(str, held))}"


def stretches_of(connection: Connection) -> Iterator[Stretch]:
    """Yield what the source holds, in the order of the key of `points`, in pieces that fit into memory."""
    table = schema.ledger
    for tier in tiers.read(connection):
        slots = select(table.c.slot, table.c.rows).where(table.c.tier == tier.seconds).order_by(table.c.slot)
        for slot, rows in connection.execute(slots).all():
            stop = slot + schema.SLOT_SECONDS[tier.seconds]
            pieces = -(-rows // STRETCH_ROWS)
            width = tiers.ceil(-(-(stop - slot) // max(pieces, 1)), tier.seconds)
            starts = range(slot, stop, width)
            for start in starts:
                yield Stretch(tier.seconds, start, min(start + width, stop), rows // len(starts))


def _begin(target: Store, source: str) -> int:
    """Return how many stretches are in *target* already."""
    with database.writing(target.engine, "cannot copy into") as connection:
        if not inspect(connection).has_table(_moves.name):
            _refuse_filled(connection, target)
            _moves.create(connection)
            connection.execute(insert(_moves).values(source=source, done=0))
            return 0
        before = connection.execute(select(_moves)).one()
        if before.source == source:
            _log.info("going on with the copy that was interrupted")
            return before.done
        _log.warning("the source is not as it was when the copy was interrupted: starting over")
        for tier in schema.TIERS:
            target.points.cut(connection, tier, _FOREVER)
        # A tier is cut by the services it knows, which come last.
        connection.execute(delete(schema.points))
        connection.execute(delete(schema.ledger))
        connection.execute(update(_moves).values(source=source, done=0))
        return 0


def _refuse_filled(connection: Connection, target: Store) -> None:
    tables = [table for table in copied_tables(connection) if table.name not in _FILLED]
    filled = [table.name for table in tables if connection.execute(select(table).limit(1)).first() is not None]
    if target.points.used_bytes(connection):
        filled.append("points")
    if filled:
        msg = (
            f"{database.location(connection.engine.url)} is not empty (there is something in {', '.join(filled)}); "
            "give a database that holds nothing, or move this one away first"
        )
        raise StoreError(msg)


def _write(target: Store, rows: list[PointRow], tier: int, number: int) -> None:
    """Write the rows of stretch *number* to *target*, and note that they are there."""

    def prepare(connection: Connection) -> Change:
        part = ledger.take_part(connection)
        added = _added_up(rows, tier, part)

        def finish(connection: Connection) -> None:
            ledger.add(connection, added)
            noted = update(_moves).where(_moves.c.done == number).values(done=number + 1)
            if connection.execute(noted).rowcount != 1:
                msg = f"another process copies into {database.location(target.engine.url)} as well; let one of them finish"
                raise StoreError(msg)

        return Change(part, added, finish)

    target.points.apply(target.engine, prepare)


def _added_up(rows: list[PointRow], tier: int, part: int) -> list[PointRow]:
    """Return one row a key, as part *part*; *rows* are sorted."""
    single: list[PointRow] = []
    several: list[PointRow] = []
    for _, found in groupby(rows, lambda row: row[:_KEY_COLUMNS]):
        same = list(found)
        # Nearly all are by themselves: adding up would read and write their histograms for nothing.
        if len(same) == 1:
            single.append(same[0]._replace(part=part))
        else:
            several += same
    return sorted(single + rollup.summed(several, tier, part)) if several else single


def _finish(snapshot: Snapshot, target: Store) -> None:
    """Copy everything but points, and compare."""
    expected = store_fingerprint.read(snapshot)
    with database.writing(target.engine, "cannot copy into") as connection:
        part = connection.execute(select(schema.store.c.last_part)).scalar_one()
        _copy_tables(snapshot.connection, connection)
        numbers = schema.store
        # Both have given numbers to what is here now.
        connection.execute(update(numbers).where(numbers.c.last_part < part).values(last_part=part))
        differences = store_fingerprint.differences(
            expected, store_fingerprint.read(Snapshot(connection, target.points))
        )
        if differences:
            msg = (
                f"{database.location(target.engine.url)} is not what it was copied from, and stays unfinished: "
                f"{'; '.join(differences[:5])}. Empty it, and copy again"
            )
            raise StoreError(msg)
        _moves.drop(connection)


def copied_tables(connection: Connection) -> list[Table]:
    """Return all tables that are copied as they are, each behind those it refers to."""
    # Partitions of points are tables, too.
    names = inspect(connection).get_table_names()
    found = MetaData()
    found.reflect(connection, only=[name for name in names if name not in _OWN and not name.startswith("points")])
    return found.sorted_tables


def _copy_tables(source: Connection, target: Connection) -> None:
    tables = copied_tables(target)
    theirs = {table.name: table for table in copied_tables(source)}
    for table in reversed(tables):
        target.execute(delete(table))
    for table in tables:
        columns = [theirs[table.name].c[column.name] for column in table.columns]
        result = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(select(*columns))
        for rows in result.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in rows])
        _continue_numbers(target, table)


def _continue_numbers(connection: Connection, table: Table) -> None:
    """Let new rows get numbers past those that were copied; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        sequence = connection.execute(select(func.pg_get_serial_sequence(table.name, column.name))).scalar()
        if sequence is not None:
            highest = func.max(column)
            connection.execute(select(func.setval(sequence, func.coalesce(highest, 1), highest.is_not(None))))
