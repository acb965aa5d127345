"""Writing batches: each once, in every tier that has to have it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, bindparam, case, insert, select, update

from ...core.histogram import SCALE, Histogram
from . import ledger, schema, tiers
from .clock import MAX_SKEW_SECONDS
from .encoding import Buckets, encode
from .points import Change
from .records import Batch, KeptTrace, Point
from .rows import PointKey, PointRow
from .series import Interned, SeriesIndex
from .texts import storable

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a write happens, and the oldest time it may be about; both in Unix seconds."""

    now: int
    oldest: int

    def believe(self, at: int) -> int:
        """Return *at*, or now if the sender's clock cannot be right: such data count when they arrive."""
        return at if self.oldest <= at <= self.now + MAX_SKEW_SECONDS else self.now


def prepare(
    connection: Connection, batches: Sequence[Batch], index: SeriesIndex, arrival: Arrival
) -> tuple[list[bool], Change | None]:
    """Find out what of *batches* was not counted before, and what rows it makes.

    Returns:
        For each batch whether it is new, and the write that counts those; None if there is nothing to write.
    """
    batches = [_storable(batch) for batch in batches]
    fresh = _fresh(connection, batches)
    chosen = [batch for batch, new in zip(batches, fresh, strict=True) if new]
    if not chosen:
        return fresh, None
    index.refresh(connection)
    keyed = [_keyed(connection, point, index, arrival) for batch in chosen for point in batch.points]
    part = ledger.take_part(connection)
    rows = _rows(keyed, part, tiers.read(connection))

    def finish(connection: Connection) -> None:
        _insert_batches(connection, chosen, arrival.now)
        traces = [trace for batch in chosen for trace in batch.traces]
        owners = _insert_traces(connection, traces, index, arrival)
        ledger.add(connection, rows)
        touched = {point.key.service_id for point in keyed} | {owner.service_id for owner in owners}
        _set_revision(connection, touched, part)
        _update_seen(connection, [point.key for point in keyed])

    return fresh, Change(part, rows, finish)


def _storable(batch: Batch) -> Batch:
    traces = [
        replace(
            trace,
            trace_id=storable(trace.trace_id),
            span_id=storable(trace.span_id),
            because=storable(trace.because),
            dominant=storable(trace.dominant),
        )
        for trace in batch.traces
    ]
    return replace(batch, id=storable(batch.id), instance=storable(batch.instance), traces=traces)


def _fresh(connection: Connection, batches: Sequence[Batch]) -> list[bool]:
    table = schema.batches
    known = set(connection.scalars(select(table.c.id).where(table.c.id.in_([batch.id for batch in batches]))))
    fresh: list[bool] = []
    for batch in batches:
        fresh.append(batch.id not in known)
        known.add(batch.id)
    return fresh


def _insert_batches(connection: Connection, batches: Sequence[Batch], now: int) -> None:
    rows = [
        {"id": batch.id, "received": now, "instance": batch.instance, "dropped": batch.dropped} for batch in batches
    ]
    connection.execute(insert(schema.batches), rows)


class _Keyed(NamedTuple):
    """A point, with the keys of its series and of the total."""

    key: PointKey
    total: PointKey
    histogram: Histogram


def _keyed(connection: Connection, point: Point, index: SeriesIndex, arrival: Arrival) -> _Keyed:
    bucket = tiers.floor(arrival.believe(point.at), schema.FINEST)
    interned = index.intern(connection, point.series, bucket)
    stage = index.stage(connection, interned.service_id, point.stage)
    code = schema.METRIC_CODES[point.metric]
    key = PointKey(interned.service_id, code, bucket, interned.series_id, stage)
    return _Keyed(key, key.of_total(interned.total_id), point.histogram)


def _rows(keyed: Sequence[_Keyed], part: int, known: Sequence[tiers.Tier]) -> list[PointRow]:
    """Return the rows of the finest tier, and of every other whose watermark has passed them."""
    finest, *coarser = known
    rows = point_rows(
        finest.seconds,
        add_up((point.key, point.histogram) for point in keyed if point.key.bucket >= finest.kept_from),
        part,
    )
    for tier in coarser:
        late = [
            (key.at_tier(tier.seconds), point.histogram)
            for point in keyed
            if tier.kept_from <= point.key.bucket < tier.watermark
            for key in (point.key, point.total)
        ]
        rows += point_rows(tier.seconds, add_up(late), part)
    return rows


