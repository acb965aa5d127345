"""How fresh and how large the store is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, literal_column, select

from .. import schema, tiers
from ..engines import database
from ..points import Snapshot
from ..retention import Retention
from ..selection import moment

_LIVE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StoreState:
    """How fresh and how large the store is.

    Args:
        last_received: When the last batch came, within the time batches are remembered.
        instances: Agents that sent one in the last 60 s: no scraped engine, and nobody who sends spans only.
        dropped: Requests the agents could not count, within the time batches are remembered.
        size_bytes: The room everything takes.
        budget_bytes: The room it may take; None for as much as it needs.
        oldest: Start of the oldest bucket of any series that is kept.
        shortened: The tiers (width in seconds) that go back less far than they should, because the budget is used up, and
            since when each is kept.
    """

    last_received: datetime | None
    instances: int
    dropped: int
    size_bytes: int
    budget_bytes: int | None
    oldest: datetime | None
    shortened: dict[int, datetime]


def state(snapshot: Snapshot, retention: Retention, now: int) -> StoreState:
    """See `StoreQuestions.state`; *now* is in Unix seconds."""
    connection = snapshot.connection
    batches, series = schema.batches, schema.series
    last = connection.execute(select(func.max(batches.c.received))).scalar()
    # A literal: with a parameter SQLite could not know that the partial index answers it.
    told = batches.c.dropped > literal_column("0")
    dropped = connection.execute(select(func.sum(batches.c.dropped)).where(told)).scalar()
    agent = batches.c.instance != literal_column("''")
    live = select(func.count(batches.c.instance.distinct())).where(batches.c.received > now - _LIVE_SECONDS, agent)
    oldest = connection.execute(select(func.min(series.c.first_seen))).scalar()
    known = tiers.read(connection)
    return StoreState(
        last_received=None if last is None else moment(last),
        instances=connection.execute(live).scalar_one(),
        dropped=int(dropped or 0),
        size_bytes=database.used_bytes(connection) + snapshot.points.used_bytes(connection),
        budget_bytes=retention.budget_bytes,
        oldest=None if oldest is None else moment(max(oldest, known[-1].kept_from)),
        shortened={tier.seconds: moment(tier.kept_from) for tier in known if retention.was_shortened(tier, now)},
    )
