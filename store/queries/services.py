"""Which services and versions there are, and whether anything has changed."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from sqlalchemy import func, select

from ...core.names import REQUEST_DURATION, STATUS_ERROR
from .. import schema, tiers
from ..points import Question, Snapshot
from ..selection import Selection
from ..texts import name as storable_name
from .frames import frame, times

VERSION_COLUMNS = ("version", "first_seen", "last_seen", "requests")
RELEASE_COLUMNS = ("service", "version", "first_seen", "last_seen")


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
        # Of those that came together, the one that was heard of first.
        .order_by("first_seen", func.min(table.c.id))
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
        snapshot.connection.execute(select(*columns).where(*selection.conditions()).order_by(schema.series.c.id)).all(),
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
