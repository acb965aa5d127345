"""Queries of replicas: hardware measures, open requests, cold starts, statistics of scraped engines, and liveness of the collector.

Engines report fixed buckets, which are treated as intervals, and exact sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import func, select

from ...core import names
from ...core.columns import Floats
from ...core.hardware import split_hardware_key
from ...core.histogram import BATCH_SIZES, Distribution, Histogram
from ...core.names import HARDWARE, NOTED_US, OPEN_TIME
from .. import schema
from ..events import STOPPED
from ..retention import SETTLE_SECONDS
from ..schema import storable_name
from ..selection import Selection, moment
from ..series import store_time
from ..storage import Columns, PointQuery, Steps, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch, fetch_exact, fetch_steps, histograms_by_key
from .frames import with_step_times

OPEN_COLUMNS = ("route", "place", "requests", "oldest_seconds")
_METRIC_PAIRS = (names.ENGINE_REQUEST, names.ENGINE_STAGE, names.ENGINE_FIRST_TOKEN, names.ENGINE_OUTPUT_TOKEN)
_ENGINE_METRICS = (*(metric for pair in _METRIC_PAIRS for metric in pair), names.ENGINE_TOKENS, names.ENGINE_BATCH)
LOAD_COLUMNS = ("instance", "place", "version", "environment", "phase", "model", "shape", "started", "ended", "own")
_NS = 1_000_000_000
# A live replica reports every ten seconds; a replica silent for longer than this has no last report. [seconds]
_LAST_REPORT_SECONDS = 600
# Microseconds for which a process reports an open request in each bucket.
_SEEN_US = schema.FINEST * 1_000_000
# More than a process notes in one bucket beside its regular reports.
_NOTED_US = 10_000 * NOTED_US
STOPPED_COLUMNS = ("service", "place", "version", "route", "at", "requests", "oldest_seconds")
HARDWARE_COLUMNS = ("at", "measure", "place", "mean", "most")


class ReplicaQueries(QueryGroup):
    """Queries of the machines, open requests, cold starts and engines of a service."""

    def open_requests(self, selection: Selection) -> pd.DataFrame:
        """Return the requests that were open near the end of *selection*, as its processes last reported.

        Returns:
            Columns route, place (`core.hardware.place` of the process), requests (their number) and oldest_seconds (the age of
            the oldest one, at most 2.2 % too large), the oldest first. `attrs["at"]` is the time of the reports (UTC), which are
            10 s to 40 s old; None without any.
        """
        with self._snapshot() as snapshot:
            return _open_requests(snapshot, selection)

    def open_longer_than(self, selection: Selection, threshold_seconds: float) -> float:
        """Return the number of requests of `open_requests` that had been open for longer than *threshold_seconds*."""
        with self._snapshot() as snapshot:
            reported = open_points(snapshot, selection)
        if not len(reported):
            return 0.0
        return add_up(reported).histogram().count_above(threshold_seconds).value / _SEEN_US

    def hardware(self, selection: Selection, step: timedelta) -> pd.DataFrame:
        """Return the hardware measures of *selection*'s service in each step with data.

        Measures describe whole processes, so the model, route and status of the selection are ignored.

        Returns:
            Columns at (UTC, start of the step), measure (a key of `core.hardware.MEASURES`), place (`core.hardware.place`), mean
            and most (mean and maximum of the values in the step, the maximum at most 2.2 % too large; in the unit of the measure,
            rates per second); sorted by time, measure and place. `attrs["step_seconds"]` is the width of the steps.
        """
        with self._snapshot() as snapshot:
            # A machine serves all models and routes, and also failed requests.
            whole = replace(selection, model=None, route=None, status=None)
            columns, steps = fetch_steps(snapshot, PointQuery(whole, (HARDWARE,)), step)
            return hardware_table(columns, steps, selection)

    def loads(self, service: str, environment: str | None = None) -> pd.DataFrame:
        """Return the phases of the cold starts of the replicas of *service*, newest first, over the whole history.

        Returns:
            Columns instance, place (host and process), version, environment, phase (a key of `core.stages.LOAD_PHASES`),
            model, shape, started, ended (UTC), seconds (time outside of other phases), `heard` (UTC, time of the last report of the
            replica; NaT without a report within ten minutes).
        """
        with self._snapshot() as snapshot:
            return _loads(snapshot, service, environment, int(self._clock()) - _LAST_REPORT_SECONDS)

    def stopped(self, selection: Selection) -> pd.DataFrame:
        """Return the processes that stopped sending in *selection* with open requests, at most 100 of a service, newest first.

        Returns:
            Columns service, place (`core.hardware.place`), version, route (of the oldest request), at (UTC, time of the last
            report), requests (open then) and oldest_seconds (the age of the oldest one, at most 2.2 % too large).
        """
        with self._snapshot() as snapshot:
            return _stopped(snapshot, selection)

    def engines(self, selection: Selection) -> list[EngineModel]:
        """Return the statistics of the scraped engines of *selection*, by service and model, the busiest first.

        The statistics are independent of all other queries: a request that an agent has also counted is in both.
        """
        with self._snapshot() as snapshot:
            columns = fetch(snapshot, PointQuery(selection, _ENGINE_METRICS, by="series"))
            owners = _engine_series(snapshot, selection)
            models = {owners[number] for number in set(columns.series.tolist()) if number in owners}
            engines = [_engine_model(columns, owners, *owner) for owner in models]
            return sorted(engines, key=lambda engine: (-engine.count, engine.service, engine.model))

    def stale_since(self, now: datetime, timeout: timedelta) -> datetime | None:
        """Return the time of the last data if the collector has been inactive for *timeout*; None if it is active."""
        at = int(now.timestamp())
        with self._snapshot() as snapshot:
            return snapshot.once(("stale", at, timeout), lambda: _stale_since(snapshot, at, timeout))


def _stale_since(snapshot: StoreSnapshot, now: int, timeout: timedelta) -> datetime | None:
    """Return the time of the last data if the collector has stopped; *now* is in Unix seconds.

    A running collector rolls up complete buckets even if no data arrive, until some time after the newest data.
    """
    newest = snapshot.connection.execute(select(func.max(schema.series.c.last_seen))).scalar()
    rolled_up = snapshot.tiers[1].watermark
    if newest is None or not rolled_up:
        return None
    waited = int(timeout.total_seconds())
    silent = newest + schema.FINEST
    due = store_time(snapshot.connection, now).settled - SETTLE_SECONDS - waited
    return moment(silent) if now - silent > waited and rolled_up < due else None


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Statistics that the engines of a service report about one model; times in seconds."""

    service: str
    model: str
    requests: Distribution = field(default_factory=Distribution)
    stages: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    first_token: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    output_token: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    batches: Mapping[str, Histogram] = field(default_factory=dict[str, Histogram])

    @property
    def count(self) -> int:
        """Number of requests; if the duration of requests is unknown, the count of the most frequent stage."""
        return max(self.requests.count, *(stage.count for stage in self.stages.values()), 0)

    @property
    def mean_by_stage(self) -> dict[str, float]:
        """Exact mean time per request in each stage, in the order of stages; the sum may differ from the duration of requests."""
        count = self.count
        return {stage: measured.lows.sum / count for stage, measured in self.stages.items() if count and measured.count}


