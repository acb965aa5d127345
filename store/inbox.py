"""The inbox: spans of requests that may be incomplete, and their aggregation by one collector at a time.

A parcel of spans is written in the transaction that counts its batch. The whole parcel is removed in the transaction that counts
the points aggregated from it; spans that must wait longer are written back as a new parcel. So each span is either in the inbox
or in the points, whichever process is killed and whichever collector aggregates. The store does not decode parcels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select

from ..core.errors import StoreError
from . import schema
from .points import Point, PointColumns
from .records import RetainedTrace

# Lease of the collector that aggregates; one that needs longer is considered dead. [seconds]
LEASE = "aggregate"
CLAIM_SECONDS = 60
_IDS_AT_ONCE = 500
# Number of parcels loaded at once; most have some tens of kilobytes, but a parcel may be as large as a body.
_LOADED_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Parcel:
    """Spans that were received together, or those of them that still wait."""

    received: int  # Time of receipt. [Unix seconds]
    counted: bool  # Whether the requests are already counted; their roots are retained to recognise late spans
    spans: bytes  # Encoded spans; empty until loaded
    id: int = 0  # Number in the store; 0 before it has one
    size: int = 0  # Size of the spans in the store; 0 before they are written. [bytes]

    @property
    def size_bytes(self) -> int:
        return self.size or len(self.spans)


@dataclass(frozen=True, slots=True)
class AggregationInput:
    now: int  # Current time. [Unix seconds]
    parcels: Sequence[Parcel]  # Waiting parcels, oldest first
    counted: Sequence[Parcel]  # Parcels of counted requests, oldest first
    complete: bool  # Whether *parcels* has all waiting parcels
    # Function that yields the given parcels with their spans, in order, few of them in memory at a time
    load: Callable[[Sequence[Parcel]], Iterable[Parcel]] = iter


@dataclass(frozen=True, slots=True)
class AggregationResult:
    points: Sequence[Point] | PointColumns = ()
    traces: Sequence[RetainedTrace] = ()
    remove_ids: Sequence[int] = ()
    remaining: Sequence[Parcel] = ()


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """Number, size and age of the parcels in the inbox."""

    parcels: int = 0
    size_bytes: int = 0
    oldest: int | None = None  # Time of receipt of the oldest parcel; None without parcels. [Unix seconds]


Aggregation: TypeAlias = Callable[[AggregationInput], AggregationResult]


def put_spans(connection: Connection, spans: Sequence[bytes], now: int) -> None:
    """Write each of the encoded *spans* as a parcel received at *now*, in Unix seconds."""
    _insert_parcels(connection, [Parcel(now, counted=False, spans=encoded) for encoded in spans])


def read_backlog(connection: Connection) -> InboxBacklog:
    table = schema.inbox
    count, size, oldest = connection.execute(
        select(func.count(), func.sum(table.c.size), func.min(table.c.received)).where(table.c.counted == 0)
    ).one()
    return InboxBacklog(count, int(size or 0), oldest)


def read_delivery(connection: Connection, now: int, max_bytes: int) -> AggregationInput:
    """Return the input of an aggregation at *now*, in Unix seconds: the oldest waiting parcels and all counted parcels.

    At least one waiting parcel is returned, whatever its size, and further parcels up to *max_bytes* in total. The spans can be
    loaded until the transaction ends.
    """
    table = schema.inbox
    columns = (table.c.received, table.c.counted, table.c.id, table.c.size)
    everything = [
        Parcel(row.received, bool(row.counted), b"", row.id, row.size)
        for row in connection.execute(select(*columns).order_by(table.c.received, table.c.id))
    ]
    waiting = [parcel for parcel in everything if not parcel.counted]
    free_bytes, chosen = max_bytes, list[Parcel]()
    for parcel in waiting:
        if chosen and parcel.size > free_bytes:
            break
        chosen.append(parcel)
        free_bytes -= parcel.size
    return AggregationInput(
        now,
        chosen,
        [parcel for parcel in everything if parcel.counted],
        complete=len(chosen) == len(waiting),
        load=partial(_load_spans, connection),
    )


def holds_parcels(connection: Connection, numbers: Sequence[int]) -> bool:
    table = schema.inbox
    count = sum(
        connection.execute(select(func.count()).select_from(table).where(table.c.id.in_(some))).scalar_one()
        for some in _id_chunks(numbers)
    )
    return count == len(numbers)


def replace_parcels(connection: Connection, result: AggregationResult) -> None:
    """Remove the aggregated parcels, and write back the parcels with spans that still wait.

    Raises:
        StoreError: Another collector has removed a parcel, so the transaction must be rolled back.
    """
    table = schema.inbox
    gone = sum(
        connection.execute(delete(table).where(table.c.id.in_(some))).rowcount for some in _id_chunks(result.remove_ids)
    )
    if gone != len(result.remove_ids):
        msg = "these spans were already processed by another collector; nothing was counted twice"
        raise StoreError(msg)
    _insert_parcels(connection, result.remaining)


def _insert_parcels(connection: Connection, parcels: Sequence[Parcel]) -> None:
    rows = [
        {"received": parcel.received, "counted": int(parcel.counted), "size": len(parcel.spans), "spans": parcel.spans}
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
    return [numbers[start : start + _IDS_AT_ONCE] for start in range(0, len(numbers), _IDS_AT_ONCE)]