def add_up(keyed: Iterable[tuple[PointKey, Histogram]]) -> dict[PointKey, Histogram]:
    """Return one histogram for each key; those given are not changed."""
    total: dict[PointKey, Histogram] = {}
    own: set[PointKey] = set()
    for key, histogram in keyed:
        if key not in total and histogram.scale <= SCALE:
            total[key] = histogram
            continue
        if key not in own:
            copy = Histogram(scale=SCALE)
            if key in total:
                copy.merge(total[key])
            total[key] = copy
            own.add(key)
        total[key].merge(histogram if histogram.scale <= SCALE else _coarse(histogram))
    return total


def _coarse(histogram: Histogram) -> Histogram:
    copy = Histogram(histogram.scale, dict(histogram.buckets), histogram.zero, histogram.sum)
    copy.downscale(SCALE)
    return copy


def point_rows(tier: int, total: dict[PointKey, Histogram], part: int) -> list[PointRow]:
    """Return *total* as rows of `points`, in the order of its key."""
    keys = sorted(total)
    histograms = [total[key] for key in keys]
    blobs = encode(_columns(histograms))
    return [
        PointRow(tier, *key, part, histogram.scale, histogram.zero, histogram.count, histogram.sum, blob)
        for key, histogram, blob in zip(keys, histograms, blobs, strict=True)
    ]


def _columns(histograms: Sequence[Histogram]) -> Buckets:
    pairs = [pair for histogram in histograms for pair in sorted(histogram.buckets.items()) if pair[1]]
    sizes = [sum(1 for count in histogram.buckets.values() if count) for histogram in histograms]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Buckets(np.cumsum([0, *sizes], dtype=np.int64), table[:, 0], table[:, 1])


def _insert_traces(
    connection: Connection, traces: Sequence[KeptTrace], index: SeriesIndex, arrival: Arrival
) -> list[Interned]:
    """Write the traces that are not there yet; return the series of those written."""
    table = schema.traces
    ids = {trace.trace_id for trace in traces}
    found = connection.execute(select(table.c.trace_id, table.c.span_id).where(table.c.trace_id.in_(ids)))
    known = {(row.trace_id, row.span_id) for row in found}
    named = {(trace.trace_id, trace.span_id): trace for trace in traces}
    fresh = {name: trace for name, trace in named.items() if name not in known}
    owners: list[Interned] = []
    rows: list[dict[str, Any]] = []
    for trace in fresh.values():
        started = trace.started_ns
        if arrival.believe(started // _NS) != started // _NS:
            started = arrival.now * _NS
        owner = index.intern(connection, trace.series, tiers.floor(started // _NS, schema.FINEST))
        owners.append(owner)
        rows.append(_trace_row(trace, owner.series_id, started))
    if rows:
        connection.execute(insert(table), rows)
    return owners


def _trace_row(trace: KeptTrace, series_id: int, started_ns: int) -> dict[str, Any]:
    document = json.dumps({"spans": trace.spans, "attributes": trace.attributes}, separators=(",", ":"))
    return {
        "trace_id": trace.trace_id,
        "span_id": trace.span_id,
        "series_id": series_id,
        "started": started_ns,
        "duration": trace.duration_ns,
        "because": trace.because,
        "dominant": trace.dominant,
        "stages": json.dumps(trace.stages_ns, separators=(",", ":")),
        "spans": zlib.compress(document.encode(), 6),
    }


def _set_revision(connection: Connection, service_ids: set[int], revision: int) -> None:
    table = schema.services
    connection.execute(update(table).where(table.c.id.in_(service_ids)).values(revision=revision))


def _update_seen(connection: Connection, keys: Iterable[PointKey]) -> None:
    """Widen the time in which each series was seen."""
    span: dict[int, tuple[int, int]] = {}
    for key in keys:
        low, high = span.get(key.series_id, (key.bucket, key.bucket))
        span[key.series_id] = (min(low, key.bucket), max(high, key.bucket))
    if not span:
        return
    table = schema.series
    low, high = bindparam("low"), bindparam("high")
    statement = (
        update(table)
        .where(table.c.id == bindparam("series"), (table.c.first_seen > low) | (table.c.last_seen < high))
        .values(
            first_seen=case((table.c.first_seen > low, low), else_=table.c.first_seen),
            last_seen=case((table.c.last_seen < high, high), else_=table.c.last_seen),
        )
    )
    connection.execute(statement, [{"series": key, "low": lo, "high": hi} for key, (lo, hi) in span.items()])
