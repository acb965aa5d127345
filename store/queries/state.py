"""Queries of the state of the store: freshness, size by table and tier, growth forecast, and dimensions beyond their caps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, literal_column, or_, select, text

from ...core.names import STAGE_DURATION
from ...core.stages import OTHER
from .. import audit, collectors, schema
from ..audit import AuditEntry
from ..collectors import Report
from ..engines import database
from ..retention import FULL_SHARE, Retention
from ..schema import Tier
from ..selection import Selection, moment
from ..storage import PointQuery, StoredPoints, StoreSnapshot
from .fetch import QueryGroup

_FINE_DIMENSIONS = ("model", "model_version", "route", "device")
_CAPPED_DIMENSIONS = ("version", "environment", *_FINE_DIMENSIONS)
_DIMENSION_TEXTS = {
    "services": "services",
    "version": "versions",
    "environment": "environments",
    "model": "models",
    "model_version": "model versions",
    "route": "routes",
    "device": "devices",
    "custom_stages": "custom stages",
    "series": "combinations of model, route and device",
}
# Age of merged values beyond which they are not reported. [seconds]
_RECENT_SECONDS = 86_400
_STAGES_SECONDS = 3600
_DAY_SECONDS = 86_400
# Size of a row without its histogram on SQLite: key, numbers and its place in the page; 55 to 59 bytes, measured with
# `dbstat`. On other engines the share of tiers with short histograms is slightly off.
ROW_BYTES = 57
_POSTGRESQL_SIZES = """
SELECT coalesce(parent.relname, own.relname), coalesce(sum(pg_total_relation_size(own.oid)), 0)
FROM pg_class AS own
LEFT JOIN pg_inherits ON inhrelid = own.oid
LEFT JOIN pg_class AS parent ON parent.oid = inhparent
WHERE own.relkind IN ('r', 'p') AND own.relnamespace = CAST(current_schema() AS regnamespace)
GROUP BY 1
"""
_SQLITE_SIZES = """
SELECT tbl_name, sum(pgsize) FROM sqlite_master JOIN dbstat ON dbstat.name = sqlite_master.name AND aggregate = TRUE
WHERE tbl_name <> 'points' GROUP BY 1
"""
_LIVE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class CappedDimension:
    """Dimension of a service with more values than the cap, so that further values count as `__other__`."""

    service: str
    dimension: str
    cap: int

    def __str__(self) -> str:
        return f"{self.service or 'The store'} has more than {self.cap} {_DIMENSION_TEXTS[self.dimension]}"


class StoreQueries(QueryGroup):
    def state(self) -> StoreState:
        with self._snapshot() as snapshot:
            return _state(snapshot, self._retention, int(self._clock()))

    def storage(self) -> Storage:
        with self._snapshot() as snapshot:
            return _storage(snapshot, self._retention, int(self._clock()))

    def collectors(self) -> list[Report]:
        with self._snapshot() as snapshot:
            return collectors.read_reports(snapshot.connection)

    def audit(self, start: datetime, end: datetime, limit: int) -> list[AuditEntry]:
        with self._snapshot() as snapshot:
            return audit.read_entries(snapshot.connection, start, end, limit)

    def capped_dimensions(self) -> list[CappedDimension]:
        """Return the dimensions that exceeded their cap within the last day, by service."""
        with self._snapshot() as snapshot:
            now, caps = int(self._clock()), self._caps
            services = _services_with_capped_stages(snapshot, caps.custom_stages, now)
            capped = {
                *_capped_in_series(snapshot.connection, now - _RECENT_SECONDS),
                *((service, "custom_stages") for service in services),
            }
            return [
                CappedDimension(service, dimension, getattr(caps, dimension)) for service, dimension in sorted(capped)
            ]


def _capped_in_series(connection: Connection, since: int) -> Iterator[tuple[str, str]]:
    table = schema.series
    dimensions = ("service", *_CAPPED_DIMENSIONS)
    statement = (
        select(*(table.c[name] for name in dimensions))
        .where(table.c.last_seen >= since, or_(*(table.c[name] == OTHER for name in dimensions)))
        .distinct()
    )
    for row in connection.execute(statement).mappings():
        if row["service"] == OTHER:
            yield "", "services"
        capped = [name for name in _CAPPED_DIMENSIONS if row[name] == OTHER]
        if set(_FINE_DIMENSIONS) <= set(capped):
            # All dimensions are merged at once: the cap of their combinations is reached.
            yield row["service"], "series"
            capped = [name for name in capped if name not in _FINE_DIMENSIONS]
        yield from ((row["service"], name) for name in capped)


def _services_with_capped_stages(snapshot: StoreSnapshot, cap: int, now: int) -> Iterator[str]:
    stages, services = schema.stages, schema.services
    full = (
        select(services.c.name)
        .join_from(stages, services, stages.c.service_id == services.c.id)
        .group_by(services.c.name)
        .having(func.count() >= cap)
    )
    for service in snapshot.connection.scalars(full).all():
        selection = Selection(moment(now - _STAGES_SECONDS), moment(now), service=service)
        question = PointQuery(selection, (STAGE_DURATION,))
        segments = schema.plan_segments(snapshot.tiers, *selection.seconds)
        pieces = snapshot.points.read(snapshot.connection, question, segments, None)
        if any(OTHER in piece.stages for piece in pieces):
            yield service


@dataclass(frozen=True, slots=True)
class TierUse:
    """Contents of a tier, for the growth forecast."""

    retention_seconds: int
    slot_seconds: int
    first: int
    complete: int
    slots: Mapping[int, float]

    @property
    def bytes_per_day(self) -> float:
        slot = self.slot_seconds
        start = max((self.complete - _DAY_SECONDS) // slot * slot, self.first)
        if self.complete <= start:
            return 0.0
        gained = sum(size for at, size in self.slots.items() if start // slot * slot <= at < self.complete)
        return gained / (self.complete - start) * _DAY_SECONDS

    @property
    def settled_bytes(self) -> float:
        return self.bytes_per_day * self.retention_seconds / _DAY_SECONDS

    def bytes_after(self, days: float, now: int) -> float:
        oldest = now + days * _DAY_SECONDS - self.retention_seconds
        left = sum(size for at, size in self.slots.items() if at + self.slot_seconds > oldest)
        return left + self.bytes_per_day * min(days, self.retention_seconds / _DAY_SECONDS)


def days_until_full(tiers: Sequence[TierUse], rest_bytes: float, budget_bytes: int, now: int) -> int | None:
    """Return the number of days until the storage budget is reached; None if never."""
    horizon = max(math.ceil(tier.retention_seconds / _DAY_SECONDS) for tier in tiers) + 1
    for days in range(horizon + 1):
        if rest_bytes + sum(tier.bytes_after(days, now) for tier in tiers) > budget_bytes * FULL_SHARE:
            return days
    return None


@dataclass(frozen=True, slots=True)
class TierStorage:
    seconds: int
    rows: int
    bytes: int
    since: datetime | None
    retention: timedelta
    bytes_per_day: int
    settled_bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Size of the store."""

    used_bytes: int
    budget_bytes: int | None
    tables: dict[str, int]
    tiers: tuple[TierStorage, ...]
    settled_bytes: int
    full_at: datetime | None
    file_bytes: int


