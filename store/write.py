"""Writing of batches, each exactly once, into every tier that has to contain them, and the ledger of the rows.

Points aggregated from spans of the inbox are written as a batch that removes the parcels of these spans.

The ledger has the number and size of the rows in each slot; it is updated in the transaction that writes or deletes the rows.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from ..core.columns import Ints
from ..core.names import (
    COLLECTOR_LOST,
    HARDWARE,
    OPEN_TIME,
    PROBE_DURATION,
    PROFILE_TIME,
    REPLICA_STAGE_TIME,
    REQUEST_BY_ATTRIBUTE,
)
from . import events, inbox, records, schema
from .engines import database
from .inbox import AggregationResult
from .points import Identity, PointColumns, PointRow, PointTable, as_columns, sum_rows
from .records import Batch, RetainedTrace
from .schema import floor_to, is_storable, storable, take_part
from .series import MAX_SKEW_SECONDS, SeriesIndex, SeriesNumbers
from .storage import Points, PreparedWrite

_NS = 1_000_000_000
# Maximum number of ids in one statement; the default limit of SQLite is 32,766.
_IDS_AT_ONCE = 1000
# Metrics whose points do not say when a series had requests; attributes describe a whole minute.
_NOT_REQUESTS = {
    schema.METRIC_CODES[name]
    for name in (HARDWARE, OPEN_TIME, REQUEST_BY_ATTRIBUTE, REPLICA_STAGE_TIME, PROBE_DURATION, COLLECTOR_LOST)
}
# Metrics whose keys have a cap that starts anew each hour.
_CAPPED_BY_HOUR = frozenset({HARDWARE, OPEN_TIME, PROFILE_TIME, REQUEST_BY_ATTRIBUTE, REPLICA_STAGE_TIME})
# Columns of `traces`, in the order of `_trace_row`.
_TRACE_COLUMNS = ("trace_id", "span_id", "series_id", "started", "duration", "because", "dominant", "stages", "spans")
_TraceRow: TypeAlias = tuple[str, str, int, int, int, str, str, str, bytes]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Time of a write, and the oldest valid time of its data; both in Unix seconds."""

    now: int
    oldest: int

    def valid_times(self, at: Ints) -> Ints:
        """Return the times *at*; times that a wrong clock must have caused are replaced by the time of the write."""
        return np.where((self.oldest <= at) & (at <= self.now + MAX_SKEW_SECONDS), at, self.now)


def prepare_batches(
    connection: Connection, batches: Sequence[Batch], index: SeriesIndex, arrival: Arrival, points: Points
) -> tuple[list[bool], PreparedWrite | None]:
    """Return for each batch whether it is new, and the write that counts the new ones; None without any."""
    batches = [_storable_batch(batch) for batch in batches]
    fresh = _is_new(connection, batches)
    chosen = [batch for batch, new in zip(batches, fresh, strict=True) if new]
    if not chosen:
        return fresh, None
    if not any(len(batch.points) or batch.traces for batch in chosen):
        # The following steps concern series, which spans in the inbox do not have yet.
        return fresh, PreparedWrite(0, (), lambda connection: _write_batches(connection, chosen, arrival.now))
    index.refresh(connection, database.generation(connection))
    sent = PointColumns.join([as_columns(batch.points) for batch in chosen])
    table = _finest_table(connection, sent, index, arrival)
    part = take_part(connection)
    rows = _rows_by_tier(table, points, index, part, schema.read_tiers(connection))

    def finish(connection: Connection) -> None:
        _write_batches(connection, chosen, arrival.now)
        traces = [trace for batch in chosen for trace in batch.traces]
        owners = _insert_traces(connection, traces, index, arrival)
        add_to_ledger(connection, rows)
        touched = {*np.unique(table.service).tolist(), *(owner.service_id for owner in owners)}
        _set_revision(connection, touched, part)
        index.widen(connection, _request_buckets(table))

    return fresh, PreparedWrite(part, rows, finish)


def _storable_batch(batch: Batch) -> Batch:
    traces = [_storable_trace(trace) for trace in batch.traces]
    return replace(batch, id=storable(batch.id), instance=storable(batch.instance), traces=traces)


