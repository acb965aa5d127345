"""Queries of services, versions, environments and events, and of all services at once.

Queries of all services read their points together, separate them by service, and sum them by the same code as for one service,
so that the numbers are identical to those of `Reader.breakdown`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import func, select

from ...core.hardware import split_hardware_key
from ...core.histogram import Histogram
from ...core.names import (
    COLLECTOR_LOST,
    FAILED_CALL,
    HARDWARE,
    OPEN_TIME,
    PROBE_DURATION,
    REQUEST_DURATION,
    STAGE_TIME,
    STATUS_CANCELLED,
    STATUS_ERROR,
)
from ...core.stages import LOAD_START
from .. import schema
from ..events import EVENT_COLUMNS, STOPPED
from ..schema import storable_name
from ..selection import Selection, moment
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, StoreSnapshot, add_up, sum_points
from . import latency
from .fetch import QueryGroup, fetch, fetch_steps, points_with_key, with_service_numbers
from .frames import frame, stage_frame, utc_times, with_step_times
from .latency import Mixture
from .replicas import hardware_table

VERSION_COLUMNS = ("version", "first_seen", "last_seen", "requests")
RELEASE_COLUMNS = ("service", "version", "first_seen", "last_seen")


class ServiceQueries(QueryGroup):
    def services(self, start: datetime, end: datetime, *, environment: str | None = None) -> pd.DataFrame:
        """Return the services with requests in `[start, end)`, in one environment or in all environments.

        Returns:
            Columns service, versions (list, most recently seen first), newest (the version that appeared last), model and
            environment (of the most recently seen series), requests, errors, cancelled (counts in the window), first_seen, last_seen (UTC,
            buckets within the window); sorted by service.
        """
        selection = Selection(start, end, environment=environment)
        with self._snapshot() as snapshot:
            # Also a service that hangs from its start, or that has only health probes or losses.
            seen = series_with_requests(snapshot, selection, (OPEN_TIME, PROBE_DURATION, COLLECTOR_LOST))
            newest = seen.sort_values("first_seen", kind="stable").groupby("service")["version"].last()
            latest = seen.sort_values("last_seen", ascending=False, kind="stable")
            groups = latest.groupby("service")
            failed, cancelled = (
                latest["requests"].where(latest["status"] == status, 0) for status in (STATUS_ERROR, STATUS_CANCELLED)
            )
            table = pd.DataFrame(
                {
                    "versions": groups["version"].unique().map(list),
                    "newest": newest,
                    "model": groups["model"].first(),
                    "environment": groups["environment"].first(),
                    "requests": groups["requests"].sum(),
                    "errors": failed.groupby(latest["service"]).sum(),
                    "cancelled": cancelled.groupby(latest["service"]).sum(),
                    "first_seen": groups["first"].min(),
                    "last_seen": groups["last"].max(),
                }
            )
            return _with_times(table.rename_axis("service").reset_index())

    def fleet(
        self, start: datetime, end: datetime, percentiles: Sequence[float], *, environment: str | None = None
    ) -> pd.DataFrame:
        """Return the breakdown of every service at each percentile, in one query.

        Returns:
            The rows of `breakdown` of each service, with the index `service`, sorted by service; one column of seconds for each
            stage of any service.
        """
        with self._snapshot() as snapshot:
            selection = Selection(start, end, environment=environment)
            columns = fetch(snapshot, PointQuery(selection, BREAKDOWN_METRICS, by="total"))
            names: list[str] = []
            rows: list[dict[str, Any]] = []
            for service, points in _split_by_service(snapshot, selection, columns):
                if len(points.of(REQUEST_DURATION)):
                    rows += latency.breakdown_rows(Mixture(points), percentiles)
                    names += [service] * len(percentiles)
            table = stage_frame(latency.BREAKDOWN_COLUMNS, rows)
            # The service is the index and not a column, because a stage may have any name.
            table.index = pd.Index(names, name="service", dtype=object)
            return table

    def fleet_latency(self, start: datetime, end: datetime, *, environment: str | None = None) -> dict[str, Histogram]:
        with self._snapshot() as snapshot:
            selection = Selection(start, end, environment=environment)
            columns = fetch(snapshot, PointQuery(selection, (REQUEST_DURATION,), by="total"))
            return {
                service: add_up(points).histogram()
                for service, points in _split_by_service(snapshot, selection, columns)
            }

    def fleet_over_time(
        self, start: datetime, end: datetime, step: timedelta, *, environment: str | None = None
    ) -> pd.DataFrame:
        """Return the number of requests of each service in each step with requests.

        Returns:
            Columns service, at (UTC, start of the step), n; sorted by both.
        """
        with self._snapshot() as snapshot:
            selection = Selection(start, end, environment=environment)
            columns, steps = fetch_steps(
                snapshot, PointQuery(selection, (REQUEST_DURATION,), by="total", counts_only=True), step
            )
            names, owned = with_service_numbers(snapshot.connection, selection, columns)
            values = {"service": owned.series, "at": steps.of(owned.times), "n": owned.counts}
            table = pd.DataFrame(values).groupby(["service", "at"])["n"].sum().reset_index()
            table["service"] = [names[number] for number in table["service"]]
            return with_step_times(table, steps, selection)

    def fleet_waste(self, start: datetime, end: datetime, *, environment: str | None = None) -> pd.DataFrame:
        """Return the time that the requests of each service waited or lost, and the time of its cold starts.

        Returns:
            Index service, sorted; columns queue_seconds (time in `queue`, of all requests), failed_calls (number of failed outbound
            calls), failed_seconds (time in them), load_seconds (time of the loads and first runs of models of its processes that
            ended in the window; their start up to the first request is left out, because it may be idle).
        """
        with self._snapshot() as snapshot:
            selection = Selection(start, end, environment=environment)
            columns = fetch(snapshot, PointQuery(selection, (STAGE_TIME, FAILED_CALL), by="total", counts_only=True))
            names, owned = with_service_numbers(snapshot.connection, selection, columns)
            queued, failed = points_with_key(owned.of(STAGE_TIME), "queue"), owned.of(FAILED_CALL)
            # Weights of `bincount` are floats, which are exact for microseconds up to 285 years.
            waste = {
                "queue_seconds": np.bincount(queued.series, queued.counts, len(names)) * _MICRO,
                "failed_calls": np.bincount(failed.series, failed.counts, len(names)).astype(np.int64),
                "failed_seconds": np.bincount(failed.series, failed.sum, len(names)),
            }
            table = pd.DataFrame(waste, index=pd.Index(names, name="service", dtype=object))
            loads = _load_seconds(snapshot, selection)
            return table.assign(load_seconds=[loads.get(name, 0.0) for name in names])

    def fleet_counts(self, selection: Selection, metric: str) -> dict[str, dict[str, int]]:
        with self._snapshot() as snapshot:
            query = PointQuery(selection, (metric,), by="total", counts_only=True)
            by_service = _split_by_service(snapshot, selection, fetch(snapshot, query))
            return {
                service: dict(
                    zip(points.stages, np.bincount(points.stage, points.counts).astype(int).tolist(), strict=True)
                )
                for service, points in by_service
            }

    def fleet_hardware(
        self,
        start: datetime,
        end: datetime,
        step: timedelta,
        measures: Collection[str],
        *,
        environment: str | None = None,
    ) -> pd.DataFrame:
        """Return some of the hardware measures of every service.

        Returns:
            The rows of `ReplicaQueries.hardware` of each service, with the index service.
        """
        with self._snapshot() as snapshot:
            selection = Selection(start, end, environment=environment)
            columns, steps = fetch_steps(snapshot, PointQuery(selection, (HARDWARE,), by="total"), step)
            names, owned = with_service_numbers(snapshot.connection, selection, columns)
            wanted = [number for number, key in enumerate(owned.stages) if split_hardware_key(key)[0] in measures]
            return hardware_table(owned.where(np.isin(owned.stage, wanted)), steps, selection, names or ("",))

    def versions(self, selection: Selection) -> pd.DataFrame:
        """Return the versions of a selection over its whole history.

        Returns:
            Columns version, first_seen, last_seen (UTC, in all retained data, exact to 10 s), requests (in the window, 0 if
            none); sorted by first_seen.
        """
        with self._snapshot() as snapshot:
            selection = replace(selection, version=None)
            seen = series_with_requests(snapshot, selection).groupby("version")["requests"].sum()
            table = schema.series
            history = (
                select(table.c.version, func.min(table.c.first_seen).label("first_seen"), func.max(table.c.last_seen))
                .where(*selection.conditions())
                .group_by(table.c.version)
                # Versions first seen in the same bucket are ordered by id.
                .order_by("first_seen", func.min(table.c.id))
            )
            rows = [
                {"version": version, "first_seen": first, "last_seen": last, "requests": int(seen.get(version, 0))}
                for version, first, last in snapshot.connection.execute(history)
            ]
            return _with_times(frame(VERSION_COLUMNS, rows))

    def environments(self) -> list[str]:
        with self._snapshot() as snapshot:
            column = schema.series.c.environment
            return list(
                snapshot.connection.execute(select(column).where(column != "").distinct().order_by(column)).scalars()
            )

    def service_environments(self) -> dict[str, frozenset[str]]:
        with self._snapshot() as snapshot:
            table = schema.series
            by_service: dict[str, set[str]] = {}
            for service, environment in snapshot.connection.execute(
                select(table.c.service, table.c.environment).distinct()
            ):
                by_service.setdefault(service, set()).add(environment)
            return {service: frozenset(environments) for service, environments in by_service.items()}

    def releases(self, environment: str | None = None) -> pd.DataFrame:
        """Return the versions of every service over the whole history, in one inexpensive query.

        Returns:
            Columns service, version, first_seen, last_seen (UTC, in all retained data, exact to 10 s); sorted by service, then
            by first_seen.
        """
        with self._snapshot() as snapshot:
            table = schema.series
            dimensions = (table.c.service, table.c.version)
            statement = (
                select(*dimensions, func.min(table.c.first_seen).label("first_seen"), func.max(table.c.last_seen))
                .group_by(*dimensions)
                .order_by(table.c.service, "first_seen")
            )
            if environment is not None:
                statement = statement.where(table.c.environment == storable_name(environment))
            rows = snapshot.connection.execute(statement)
            return _with_times(frame(RELEASE_COLUMNS, [dict(zip(RELEASE_COLUMNS, row, strict=True)) for row in rows]))

    def dimensions(self, selection: Selection) -> dict[str, dict[str, int]]:
        """Return the values of each dimension (service, version, model, route, device, …) in the requests of *selection*.

        Returns:
            For each dimension the number of requests by value, most requests first; unknown values are left out.
        """
        with self._snapshot() as snapshot:
            seen = series_with_requests(snapshot, selection)
            counted = {
                name: seen.groupby(name)["requests"].sum().sort_values(ascending=False) for name in schema.DIMENSIONS
            }
            return {
                name: {str(value): int(n) for value, n in counts.items() if value} for name, counts in counted.items()
            }

    def events(
        self, start: datetime, end: datetime, *, service: str | None = None, kind: str | None = None
    ) -> pd.DataFrame:
        """Return the events in `[start, end)`.

        Returns:
            Columns at (UTC), service ("" for all), kind, key, text, link; newest first.
        """
        with self._snapshot() as snapshot:
            table = schema.events
            statement = (
                select(*(table.c[name] for name in EVENT_COLUMNS))
                .where(table.c.at >= int(start.timestamp() * 1000), table.c.at < int(end.timestamp() * 1000))
                .order_by(table.c.at.desc(), table.c.id.desc())
            )
            if service is not None:
                statement = statement.where(table.c.service.in_(("", storable_name(service))))
            if kind is not None:
                statement = statement.where(table.c.kind == kind)
            rows = [tuple(row) for row in snapshot.connection.execute(statement)]
            shown = pd.DataFrame(rows, columns=list(EVENT_COLUMNS))
            return shown.assign(at=pd.to_datetime(shown["at"].astype("int64"), unit="ms", utc=True))

    def whole(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """Return `[start, end)` extended to whole buckets of the retained tiers: hours where minutes are deleted.

        A bucket belongs to the window that contains its start: a window that starts within a bucket would not contain the bucket,
        and a window that ends within a bucket would contain the whole bucket.
        """
        with self._snapshot() as snapshot:
            tiers = snapshot.tiers
        first, last = schema.whole_buckets(tiers, math.floor(start.timestamp()), math.ceil(end.timestamp()))
        return moment(first), moment(last)

    def revision(self, service: str | None = None) -> int:
        """Return a number that grows with every write of *service*, or of any service; 0 before the first write."""
        with self._snapshot() as snapshot:
            table = schema.services
            statement = select(func.max(table.c.revision))
            if service is not None:
                statement = statement.where(table.c.name == storable_name(service))
            return snapshot.connection.execute(statement).scalar() or 0

    def revisions(self) -> dict[str, tuple[int, int]]:
        """Return for each service with requests its revision, and the end of its data in Unix seconds."""
        services, series = schema.services.c, schema.series.c
        newest = func.max(series.last_seen).label("newest")
        statement = select(services.name, services.revision, newest).where(series.service_id == services.id)
        with self._snapshot() as snapshot:
            rows = snapshot.connection.execute(statement.group_by(services.name, services.revision))
            return {row.name: (row.revision, row.newest + schema.FINEST) for row in rows}


_MICRO, _NANO = 1e-6, 1e-9


def _load_seconds(snapshot: StoreSnapshot, selection: Selection) -> dict[str, float]:
    table, (start, end) = schema.loads, selection.seconds
    statement = (
        select(table.c.service, func.sum(table.c.own))
        .where(
            table.c.ended >= round(start / _NANO),
            table.c.ended < round(end / _NANO),
            table.c.phase.not_in((LOAD_START.key, STOPPED)),
        )
        .group_by(table.c.service)
    )
    if selection.environment is not None:
        statement = statement.where(table.c.environment == storable_name(selection.environment))
    return {service: float(ns) * _NANO for service, ns in snapshot.connection.execute(statement)}


def _split_by_service(snapshot: StoreSnapshot, selection: Selection, columns: Columns) -> Iterator[tuple[str, Columns]]:
    names, owned = with_service_numbers(snapshot.connection, selection, columns)
    grouped = sum_points(owned)
    edges = np.flatnonzero(np.diff(grouped.series, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(edges):
        yield names[int(grouped.series[low])], grouped.between(low, high).without_unused_stages()


def series_with_requests(snapshot: StoreSnapshot, selection: Selection, others: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return the series with requests in *selection*: dimensions, number of `requests`, and `first` and `last` bucket.

    Those with a metric of *others* are returned even without requests.
    """
    segments = schema.plan_segments(snapshot.tiers, *selection.seconds)
    rows = [
        (seen.series_id, seen.requests if is_request else 0, seen.first, seen.last)
        for is_request, metrics in ((True, (REQUEST_DURATION,)), (False, others))
        if metrics
        for seen in snapshot.points.seen(snapshot.connection, PointQuery(selection, metrics, by="series"), segments)
    ]
    counted = pd.DataFrame(rows, columns=["id", "requests", "first", "last"])
    counted = counted.groupby("id").agg({"requests": "sum", "first": "min", "last": "max"})
    columns = [schema.series.c[name] for name in ("id", *schema.DIMENSIONS, "first_seen", "last_seen")]
    described = pd.DataFrame(
        snapshot.connection.execute(select(*columns).where(*selection.conditions()).order_by(schema.series.c.id)).all(),
        columns=["id", *schema.DIMENSIONS, "first_seen", "last_seen"],
    )
    merged = described.merge(counted, on="id")
    # The buckets of a coarse tier are wide, but the times in the table of series are exact to 10 s.
    merged["first"] = merged[["first", "first_seen"]].max(axis=1)
    merged["last"] = merged[["last", "last_seen"]].min(axis=1).clip(lower=merged["first"])
    return merged


def _with_times(table: pd.DataFrame) -> pd.DataFrame:
    for column in ("first_seen", "last_seen"):
        table[column] = utc_times(table[column])
    return table