def _storage(snapshot: StoreSnapshot, retention: Retention, now: int) -> Storage:
    connection, points = snapshot.connection, snapshot.points
    used = database.used_bytes(connection) + points.used_bytes(connection)
    tables = _bytes_by_table(connection, points, used)
    first = connection.execute(select(func.min(schema.series.c.first_seen))).scalar() or now
    tiers = schema.read_tiers(connection)
    uses = [_tier_use(connection, points, tier, retention, (first, now)) for tier in tiers]
    weight = sum(sum(use.slots.values()) for use in uses)
    # The ledger counts histogram bytes; the actual size is only known for all tiers together.
    scale = tables["points"] / weight if weight else 1.0
    uses = [replace(use, slots={at: size * scale for at, size in use.slots.items()}) for use in uses]
    rest = used - sum(sum(use.slots.values()) for use in uses)
    days = None if retention.budget_bytes is None else days_until_full(uses, rest, retention.budget_bytes, now)
    return Storage(
        used_bytes=used,
        budget_bytes=retention.budget_bytes,
        tables=dict(sorted(tables.items(), key=lambda entry: -entry[1])),
        tiers=tuple(_tier_storage(connection, tier, use, retention) for tier, use in zip(tiers, uses, strict=True)),
        settled_bytes=round(rest + sum(use.settled_bytes for use in uses)),
        full_at=None if days is None else moment(now + days * 86_400),
        file_bytes=round(weight) + sum(tables.values()) - tables["points"],
    )