def _storable_trace(trace: RetainedTrace) -> RetainedTrace:
    names = (trace.trace_id, trace.span_id, trace.because, trace.dominant)
    if all(map(is_storable, names)):
        return trace
    trace_id, span_id, because, dominant = map(storable, names)
    return replace(trace, trace_id=trace_id, span_id=span_id, because=because, dominant=dominant)


def _is_new(connection: Connection, batches: Sequence[Batch]) -> list[bool]:
    table = schema.batches
    stored = set(connection.scalars(select(table.c.id).where(table.c.id.in_([batch.id for batch in batches]))))
    fresh: list[bool] = []
    for batch in batches:
        fresh.append(batch.id not in stored)
        stored.add(batch.id)
    return fresh


def _write_batches(connection: Connection, batches: Sequence[Batch], now: int) -> None:
    rows = [
        {"id": batch.id, "received": now, "instance": batch.instance, "dropped": batch.dropped} for batch in batches
    ]
    connection.execute(insert(schema.batches), rows)
    if spans := [batch.spans for batch in batches if batch.spans]:
        inbox.put_spans(connection, spans, now)
    if loads := [load for batch in batches for load in batch.loads]:
        events.write_loads(connection, loads)


def _finest_table(connection: Connection, points: PointColumns, index: SeriesIndex, arrival: Arrival) -> PointTable:
    at = arrival.valid_times(points.at)
    bucket = at - at % schema.FINEST
    keys = index.keys
    key = keys.find(points.identities)
    # In the order of arrival: if a cap does not allow all series, the first ones are counted under their own names.
    for row in np.flatnonzero(key < 0).tolist():
        key[row] = _find_key(connection, points.identities[row], index, int(bucket[row]))
    service, metric, series, stage = keys.columns(key)
    table = PointTable(service, metric, bucket, series, stage, points.histograms, keys.stages)
    return table.added_up(schema.FINEST)


def _find_key(connection: Connection, about: Identity, index: SeriesIndex, at: int) -> int:
    if (key := index.keys.known.get(about)) is not None:
        return key
    interned = index.intern(connection, about.series, at)
    stage = _row_stage(connection, about, interned.service_id, index, at)
    number = index.keys.add(interned.service_id, schema.METRIC_CODES[about.metric], interned.series_id, stage)
    # The key of a point with a cap for each hour, or of a service beyond its cap, may change.
    if about.metric not in _CAPPED_BY_HOUR and index.is_final(about.series):
        index.keys.remember(about, number)
    return number


def _row_stage(connection: Connection, about: Identity, service_id: int, index: SeriesIndex, at: int) -> str:
    if about.metric in (HARDWARE, OPEN_TIME):
        return index.place(service_id, about.stage, at)
    if about.metric == PROFILE_TIME:
        return index.stack(connection, service_id, about.stage, at)
    if about.metric == REQUEST_BY_ATTRIBUTE:
        return index.attribute(service_id, about.stage, at)
    if about.metric == REPLICA_STAGE_TIME:
        return index.replica_stage(connection, service_id, about.stage, at)
    if about.metric == COLLECTOR_LOST:
        return about.stage
    return index.stage(connection, service_id, about.stage)


def _rows_by_tier(
    table: PointTable, points: Points, index: SeriesIndex, part: int, tiers: Sequence[schema.Tier]
) -> list[PointRow]:
    finest, *coarser = tiers
    rows = points.finest_rows(table.where(table.bucket >= finest.kept_from), part)
    for tier in coarser:
        late = table.where((tier.kept_from <= table.bucket) & (table.bucket < tier.watermark))
        if len(late):
            added = late.rows(schema.FINEST, part)
            added += [total for row in added if (total := row.in_total(index.total_of(row.series_id)))]
            rows += sum_rows(PointTable.of(added), tier.seconds, part)
    return rows


def _request_buckets(table: PointTable) -> list[tuple[int, int]]:
    of_requests = ~np.isin(table.metric, list(_NOT_REQUESTS))
    pairs = np.unique(np.stack((table.series, table.bucket), axis=1)[of_requests], axis=0)
    return [(series, bucket) for series, bucket in pairs.tolist()]