def _engine_series(snapshot: StoreSnapshot, selection: Selection) -> dict[int, tuple[str, str]]:
    series = schema.series
    statement = select(series.c.id, series.c.service, series.c.model).where(*selection.conditions())
    return {row.id: (row.service, row.model) for row in snapshot.connection.execute(statement)}


def _engine_model(columns: Columns, owners: Mapping[int, tuple[str, str]], service: str, model: str) -> EngineModel:
    numbers = [number for number, owner in owners.items() if owner == (service, model)]
    mine = columns.where(np.isin(columns.series, numbers))
    requests, stages, first_token, output_token = (_interval_distributions(mine, pair) for pair in _METRIC_PAIRS)
    batches = histograms_by_key(mine.of(names.ENGINE_BATCH))
    return EngineModel(
        service,
        model,
        # Each engine has a single definition.
        requests.get(names.BY_ENGINE, Distribution()),
        stages,
        first_token,
        output_token,
        {key: histogram.count for key, histogram in histograms_by_key(mine.of(names.ENGINE_TOKENS)).items()},
        {band: batches[band] for band in sorted(batches, key=BATCH_SIZES.position)},
    )


def _interval_distributions(columns: Columns, pair: Iterable[str]) -> dict[str, Distribution]:
    lows, highs = (histograms_by_key(columns.of(metric)) for metric in pair)
    return {key: Distribution(low, highs[key]) for key, low in lows.items() if key in highs}


def _loads(snapshot: StoreSnapshot, service: str, environment: str | None, received_since: int) -> pd.DataFrame:
    table, batches = schema.loads, schema.batches
    wanted = (
        select(*(table.c[name] for name in LOAD_COLUMNS))
        .where(table.c.service == storable_name(service), table.c.phase != STOPPED)
        .order_by(table.c.ended.desc(), table.c.id.desc())
    )
    if environment is not None:
        wanted = wanted.where(table.c.environment == storable_name(environment))
    rows = pd.DataFrame([tuple(row) for row in snapshot.connection.execute(wanted)], columns=list(LOAD_COLUMNS))
    received = (
        select(batches.c.instance, func.max(batches.c.received))
        .where(batches.c.received >= received_since, batches.c.instance != "")
        .group_by(batches.c.instance)
    )
    last = {instance: at for instance, at in snapshot.connection.execute(received)}  # noqa: C416 - rows are no tuples to types
    return rows.assign(
        started=pd.to_datetime(rows["started"].astype("int64"), unit="ns", utc=True),
        ended=pd.to_datetime(rows["ended"].astype("int64"), unit="ns", utc=True),
        seconds=rows.pop("own").astype("float64") / 1e9,
        heard=pd.to_datetime(rows["instance"].map(last).astype("float64"), unit="s", utc=True),
    )


