"""Queries of requests by minute and histogram bucket, for many groups in one query.

A group consists of the requests of a service in one environment, or of those with one route, model or version. Series with
histograms coarser than `SCALE`, such as fixed buckets of scraped engines, are left out, and so are values below a nanosecond.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from sqlalchemy import select

from ...analysis.regression.statistic import MinuteHistograms, StageSeconds
from ...core.columns import Ints
from ...core.histogram import SCALE
from ...core.names import REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from ...core.stages import OTHER
from .. import schema
from ..selection import Selection, moment
from ..storage import Columns, PointQuery, Steps, StoreSnapshot, bucket_table
from .fetch import QueryGroup, fetch, fetch_exact

Dimension = Literal["", "route", "model", "version"]
DIMENSIONS: tuple[Dimension, ...] = ("", "route", "model", "version")
MINUTE = 60
# Time without requests after which a series is ignored. [seconds]
_RECENT_SECONDS = 86_400
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that are counted together."""

    service: str
    dimension: Dimension = ""
    value: str = ""
    environment: str = ""


class MinuteQueries(QueryGroup):
    def minutes(self, selection: Selection) -> MinuteHistograms:
        with self._snapshot() as snapshot:
            return _count_selection(snapshot, selection, STAGE_DURATION, MINUTE)

    def sums(self, selection: Selection) -> MinuteHistograms:
        """Return the sum of `minutes` over all of *selection*, as the counts of one minute; reads the coarsest buckets."""
        with self._snapshot() as snapshot:
            # Without the time of which no minutes are retained.
            first_retained = next(tier.kept_from for tier in snapshot.tiers if tier.seconds == MINUTE)
            retained = replace(selection, start=max(selection.start, moment(first_retained)))
            columns = fetch(snapshot, PointQuery(retained, (REQUEST_DURATION, STAGE_DURATION)))
            return _count_everything(columns, Steps(selection.seconds[0], None), 1)

    def spent(self, selection: Selection, step: timedelta) -> StageSeconds:
        with self._snapshot() as snapshot:
            width = round(step.total_seconds())
            histograms = _count_selection(snapshot, selection, STAGE_TIME, width)
            start = selection.seconds[0] // width * width // MINUTE
            seconds = histograms.own / _MICROSECONDS
            return StageSeconds(start, width // MINUTE, histograms.index, histograms.total, histograms.stages, seconds)

    def groups(self, since: datetime) -> dict[Group, datetime]:
        """Return the groups with requests after *since*: every service, and its routes, models and versions if it has several.

        A service that is deployed in several environments has a group for each environment.

        Returns:
            The time at which each group was first seen in the retained data.
        """
        with self._snapshot() as snapshot:
            members = _group_members(snapshot, math.ceil(since.timestamp()))
        return {group: moment(first) for group, (first, _) in members.items()}

    def all_minutes(self, start: datetime, end: datetime) -> dict[Group, MinuteHistograms]:
        """Return the requests of every group of `groups` by minute, in one query.

        The window is counted in whole minutes. Data in buckets wider than a minute or with a scale coarser than `SCALE` are left
        out, and so are groups without requests.
        """
        with self._snapshot() as snapshot:
            selection = Selection(start, end)
            question = PointQuery(selection, (REQUEST_DURATION, STAGE_DURATION), by="series")
            columns, steps = fetch_exact(snapshot, question, MINUTE)
            first, last = selection.seconds
            members = {
                group: numbers for group, (_, numbers) in _group_members(snapshot, first - _RECENT_SECONDS).items()
            }
            return dict(_count_groups(columns, steps, _step_count(first, last, MINUTE), members))


def _count_selection(snapshot: StoreSnapshot, selection: Selection, metric: str, width: int) -> MinuteHistograms:
    columns, steps = fetch_exact(snapshot, PointQuery(selection, (REQUEST_DURATION, metric)), width)
    return _count_everything(columns, steps, _step_count(*selection.seconds, width))


def _count_everything(columns: Columns, steps: Steps, length: int) -> MinuteHistograms:
    everything = Group("")
    by_group = dict(_count_groups(columns, steps, length, {everything: np.unique(columns.series)}))
    empty = np.zeros((length, 0), np.int64)
    none = MinuteHistograms(steps.start // MINUTE, empty[0], empty, (), np.zeros((0, length, 0), np.int64))
    return by_group.get(everything, none)


def _step_count(start: int, end: int, width: int) -> int:
    return max(-(-end // width) - start // width, 0)


def _group_members(snapshot: StoreSnapshot, since: int) -> dict[Group, tuple[int, Ints]]:
    series = schema.series.c
    parts = (series.route, series.model, series.version)
    wanted = (series.id, series.service, series.environment, *parts, series.first_seen)
    members: dict[Group, tuple[int, list[int]]] = {}
    for row in snapshot.connection.execute(select(*wanted).where(series.last_seen >= since)).mappings():
        for dimension in DIMENSIONS:
            value = row[dimension] if dimension else ""
            group = Group(row["service"], dimension, value, row["environment"])
            first, numbers = members.setdefault(group, (row["first_seen"], []))
            members[group] = min(first, row["first_seen"]), numbers
            numbers.append(row["id"])
    several = _distinct_groups(members)
    return {group: (first, np.array(numbers)) for group, (first, numbers) in members.items() if group in several}


def _distinct_groups(groups: Mapping[Group, Any]) -> set[Group]:
    kinds = Counter((group.service, group.environment, group.dimension) for group in groups)
    parts = {
        group
        for group in groups
        if kinds[group.service, group.environment, group.dimension] > 1 and group.value not in ("", OTHER)
    }
    return {
        group
        for group in groups
        if OTHER not in (group.service, group.environment) and (not group.dimension or group in parts)
    }


def _count_groups(
    columns: Columns, steps: Steps, length: int, members: Mapping[Group, Ints]
) -> Iterator[tuple[Group, MinuteHistograms]]:
    columns = columns.where(columns.scale == SCALE)
    if not len(columns):
        return
    names = list(members)
    point, group = _membership(columns.series, [members[name] for name in names])
    # A point counts all requests, or one stage; the points of a group are consecutive.
    slot = np.where(columns.metric == schema.METRIC_CODES[REQUEST_DURATION], 0, columns.stage + 1)
    cell = slot * length + steps.number(columns.times)
    for low, high in pairwise([*np.flatnonzero(np.diff(group, prepend=-1)).tolist(), len(group)]):
        yield names[int(group[low])], _count_points(columns, steps, point[low:high], cell, length)


def _membership(series: Ints, members: list[Ints]) -> tuple[Ints, Ints]:
    ids, which = np.unique(series, return_inverse=True)
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(len(ids) + 1))
    rows = {number: order[edges[n] : edges[n + 1]] for n, number in enumerate(ids.tolist())}
    points = [[rows[number] for number in member.tolist() if number in rows] for member in members]
    lengths = [sum(map(len, member)) for member in points]
    flat = [point_rows for member in points for point_rows in member]
    return np.concatenate(flat) if flat else np.zeros(0, np.int64), np.repeat(np.arange(len(members)), lengths)


def _count_points(columns: Columns, steps: Steps, points: Ints, cells: Ints, length: int) -> MinuteHistograms:
    slots, slot = np.unique(np.append(cells[points] // length, 0), return_inverse=True)
    row = slot[:-1] * length + cells[points] % length
    index, amount = bucket_table(columns.take(points), row, len(slots) * length, SCALE)
    table = amount.reshape(len(slots), length, len(index))
    stages = tuple(columns.stages[number - 1] for number in slots.tolist() if number)
    return MinuteHistograms(steps.start // MINUTE, index, table[0], stages, table[1:])