def _bytes_by_table(connection: Connection, points: StoredPoints, used: int) -> dict[str, int]:
    if connection.dialect.name == "postgresql":
        sizes = {name: int(size) for name, size in connection.execute(text(_POSTGRESQL_SIZES))}
        return sizes | {"points": sizes["points"] + points.used_bytes(connection)}
    # Python's SQLite may be built without `dbstat`.
    has_dbstat = connection.execute(text("SELECT sqlite_compileoption_used('ENABLE_DBSTAT_VTAB')")).scalar()
    sizes = {name: int(size) for name, size in connection.execute(text(_SQLITE_SIZES))} if has_dbstat else {}
    return sizes | {"points": used - sum(sizes.values())}


def _tier_use(
    connection: Connection, points: StoredPoints, tier: Tier, retention: Retention, span: tuple[int, int]
) -> TierUse:
    first, now = span
    seconds, slot = int(retention.of_tier(tier.seconds).total_seconds()), schema.SLOT_SECONDS[tier.seconds]
    table = schema.ledger
    rows = connection.execute(select(table.c.slot, table.c.rows, table.c.bytes).where(table.c.tier == tier.seconds))
    return TierUse(
        retention_seconds=seconds + points.freed_seconds(tier.seconds),
        slot_seconds=slot,
        first=max(first, tier.kept_from),
        complete=now if tier.seconds == schema.FINEST else tier.watermark,
        slots={at: float(count * ROW_BYTES + size) for at, count, size in rows},
    )


def _tier_storage(connection: Connection, tier: Tier, use: TierUse, retention: Retention) -> TierStorage:
    table = schema.ledger
    rows = connection.execute(select(func.sum(table.c.rows)).where(table.c.tier == tier.seconds)).scalar()
    return TierStorage(
        seconds=tier.seconds,
        rows=int(rows or 0),
        bytes=round(sum(use.slots.values())),
        since=moment(max(min(use.slots), use.first)) if use.slots else None,
        retention=retention.of_tier(tier.seconds),
        bytes_per_day=round(use.bytes_per_day),
        settled_bytes=round(use.settled_bytes),
    )


@dataclass(frozen=True, slots=True)
class StoreState:
    last_received: datetime | None
    instances: int
    dropped: int
    size_bytes: int
    budget_bytes: int | None
    oldest: datetime | None
    shortened: dict[int, datetime]


def _state(snapshot: StoreSnapshot, retention: Retention, now: int) -> StoreState:
    connection = snapshot.connection
    batches, series = schema.batches, schema.series
    last = connection.execute(select(func.max(batches.c.received))).scalar()
    # A literal: with a parameter SQLite would not use the partial index.
    has_dropped = batches.c.dropped > literal_column("0")
    dropped = connection.execute(select(func.sum(batches.c.dropped)).where(has_dropped)).scalar()
    agent = batches.c.instance != literal_column("''")
    live = select(func.count(batches.c.instance.distinct())).where(batches.c.received > now - _LIVE_SECONDS, agent)
    oldest = connection.execute(select(func.min(series.c.first_seen))).scalar()
    tiers = schema.read_tiers(connection)
    return StoreState(
        last_received=None if last is None else moment(last),
        instances=connection.execute(live).scalar_one(),
        dropped=int(dropped or 0),
        size_bytes=database.used_bytes(connection) + snapshot.points.used_bytes(connection),
        budget_bytes=retention.budget_bytes,
        oldest=None if oldest is None else moment(max(oldest, tiers[-1].kept_from)),
        shortened={tier.seconds: moment(tier.kept_from) for tier in tiers if retention.was_shortened(tier, now)},
    )
