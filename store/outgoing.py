"""The outbox of forwarding: bodies that wait for their destinations, and the collector that sends to each destination.

A body is written in the transaction that counts its batch, so that every acknowledged body is either here or was accepted by
its destination, whichever process is killed. One collector at a time holds a destination, under a lease that it renews; it deletes
accepted bodies. A body that was sent but not yet deleted when its collector died or lost the lease is sent again: at
least once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from . import schema

_IDS_AT_ONCE = 500
# Rows scanned at once for the oldest ones to drop.
_DROP_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A body for one destination.

    Args:
        destination: Name of the destination.
        signal: metrics, traces or logs.
        media_type: Content type of the body.
        body: The body as received, decompressed and then compressed with zstd.
        via: Ids of the collectors it has passed, separated by commas.
        received: Time of receipt. [Unix seconds]
        id: Number in the store; 0 before it has one.
    """

    destination: str
    signal: str
    media_type: str
    body: bytes
    via: str = ""
    received: int = 0
    id: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Bodies that wait for a destination.

    Args:
        bodies: Their number.
        size_bytes: Their compressed size.
        oldest: Receipt of the oldest one; None without any. [Unix seconds]
    """

    bodies: int = 0
    size_bytes: int = 0
    oldest: int | None = None


def put_bodies(connection: Connection, bodies: Sequence[Outgoing], now: int) -> None:
    """Write *bodies*, at least one, received *now*, in Unix seconds."""
    rows = [
        {
            "destination": each.destination,
            "signal": each.signal,
            "media_type": each.media_type,
            "via": each.via,
            "received": now,
            "size": len(each.body),
            "body": each.body,
        }
        for each in bodies
    ]
    connection.execute(insert(schema.outgoing), rows)


def store_identity(connection: Connection) -> str:
    """Return the unique id of this store."""
    return connection.execute(select(schema.identity.c.id)).scalar_one()


def hold_destination(connection: Connection, destination: str, holder: str, now: float, seconds: float) -> bool:
    """Acquire or renew the lease of *destination* for *holder* from *now* on, in Unix seconds; return whether it is held."""
    table = schema.destinations
    mine = update(table).where(
        table.c.name == destination,
        (table.c.holder == holder) | (table.c.until <= now) | (table.c.until > now + 86_400),
    )
    if connection.execute(mine.values(holder=holder, until=now + seconds)).rowcount:
        return True
    if connection.execute(select(table.c.name).where(table.c.name == destination)).first() is not None:
        return False
    connection.execute(insert(table).values(name=destination, holder=holder, until=now + seconds))
    return True


def release_destinations(connection: Connection, holder: str) -> None:
    """Release all destinations of *holder*, so that others need not wait for its leases to expire."""
    table = schema.destinations
    connection.execute(update(table).where(table.c.holder == holder).values(until=0.0))


def oldest_bodies(connection: Connection, destination: str, max_bodies: int, max_bytes: int) -> list[Outgoing]:
    """Return the oldest bodies for *destination*: at least one, however large, and more only up to both limits."""
    table = schema.outgoing
    sizes = connection.execute(
        select(table.c.id, table.c.size)
        .where(table.c.destination == destination)
        .order_by(table.c.destination, table.c.id)
        .limit(max_bodies)
    ).all()
    room, chosen = max_bytes, list[int]()
    for number, size in sizes:
        if chosen and size > room:
            break
        chosen.append(number)
        room -= size
    rows = connection.execute(select(table).where(table.c.id.in_(chosen)).order_by(table.c.id))
    return [
        Outgoing(row.destination, row.signal, row.media_type, bytes(row.body), row.via, row.received, row.id)
        for row in rows
    ]


def remove_bodies(connection: Connection, numbers: Sequence[int]) -> None:
    """Delete the bodies of these *numbers*; missing ones are ignored."""
    table = schema.outgoing
    for start in range(0, len(numbers), _IDS_AT_ONCE):
        connection.execute(delete(table).where(table.c.id.in_(numbers[start : start + _IDS_AT_ONCE])))


def read_backlogs(connection: Connection) -> dict[str, Backlog]:
    """Return the backlog by destination."""
    table = schema.outgoing
    rows = connection.execute(
        select(table.c.destination, func.count(), func.sum(table.c.size), func.min(table.c.received)).group_by(
            table.c.destination
        )
    )
    return {name: Backlog(count, int(size), first) for name, count, size, first in rows}


def drop_oldest(connection: Connection, destination: str, max_bytes: int) -> int:
    """Drop the oldest bodies for *destination* until the rest is at most *max_bytes*; return their number."""
    table = schema.outgoing
    mine = table.c.destination == destination
    over = int(connection.execute(select(func.sum(table.c.size)).where(mine)).scalar() or 0) - max_bytes
    dropped = 0
    while over > 0:
        first = select(table.c.id, table.c.size).where(mine).order_by(table.c.destination, table.c.id)
        chosen = list[int]()
        for number, size in connection.execute(first.limit(_DROP_ROWS)):
            if over <= 0:
                break
            chosen.append(number)
            over -= size
        remove_bodies(connection, chosen)
        dropped += len(chosen)
    return dropped


def drop_unknown_destinations(connection: Connection, destinations: Collection[str], before: int) -> int:
    """Drop bodies received before *before*, in Unix seconds, for none of *destinations*; return their number."""
    table = schema.outgoing
    old = table.c.destination.not_in(list(destinations)) & (table.c.received < before)
    return connection.execute(delete(table).where(old)).rowcount
