"""Which services and versions there are, how fresh what we know is, and whether anything has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import pandas as pd
from sqlalchemy import func, literal_column, select

from ....core.names import REQUEST_DURATION, STATUS_ERROR
from .. import schema, tiers
from ..engines import database
from ..points import Question, Snapshot
from ..retention import Retention
from ..selection import Selection, moment
from ..texts import name as storable_name
from .frames import frame, times

VERSION_COLUMNS = ("version", "first_seen", "last_seen", "requests")
RELEASE_COLUMNS = ("service", "version", "first_seen", "last_seen")
_LIVE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StoreState:
    """How fresh and how large the store is.

    Args:
        last_received: When the last batch came, within the time batches are remembered.
        instances: Processes that sent one in the last 60 s.
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


def services(snapshot: Snapshot, selection: Selection) -> pd.DataFrame:
    """See `Reader.services`."""
    seen = series_in(snapshot, selection)
    newest = seen.sort_values("first_seen", kind="stable").groupby("service")["version"].last()
    latest = seen.sort_values("last_seen", ascending=False, kind="stable")
    groups = latest.groupby("service")
    failed = latest["requests"].where(latest["status"] == STATUS_ERROR, 0)
    made = pd.DataFrame(
        {
            "versions": groups["version"].unique().map(list),
            "newest": newest,
            "model": groups["model"].first(),
            "environment": groups["environment"].first(),
            "requests": groups["requests"].sum(),
            "errors": failed.groupby(latest["service"]).sum(),
            "first_seen": groups["first"].min(),
            "last_seen": groups["last"].max(),
        }
    )
    return _timed(made.rename_axis("service").reset_index())


def versions(snapshot: Snapshot, selection: Selection) -> pd.DataFrame:
    """See `Reader.versions`."""
    selection = replace(selection, version=None)
    seen = series_in(snapshot, selection).groupby("version")["requests"].sum()
    table = schema.series
    history = (
        select(table.c.version, func.min(table.c.first_seen).label("first_seen"), func.max(table.c.last_seen))
        .where(*selection.conditions())
        .group_by(table.c.version)
        .order_by("first_seen")
    )
    rows = [
        {"version": version, "first_seen": first, "last_seen": last, "requests": int(seen.get(version, 0))}
        for version, first, last in snapshot.connection.execute(history)
    ]
    return _timed(frame(VERSION_COLUMNS, rows))


def environments(snapshot: Snapshot) -> list[str]:
    """See `Reader.environments`."""
    column = schema.series.c.environment
    return list(snapshot.connection.execute(select(column).where(column != "").distinct().order_by(column)).scalars())


def releases(snapshot: Snapshot, environment: str | None) -> pd.DataFrame:
    """See `Reader.releases`."""
    table = schema.series
    dimensions = (table.c.service, table.c.version)
    statement = (
        select(*dimensions, func.min(table.c.first_seen).label("first_seen"), func.max(table.c.last_seen))
        .group_by(*dimensions)
        .order_by(table.c.service, "first_seen")
    )
    if environment is not None:
        statement = statement.where(table.c.environment == storable_name(environment))
    found = snapshot.connection.execute(statement)
    return _timed(frame(RELEASE_COLUMNS, [dict(zip(RELEASE_COLUMNS, row, strict=True)) for row in found]))


def dimensions(snapshot: Snapshot, selection: Selection) -> dict[str, dict[str, int]]:
    """See `Reader.dimensions`."""
    seen = series_in(snapshot, selection)
    counted = {name: seen.groupby(name)["requests"].sum().sort_values(ascending=False) for name in schema.DIMENSIONS}
    return {name: {str(value): int(n) for value, n in found.items() if value} for name, found in counted.items()}


def series_in(snapshot: Snapshot, selection: Selection) -> pd.DataFrame:
    """Return the series that have requests in *selection*: its dimensions, `requests`, and the `first` and `last` bucket."""
    start, end = selection.seconds
    question = Question(selection, (REQUEST_DURATION,), by="series")
    found = [
        (seen.series_id, seen.requests, seen.first, seen.last + segment.tier - schema.FINEST)
        for segment in tiers.plan(tiers.read(snapshot.connection), start, end)
        for seen in snapshot.points.seen(snapshot.connection, question, segment)
    ]
    counted = pd.DataFrame(found, columns=["id", "requests", "first", "last"])
    counted = counted.groupby("id").agg({"requests": "sum", "first": "min", "last": "max"})
    columns = [schema.series.c[name] for name in ("id", *schema.DIMENSIONS, "first_seen", "last_seen")]
    known = pd.DataFrame(
        snapshot.connection.execute(select(*columns).where(*selection.conditions())).all(),
        columns=["id", *schema.DIMENSIONS, "first_seen", "last_seen"],
    )
    merged = known.merge(counted, on="id")
    # The buckets of a coarse tier are wide; what is known of the series itself is exact to 10 s.
    merged["first"] = merged[["first", "first_seen"]].max(axis=1)
    merged["last"] = merged[["last", "last_seen"]].min(axis=1)
    return merged


def _timed(made: pd.DataFrame) -> pd.DataFrame:
    for column in ("first_seen", "last_seen"):
        made[column] = times(made[column])
    return made


def revision(snapshot: Snapshot, service: str | None) -> int:
    """See `Reader.revision`."""
    table = schema.services
    statement = select(func.max(table.c.revision))
    if service is not None:
        statement = statement.where(table.c.name == storable_name(service))
    return snapshot.connection.execute(statement).scalar() or 0


def state(snapshot: Snapshot, retention: Retention, now: int) -> StoreState:
    """See `Reader.state`; *now* is in Unix seconds."""
    connection = snapshot.connection
    batches, series = schema.batches, schema.series
    last = connection.execute(select(func.max(batches.c.received))).scalar()
    # A literal: with a parameter SQLite could not know that the partial index answers it.
    told = batches.c.dropped > literal_column("0")
    dropped = connection.execute(select(func.sum(batches.c.dropped)).where(told)).scalar()
    live = select(func.count(batches.c.instance.distinct())).where(batches.c.received > now - _LIVE_SECONDS)
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