def _insert_traces(
    connection: Connection, traces: Sequence[RetainedTrace], index: SeriesIndex, arrival: Arrival
) -> list[SeriesNumbers]:
    if not traces:
        return []
    table = schema.traces
    ids = list({trace.trace_id for trace in traces})
    stored: set[tuple[str, str]] = set()
    for first in range(0, len(ids), _IDS_AT_ONCE):
        some = table.c.trace_id.in_(ids[first : first + _IDS_AT_ONCE])
        stored |= {
            (row[0], row[1]) for row in connection.execute(select(table.c.trace_id, table.c.span_id).where(some))
        }
    named = {(trace.trace_id, trace.span_id): trace for trace in traces}
    fresh = {name: trace for name, trace in named.items() if name not in stored}
    owners: list[SeriesNumbers] = []
    rows: list[_TraceRow] = []
    pack = records.trace_packer()
    times = [trace.started_ns // _NS for trace in fresh.values()]
    for trace, at, valid_at in zip(
        fresh.values(), times, arrival.valid_times(np.array(times, np.int64)).tolist(), strict=True
    ):
        started = trace.started_ns if valid_at == at else valid_at * _NS
        owner = index.intern(connection, trace.series, floor_to(valid_at, schema.FINEST))
        owners.append(owner)
        rows.append(_trace_row(trace, owner.series_id, started, pack))
    if rows:
        database.dialect(connection.engine.url).insert_rows(connection, table.name, _TRACE_COLUMNS, rows)
    return owners


def _trace_row(trace: RetainedTrace, series_id: int, started_ns: int, pack: Callable[[str], bytes]) -> _TraceRow:
    document = trace.document
    if document is None:
        written = {"spans": trace.spans, "attributes": trace.attributes, "parent": trace.parent_id}
        document = pack(records.encode_json(written))
    return (
        trace.trace_id,
        trace.span_id,
        series_id,
        started_ns,
        trace.duration_ns,
        trace.because,
        trace.dominant,
        records.encode_json(trace.stages_ns),
        document,
    )


def _set_revision(connection: Connection, service_ids: set[int], revision: int) -> None:
    table = schema.services
    connection.execute(update(table).where(table.c.id.in_(service_ids)).values(revision=revision))


def prepare_aggregated(
    connection: Connection, result: AggregationResult, index: SeriesIndex, arrival: Arrival, points: Points
) -> PreparedWrite | None:
    if not inbox.holds_parcels(connection, result.remove_ids):
        return None
    batch = Batch(f"fold#{uuid.uuid4().hex}", result.points, list(result.traces))
    _, change = prepare_batches(connection, [batch], index, arrival, points)
    if change is None:
        raise AssertionError  # no other batch has this name
    write = change.finish

    def finish(connection: Connection) -> None:
        inbox.replace_parcels(connection, result)
        write(connection)

    return replace(change, finish=finish)


def add_to_ledger(connection: Connection, rows: Iterable[PointRow]) -> None:
    entries: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = entries[row.tier, floor_to(row.bucket, schema.SLOT_SECONDS[row.tier])]
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


def ledger_ends(connection: Connection, tier: int) -> tuple[int, int]:
    """Return the starts of the oldest and the newest non-empty slot of *tier*, in Unix seconds; (0, 0) if there is none."""
    table = schema.ledger
    first, last = connection.execute(
        select(func.min(table.c.slot), func.max(table.c.slot)).where(table.c.tier == tier)
    ).one()
    return first or 0, last or 0


def cut_ledger(connection: Connection, tier: int, until: int) -> None:
    table = schema.ledger
    connection.execute(delete(table).where(table.c.tier == tier, table.c.slot < until))


def subtract_from_ledger(connection: Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Subtract deleted *rows*, given as (tier, bucket, number of rows), from the ledger, at the mean row size of their slot."""
    gone: Counter[tuple[int, int]] = Counter()
    for tier, bucket, number in rows:
        gone[tier, floor_to(bucket, schema.SLOT_SECONDS[tier])] += number
    table = schema.ledger
    for (tier, slot), number in sorted(gone.items()):
        here = (table.c.tier == tier, table.c.slot == slot)
        connection.execute(delete(table).where(*here, table.c.rows <= number))
        left = table.c.bytes - table.c.bytes * number / table.c.rows
        connection.execute(update(table).where(*here).values(rows=table.c.rows - number, bytes=left))
