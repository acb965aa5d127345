"""The inbox: what came of requests that may not be whole yet, and what folding it gives.

A parcel is written in the transaction that counts its batch, and taken out, as a whole, in the one that counts what it was
folded to; what of it must wait longer goes back in as a parcel of its own. So each span is in the inbox or in the points,
whoever is killed, and whichever collector folds. What is in a parcel the store does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from ..core.errors import StoreError
from . import schema
from .records import Batch, KeptTrace, Point, PointColumns

# A collector that folds for longer is believed dead. [seconds]
CLAIM_SECONDS = 60
_IDS_AT_ONCE = 500
# Most have some tens of kilobytes; one may be as large as a body.
_LOADED_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Parcel:
    """Spans that came together, or are left of such.

    Args:
        received: When. [Unix seconds]
        counted: Whether they are requests that were counted, kept to recognise what comes of them later.
        spans: Encoded; empty in a delivery, until they are loaded.
        id: Its number in the store, 0 before it has one.
        size: Of the spans in the store, 0 before they are there. [bytes]
    """

    received: int
    counted: bool
    spans: bytes
    id: int = 0
    size: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of its spans, loaded or not."""
        return self.size or len(self.spans)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is to be folded.

    Args:
        now: The time. [Unix seconds]
        parcels: What waits, oldest first.
        counted: Requests that were counted, oldest first.
        complete: Whether *parcels* is all that waits.
        load: Yields parcels of these with their spans, in their order, few of them in memory at a time.
    """

    now: int
    parcels: Sequence[Parcel]
    counted: Sequence[Parcel]
    complete: bool
    load: Callable[[Sequence[Parcel]], Iterable[Parcel]] = iter


@dataclass(frozen=True, slots=True)
class Folded:
    """What a delivery became.

    Args:
        points: What was counted.
        traces: What was kept.
        taken: The numbers of the parcels that are done with.
        left: What goes back in.
    """

    points: Sequence[Point] | PointColumns = ()
    traces: Sequence[KeptTrace] = ()
    taken: Sequence[int] = ()
    left: Sequence[Parcel] = ()


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """How much is in the inbox.

    Args:
        parcels: How many parcels wait.
        size_bytes: Their size.
        oldest: When the first of them was received, None if there is none. [Unix seconds]
    """

    parcels: int = 0
    size_bytes: int = 0
    oldest: int | None = None


Fold: TypeAlias = Callable[[Delivery], Folded]


def put_spans(connection: Connection, batches: Sequence[Batch], now: int) -> None:
    """Put in the spans of *batches*, received *now*, in Unix seconds."""
    _insert_parcels(connection, [Parcel(now, counted=False, spans=batch.spans) for batch in batches if batch.spans])


def claim_folding(connection: Connection, now: int) -> bool:
    """Note that one folds from *now* on, in Unix seconds; return whether nobody else does."""
    table = schema.store
    # A time that is too far ahead was noted by a clock that was wrong.
    free = (table.c.folding_until <= now) | (table.c.folding_until > now + CLAIM_SECONDS)
    return connection.execute(update(table).where(free).values(folding_until=now + CLAIM_SECONDS)).rowcount == 1


def release_folding(connection: Connection) -> None:
    """Let others fold."""
    connection.execute(update(schema.store).values(folding_until=0))


def read_backlog(connection: Connection) -> InboxBacklog:
    """Return how much waits."""
    table = schema.inbox
    count, size, oldest = connection.execute(
        select(func.count(), func.sum(table.c.size), func.min(table.c.received)).where(table.c.counted == 0)
    ).one()
    return InboxBacklog(count, int(size or 0), oldest)


def read_delivery(connection: Connection, now: int, max_bytes: int) -> Delivery:
    """Return what is in the inbox *now*, in Unix seconds: the oldest that waits, and all that was counted.

    One parcel is returned however large it is, more only up to *max_bytes* together. Their spans can be loaded as long as the
    transaction lasts.
    """
    table = schema.inbox
    columns = (table.c.received, table.c.counted, table.c.id, table.c.size)
    everything = [
        Parcel(row.received, bool(row.counted), b"", row.id, row.size)
        for row in connection.execute(select(*columns).order_by(table.c.received, table.c.id))
    ]
    waiting = [parcel for parcel in everything if not parcel.counted]
    room, chosen = max_bytes, list[Parcel]()
    for parcel in waiting:
        if chosen and parcel.size > room:
            break
        chosen.append(parcel)
        room -= parcel.size
    return Delivery(
        now,
        chosen,
        [parcel for parcel in everything if parcel.counted],
        complete=len(chosen) == len(waiting),
        load=partial(_load_spans, connection),
    )


def holds_parcels(connection: Connection, numbers: Sequence[int]) -> bool:
    """Say whether all parcels of these *numbers* are still there."""
    table = schema.inbox
    found = sum(
        connection.execute(select(func.count()).select_from(table).where(table.c.id.in_(some))).scalar_one()
        for some in _id_chunks(numbers)
    )
    return found == len(numbers)


def replace_parcels(connection: Connection, folded: Folded) -> None:
    """Take out what was folded, and put back what is left of it.

    Raises:
        StoreError: Somebody else has taken it out: nothing of this transaction may be committed.
    """
    table = schema.inbox
    gone = sum(
        connection.execute(delete(table).where(table.c.id.in_(some))).rowcount for some in _id_chunks(folded.taken)
    )
    if gone != len(folded.taken):
        msg = "spans that were folded here have been folded elsewhere; nothing was counted twice"
        raise StoreError(msg)
    _insert_parcels(connection, folded.left)


def _insert_parcels(connection: Connection, parcels: Sequence[Parcel]) -> None:
    rows = [
        {
            "received": parcel.received,
            "counted": int(parcel.counted),
            "size": len(parcel.spans),
            "spans": parcel.spans,
        }
        for parcel in parcels
    ]
    if rows:
        connection.execute(insert(schema.inbox), rows)


def _load_spans(connection: Connection, parcels: Sequence[Parcel]) -> Iterator[Parcel]:
    table = schema.inbox
    for first in range(0, len(parcels), _LOADED_AT_ONCE):
        some = parcels[first : first + _LOADED_AT_ONCE]
        wanted = select(table.c.id, table.c.spans).where(table.c.id.in_([parcel.id for parcel in some]))
        spans = {row.id: bytes(row.spans) for row in connection.execute(wanted)}
        for parcel in some:
            yield Parcel(parcel.received, parcel.counted, spans.pop(parcel.id), parcel.id, parcel.size)


def _id_chunks(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Return *numbers* in pieces that a statement can name."""
    return [numbers[start : start + _IDS_AT_ONCE] for start in range(0, len(numbers), _IDS_AT_ONCE)]
