"""How much each slot of each tier holds, and the numbers of writes: kept together with what is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from sqlalchemy import Connection, delete, func, insert, select, update

from . import schema
from .rows import PointRow
from .tiers import floor


def take_part(connection: Connection) -> int:
    """Return the number of the write that begins."""
    table = schema.store
    connection.execute(update(table).values(last_part=table.c.last_part + 1))
    return connection.execute(select(table.c.last_part)).scalar_one()


def add(connection: Connection, rows: Iterable[PointRow]) -> None:
    """Enter *rows*."""
    entries: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = entries[row.tier, floor(row.bucket, schema.SLOT_SECONDS[row.tier])]
        entry[0] += 1
        entry[1] += len(row.histogram)
    table = schema.ledger
    for (tier, slot), (count, size) in sorted(entries.items()):
        grown = connection.execute(
            update(table)
            .where(table.c.tier == tier, table.c.slot == slot)
            .values(rows=table.c.rows + count, bytes=table.c.bytes + size)
        )
        if not grown.rowcount:
            connection.execute(insert(table).values(tier=tier, slot=slot, rows=count, bytes=size))


def ends(connection: Connection, tier: int) -> tuple[int, int]:
    """Return the oldest and the newest slot of *tier* that hold anything, in Unix seconds; 0 and 0 if none does."""
    table = schema.ledger
    first, last = connection.execute(
        select(func.min(table.c.slot), func.max(table.c.slot)).where(table.c.tier == tier)
    ).one()
    return first or 0, last or 0


def cut(connection: Connection, tier: int, until: int) -> None:
    """Strike out what *tier* held before *until*, the start of a slot."""
    table = schema.ledger
    connection.execute(delete(table).where(table.c.tier == tier, table.c.slot < until))


def forget(connection: Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Strike out *rows*, by tier and bucket (tier, bucket, rows), at the mean size of their slot."""
    gone: Counter[tuple[int, int]] = Counter()
    for tier, bucket, number in rows:
        gone[tier, floor(bucket, schema.SLOT_SECONDS[tier])] += number
    table = schema.ledger
    for (tier, slot), number in sorted(gone.items()):
        here = (table.c.tier == tier, table.c.slot == slot)
        connection.execute(delete(table).where(*here, table.c.rows <= number))
        left = table.c.bytes - table.c.bytes * number / table.c.rows
        connection.execute(update(table).where(*here).values(rows=table.c.rows - number, bytes=left))
