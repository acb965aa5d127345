"""What takes the store's room, by table and by tier, and how large it will get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, text

from .. import schema, tiers
from ..engines import database
from ..points import Points, Snapshot
from ..retention import Retention
from ..selection import moment
from ..tiers import Tier
from .forecast import TierUse, days_until_full

# What a row takes beside its histogram on SQLite: key, numbers and its place in the page; 55 to 59 bytes, as `dbstat` has
# it. Where it is otherwise, tiers with short histograms are shown a little too large or too small against the others.
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


@dataclass(frozen=True, slots=True)
class TierStorage:
    """What one tier takes.

    Args:
        seconds: The width of its buckets. [seconds]
        rows: Of `points`.
        bytes: Its share of the room that `points` takes, by its rows and the length of its histograms.
        since: From when it is kept; None while it is empty.
        kept: For how long it is kept.
        bytes_per_day: What it gains.
        settled_bytes: Its size once as much is forgotten as comes.
    """

    seconds: int
    rows: int
    bytes: int
    since: datetime | None
    kept: timedelta
    bytes_per_day: int
    settled_bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """What the store takes.

    Args:
        used_bytes: The room everything takes.
        budget_bytes: The room it may take; None for as much as it needs.
        tables: Bytes by table, with its indices, largest first. Where SQLite cannot tell, `points` has them all.
        tiers: Finest first.
        settled_bytes: The size it comes to, at the present rate and retention and without a budget.
        full_at: When room has to be made for the first time; None if never.
        file_bytes: What a copy of it in an SQLite file takes, roughly.
    """

    used_bytes: int
    budget_bytes: int | None
    tables: dict[str, int]
    tiers: tuple[TierStorage, ...]
    settled_bytes: int
    full_at: datetime | None
    file_bytes: int


def storage(snapshot: Snapshot, retention: Retention, now: int) -> Storage:
    """See `Reader.storage`; *now* is in Unix seconds."""
    connection, points = snapshot.connection, snapshot.points
    used = database.used_bytes(connection) + points.used_bytes(connection)
    tables = _tables(connection, points, used)
    first = connection.execute(select(func.min(schema.series.c.first_seen))).scalar() or now
    known = tiers.read(connection)
    uses = [_use(connection, points, tier, retention, (first, now)) for tier in known]
    weight = sum(sum(use.slots.values()) for use in uses)
    # The ledger counts histograms; how much room they take is known of all together.
    scale = tables["points"] / weight if weight else 1.0
    uses = [replace(use, slots={at: size * scale for at, size in use.slots.items()}) for use in uses]
    rest = used - sum(sum(use.slots.values()) for use in uses)
    days = None if retention.budget_bytes is None else days_until_full(uses, rest, retention.budget_bytes, now)
    return Storage(
        used_bytes=used,
        budget_bytes=retention.budget_bytes,
        tables=dict(sorted(tables.items(), key=lambda entry: -entry[1])),
        tiers=tuple(_tier(connection, tier, use, retention) for tier, use in zip(known, uses, strict=True)),
        settled_bytes=round(rest + sum(use.settled_bytes for use in uses)),
        full_at=None if days is None else moment(now + days * 86_400),
        file_bytes=round(weight) + sum(tables.values()) - tables["points"],
    )


def _tables(connection: Connection, points: Points, used: int) -> dict[str, int]:
    if connection.dialect.name == "postgresql":
        found = {name: int(size) for name, size in connection.execute(text(_POSTGRESQL_SIZES))}
        return found | {"points": found["points"] + points.used_bytes(connection)}
    # Python may come with an SQLite that was built without it.
    can_tell = connection.execute(text("SELECT sqlite_compileoption_used('ENABLE_DBSTAT_VTAB')")).scalar()
    found = {name: int(size) for name, size in connection.execute(text(_SQLITE_SIZES))} if can_tell else {}
    return found | {"points": used - sum(found.values())}


def _use(connection: Connection, points: Points, tier: Tier, retention: Retention, span: tuple[int, int]) -> TierUse:
    first, now = span
    kept, slot = int(retention.of_tier(tier.seconds).total_seconds()), schema.SLOT_SECONDS[tier.seconds]
    table = schema.ledger
    rows = connection.execute(select(table.c.slot, table.c.rows, table.c.bytes).where(table.c.tier == tier.seconds))
    return TierUse(
        kept_seconds=kept + points.freed_seconds(tier.seconds),
        slot_seconds=slot,
        first=max(first, tier.kept_from),
        complete=now if tier.seconds == schema.FINEST else tier.watermark,
        slots={at: float(count * ROW_BYTES + size) for at, count, size in rows},
    )


def _tier(connection: Connection, tier: Tier, use: TierUse, retention: Retention) -> TierStorage:
    table = schema.ledger
    rows = connection.execute(select(func.sum(table.c.rows)).where(table.c.tier == tier.seconds)).scalar()
    return TierStorage(
        seconds=tier.seconds,
        rows=int(rows or 0),
        bytes=round(sum(use.slots.values())),
        since=moment(max(min(use.slots), use.first)) if use.slots else None,
        kept=retention.of_tier(tier.seconds),
        bytes_per_day=round(use.bytes_per_day),
        settled_bytes=round(use.settled_bytes),
    )
