"""Writing batches, inside the writer's transaction: each once, in every tier that has to have it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from ...core.histogram import SCALE, Histogram
from . import schema, tiers
from .encoding import Buckets, encode
from .records import Batch, KeptTrace, Point
from .rows import PointCounts, PointKey, point_row
from .series import Interned, SeriesIndex

# How far a sender's clock may run ahead of ours before we stop believing it. [seconds]
MAX_SKEW_SECONDS = 60
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a write happens, and the oldest time it may be about; both in Unix seconds."""

    now: int
    oldest: int

    def believe(self, at: int) -> int:
        """Return *at*, or now if the sender's clock cannot be right: such data count when they arrive."""
        return at if self.oldest <= at <= self.now + MAX_SKEW_SECONDS else self.now


def write(connection: Connection, batches: Sequence[Batch], index: SeriesIndex, arrival: Arrival) -> list[bool]:
    """Count the *batches* that were not counted before.

    Returns:
        For each batch whether it was counted now.
    """
    fresh = _insert_batches(connection, batches, arrival.now)
    chosen = [batch for batch, new in zip(batches, fresh, strict=True) if new]
    points = [point for batch in chosen for point in batch.points]
    traces = [trace for batch in chosen for trace in batch.traces]
    if not points and not traces:
        return fresh
    revision = 1 + (connection.execute(select(func.max(schema.services.c.revision))).scalar() or 0)
    keyed = [_key(connection, point, index, arrival) for point in points]
    _insert_points(connection, keyed, revision)
    owners = _insert_traces(connection, traces, index, arrival)
    touched = {key.service_id for key, _ in keyed} | {owner.service_id for owner in owners}
    _set_revision(connection, touched, revision)
    _update_seen(connection, keyed)
    return fresh


def _insert_batches(connection: Connection, batches: Sequence[Batch], now: int) -> list[bool]:
    table = schema.batches
    known = set(connection.scalars(select(table.c.id).where(table.c.id.in_([batch.id for batch in batches]))))
    fresh: list[bool] = []
    for batch in batches:
        fresh.append(batch.id not in known)
        known.add(batch.id)
    rows = [
        {"id": batch.id, "received": now, "instance": batch.instance, "dropped": batch.dropped}
        for batch, new in zip(batches, fresh, strict=True)
        if new
    ]
    if rows:
        connection.execute(insert(table), rows)
    return fresh


def _key(connection: Connection, point: Point, index: SeriesIndex, arrival: Arrival) -> tuple[PointKey, Histogram]:
    bucket = tiers.floor(arrival.believe(point.at), schema.FINEST)
    interned = index.intern(connection, point.series, bucket)
    stage = index.stage(connection, interned.service_id, point.stage)
    code = schema.METRIC_CODES[point.metric]
    return PointKey(interned.service_id, code, bucket, interned.series_id, stage), point.histogram


def _insert_points(connection: Connection, keyed: Sequence[tuple[PointKey, Histogram]], revision: int) -> None:
    """Write the rows to the finest tier, and to every other whose watermark has passed them."""
    rows: list[dict[str, Any]] = []
    for tier in tiers.read(connection):
        wanted = [
            (key.at_tier(tier.seconds), histogram)
            for key, histogram in keyed
            if key.bucket >= tier.kept_from and (tier.seconds == schema.FINEST or key.bucket < tier.watermark)
        ]
        rows += point_rows(tier.seconds, add_up(wanted), part=revision)
    if rows:
        connection.execute(insert(schema.points), rows)


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


def point_rows(tier: int, total: dict[PointKey, Histogram], *, part: int) -> list[dict[str, Any]]:
    """Return *total* as rows of `points`, in the order of its key."""
    keys = sorted(total)
    histograms = [total[key] for key in keys]
    blobs = encode(_columns(histograms))
    counts = [
        PointCounts(histogram.scale, histogram.zero, histogram.count, histogram.sum, blob)
        for histogram, blob in zip(histograms, blobs, strict=True)
    ]
    return [point_row(tier, part, key, count) for key, count in zip(keys, counts, strict=True)]


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


def _update_seen(connection: Connection, keyed: Sequence[tuple[PointKey, Histogram]]) -> None:
    """Widen the time in which each series was seen."""
    span: dict[int, tuple[int, int]] = {}
    for key, _ in keyed:
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
