"""Rollup of complete buckets into coarser tiers, and deletion of data past their retention or beyond the storage budget.

Each tier is the sum of the next finer tier. The rolled-up rows and the new watermark are one write, so an interrupted process
leaves no partial results. A row that arrives after the watermark is also written to the coarser tier on arrival (see `write`), so
a tier always equals its recomputation from the finest tier.

Rollup and deletion use `series.store_time` instead of the clock: a clock that jumps must neither delete data nor roll them up
early.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise, zip_longest

from sqlalchemy import Connection, delete, func, select, tuple_, update

from . import audit, events, schema
from .engines import database
from .events import forget_loads
from .points import PointRow, PointTable, sum_rows
from .schema import Tier, floor_to, read_tiers, take_part
from .series import forget_stacks
from .storage import Points, PreparedWrite
from .write import add_to_ledger, cut_ledger, ledger_ends, subtract_from_ledger

# Delay of the rollup. Agents send every 10 s, after the end of the 10 s bucket of a request; rows that arrive during this delay
# need no second row in the coarser tiers. [seconds]
SETTLE_SECONDS = 60
# Time rolled up in one transaction, which blocks acknowledgements; in tiers of wider buckets, one bucket. [seconds]
_CHUNK_SECONDS = 300
# Share of the budget at which deletion starts, so that data that arrive before the next check fit. [ratio]
FULL_SHARE = 0.9
# Prefix of the names of imported batches: a file may be imported again until its data have expired.
IMPORT_PREFIX = "import:"
_NS = 1_000_000_000
_DAY_SECONDS = 86_400
_DAY_NS = _DAY_SECONDS * _NS


def prepare_rollup(connection: Connection, points: Points, now: int) -> PreparedWrite | None:
    """Return the write that rolls up one chunk of the first tier with complete buckets; None if there is none."""
    finest, *coarser = read_tiers(connection)
    complete, source = now - SETTLE_SECONDS, finest
    for tier in coarser:
        target = floor_to(complete, tier.seconds)
        if target > tier.watermark:
            return _advance(connection, points, source, tier, target)
        complete, source = tier.watermark, tier
    return None


def _advance(connection: Connection, points: Points, source: Tier, tier: Tier, target: int) -> PreparedWrite:
    first = points.first_bucket(connection, source.seconds, max(tier.watermark, tier.kept_from, source.kept_from))
    part = take_part(connection)
    stop, rows = target, list[PointRow]()
    if first is not None and first < target:
        start = floor_to(first, tier.seconds)
        stop = min(target, start + max(_CHUNK_SECONDS, tier.seconds))
        rows = sum_rows(points.load(connection, source.seconds, start, stop), tier.seconds, part)
        if source.seconds == schema.FINEST:
            rows += sum_rows(PointTable.of(_as_totals(connection, rows)), tier.seconds, part)

    def finish(connection: Connection) -> None:
        add_to_ledger(connection, rows)
        table = schema.rollups
        connection.execute(update(table).where(table.c.tier == tier.seconds).values(watermark=stop))

    return PreparedWrite(part, rows, finish)


def _as_totals(connection: Connection, rows: Sequence[PointRow]) -> list[PointRow]:
    series = schema.series
    totals = {row.id: row.total_id for row in connection.execute(select(series.c.id, series.c.total_id))}
    return [total for row in rows if (total := row.in_total(totals[row.series_id]))]


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of each kind of data."""

    seconds_10: timedelta = timedelta(hours=24)  # Retention of points in buckets of 10 s
    minutes: timedelta = timedelta(days=14)  # Retention of points in buckets of 1 and 10 min
    # Retention of points in wider buckets, of events and of loads; series without remaining data are deleted
    hours: timedelta = timedelta(days=395)
    traces: timedelta = timedelta(days=7)  # Retention of retained traces
    # Maximum number of retained traces of a service; the oldest are deleted first. [count]
    traces_per_service: int = 20_000
    # Retention of batch names: maximum delay of a retry that is recognised, and of data
    batches: timedelta = timedelta(hours=24)
    budget_bytes: int | None = None  # Maximum size of the store; None for no limit

    def of_tier(self, seconds: int) -> timedelta:
        if seconds == schema.FINEST:
            return self.seconds_10
        return self.minutes if seconds < schema.WITHOUT_REPLICAS else self.hours

    def was_shortened(self, tier: Tier, now: int) -> bool:
        """Return whether data of *tier* within its retention were deleted, and there is a budget; *now* in Unix seconds."""
        return self.budget_bytes is not None and tier.kept_from > now - self.of_tier(tier.seconds).total_seconds()


def forget_points(connection: Connection, points: Points, retention: Retention, now: int) -> bool:
    """Delete one slot of the first tier that holds data expired at *now*; return whether there may be more."""
    tiers = read_tiers(connection)
    for tier, coarser in zip_longest(tiers, tiers[1:]):
        until = now - int(retention.of_tier(tier.seconds).total_seconds())
        # Never delete data before they are rolled up.
        if _cut_tier(connection, points, tier, min(until, (coarser or tier).watermark)):
            return True
    return False


def fit_budget(connection: Connection, points: Points, retention: Retention, used_bytes: int, now: int) -> bool:
    """Delete the oldest data of the finest tier with deletable data, if the store is close to its budget.

    The newest slot of each tier is never deleted. Traces are deleted before the coarsest tier; data that are not rolled up yet
    are deleted last.

    Returns:
        Whether data were deleted, so that another call may be needed.
    """
    if retention.budget_bytes is None or used_bytes <= retention.budget_bytes * FULL_SHARE:
        return False
    tiers = read_tiers(connection)
    return (
        any(_free_slot(connection, points, tier, min(now, coarser.watermark)) for tier, coarser in pairwise(tiers))
        or _free_traces(connection)
        or any(_free_slot(connection, points, tier, now) for tier in tiers)
    )