def open_points(snapshot: StoreSnapshot, selection: Selection) -> Columns:
    """Return the newest reports of open requests; those of the last bucket may not all have arrived."""
    end = selection.seconds[1] - 2 * schema.FINEST
    recent = replace(selection, start=moment(end - 2 * schema.FINEST), end=moment(end), status=None, cold=None)
    columns, _ = fetch_exact(snapshot, PointQuery(recent, (OPEN_TIME,), by="series"), schema.FINEST)
    counted = columns.where(columns.counts > _NOTED_US)
    return counted.where(counted.times == counted.times.max()) if len(counted) else counted


def _open_requests(snapshot: StoreSnapshot, selection: Selection) -> pd.DataFrame:
    reported = open_points(snapshot, selection)
    series = schema.series.c
    routes = dict(snapshot.connection.execute(select(series.id, series.route).where(*selection.conditions())).all())
    rows = {
        "route": [routes.get(number, "") for number in reported.series.tolist()],
        "place": [split_hardware_key(reported.stages[number])[1] for number in reported.stage.tolist()],
        "requests": np.rint(reported.counts / _SEEN_US).astype(np.int64),
        "oldest_seconds": _upper_limits(reported),
    }
    added = {"requests": "sum", "oldest_seconds": "max"}
    table = pd.DataFrame(rows, columns=list(OPEN_COLUMNS)).groupby(["route", "place"], as_index=False).agg(added)
    # With exports every second the number is a mean, and a request that was open at one of ten is none.
    table = table[table["requests"] > 0].sort_values("oldest_seconds", ascending=False, ignore_index=True)
    table.attrs["at"] = moment(int(reported.times.max()) + schema.FINEST) if len(table) else None
    return table


def _stopped(snapshot: StoreSnapshot, selection: Selection) -> pd.DataFrame:
    loads, (start, end) = schema.loads.c, selection.seconds
    filters = {
        name: value for name, value in selection.dimensions.items() if name in ("service", "version", "environment")
    }
    wanted = (
        select(
            loads.service, loads.place, loads.version, loads.model, loads.ended, loads.own, loads.ended - loads.started
        )
        .where(loads.phase == STOPPED, loads.ended >= start * _NS, loads.ended < end * _NS)
        .where(*(loads[name] == value for name, value in filters.items()))
        .order_by(loads.ended.desc(), loads.id.desc())
    )
    table = pd.DataFrame([tuple(row) for row in snapshot.connection.execute(wanted)], columns=list(STOPPED_COLUMNS))
    return table.assign(
        at=pd.to_datetime(table["at"].astype("int64"), unit="ns", utc=True),
        oldest_seconds=table["oldest_seconds"].astype("float64") / _NS,
    )


def hardware_table(columns: Columns, steps: Steps, selection: Selection, services: Sequence[str] = ()) -> pd.DataFrame:
    values = {
        "at": steps.of(columns.times),
        "name": np.array(columns.stages, object)[columns.stage],
        "n": columns.counts,
        "sum": columns.sum,
        # No value is above the sum, so that a single value is exact.
        "most": np.minimum(_upper_limits(columns), columns.sum),
    }
    added = {"n": "sum", "sum": "sum", "most": "max"}
    keys = ["at", "name"]
    if services:
        values, keys = {**values, "service": np.array(services, object)[columns.series]}, ["service", *keys]
    hardware = pd.DataFrame(values).groupby(keys, sort=True).agg(added).reset_index()
    names = [split_hardware_key(name) for name in hardware["name"]]
    table = hardware.assign(
        measure=[measure for measure, _ in names],
        place=[device for _, device in names],
        mean=hardware["sum"] / hardware["n"],
    )
    shown = table.set_index("service") if services else table
    return with_step_times(shown[list(HARDWARE_COLUMNS)], steps, selection)


def _upper_limits(columns: Columns) -> Floats:
    filled = columns.buckets.lengths > 0
    last = columns.buckets.index[columns.buckets.offsets[1:][filled] - 1]
    most = np.zeros(len(columns))
    most[filled] = 2.0 ** ((last + 1) / 2.0 ** columns.scale[filled])
    return most