def _free_slot(connection: Connection, points: Points, tier: Tier, before: int) -> bool:
    width = points.freed_seconds(tier.seconds)
    first, last = ledger_ends(connection, tier.seconds)
    until = floor_to(first, width) + width
    return last > 0 and until <= before and _cut_tier(connection, points, tier, until)


def _free_traces(connection: Connection) -> bool:
    if database.dialect(connection.engine.url).compact_traces(connection):
        return True
    traces = schema.traces
    first, last = connection.execute(select(func.min(traces.c.started), func.max(traces.c.started))).one()
    if first is None or first == last:
        return False
    until = first + max(1, min(last - first, _DAY_NS) // 2)
    connection.execute(delete(traces).where(traces.c.started < until))
    return True


def _cut_tier(connection: Connection, points: Points, tier: Tier, until: int) -> bool:
    width = schema.SLOT_SECONDS[tier.seconds]
    until = floor_to(until, width)
    if until <= tier.kept_from:
        return False
    first, last = ledger_ends(connection, tier.seconds)
    # Without data before *until*, the whole time is skipped at once.
    if first < until and (first, last) != (0, 0):
        until = min(until, first + width)
    points.cut(connection, tier.seconds, until)
    cut_ledger(connection, tier.seconds, until)
    rollups = schema.rollups
    connection.execute(update(rollups).where(rollups.c.tier == tier.seconds).values(kept_from=until))
    return True


def forget_rest(connection: Connection, retention: Retention, most_services: int, now: int) -> list[str]:
    """Delete expired traces, batches, events, loads, audit entries and series; return the services to `forget_services`."""
    _forget_traces(connection, retention, now)
    events.forget_events(connection, now - int(retention.hours.total_seconds()))
    forget_loads(connection, now - int(retention.hours.total_seconds()))
    audit.forget_entries(connection, now)
    table = schema.batches
    is_imported = table.c.id.startswith(IMPORT_PREFIX)
    for names, age in ((~is_imported, retention.batches), (is_imported, retention.hours)):
        connection.execute(delete(table).where(names, table.c.received < now - int(age.total_seconds())))
    oldest = read_tiers(connection)[-1].kept_from
    forget_stacks(connection, oldest)
    _forget_series(connection, oldest)
    return _surplus_services(connection, most_services, now)


def forget_services(connection: Connection, points: Points, names: Collection[str]) -> None:
    """Delete the services *names* with all their data; they no longer count towards any cap."""
    services, series = schema.services, schema.series
    numbers = connection.scalars(select(services.c.id).where(services.c.name.in_(names))).all()
    subtract_from_ledger(connection, points.forget(connection, numbers))
    theirs = select(series.c.id).where(series.c.service_id.in_(numbers))
    connection.execute(delete(schema.traces).where(schema.traces.c.series_id.in_(theirs)))
    for table in (series, schema.stages, schema.code_stacks):
        connection.execute(delete(table).where(table.c.service_id.in_(numbers)))
    for table in (schema.events, schema.loads):
        connection.execute(delete(table).where(table.c.service.in_(names)))
    connection.execute(delete(services).where(services.c.id.in_(numbers)))
    _invalidate_series(connection)


def _surplus_services(connection: Connection, most: int, now: int) -> list[str]:
    services, series = schema.services, schema.series
    number = connection.scalars(select(func.count()).select_from(services)).one()
    first, last = func.coalesce(func.min(series.c.first_seen), 0), func.coalesce(func.max(series.c.last_seen), 0)
    statement = (
        select(services.c.name)
        .join_from(services, series, series.c.service_id == services.c.id, isouter=True)
        .group_by(services.c.name)
        .having(last < now - _DAY_SECONDS)
        .order_by(last - first, last)
        .limit(number - most)
    )
    return list(connection.scalars(statement)) if number > most else []


def _forget_traces(connection: Connection, retention: Retention, now: int) -> None:
    traces, series = schema.traces, schema.series
    connection.execute(delete(traces).where(traces.c.started < (now - int(retention.traces.total_seconds())) * _NS))
    counts = (
        select(series.c.service_id, func.count())
        .join_from(traces, series, traces.c.series_id == series.c.id)
        .group_by(series.c.service_id)
        .having(func.count() > retention.traces_per_service)
    )
    for service_id, count in connection.execute(counts).all():
        oldest = (
            select(traces.c.trace_id, traces.c.span_id)
            .join_from(traces, series, traces.c.series_id == series.c.id)
            .where(series.c.service_id == service_id)
            .order_by(traces.c.started)
            .limit(count - retention.traces_per_service)
        )
        connection.execute(delete(traces).where(tuple_(traces.c.trace_id, traces.c.span_id).in_(oldest)))


def _forget_series(connection: Connection, oldest: int) -> None:
    series, traces = schema.series, schema.traces
    has_traces = select(traces.c.trace_id).where(traces.c.series_id == series.c.id).exists()
    if connection.execute(delete(series).where(series.c.last_seen < oldest, ~has_traces)).rowcount:
        _invalidate_series(connection)


def _invalidate_series(connection: Connection) -> None:
    table = schema.store
    connection.execute(update(table).values(series_epoch=table.c.series_epoch + 1))
