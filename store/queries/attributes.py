"""Queries of the requests by the values of their attributes, and by replica.

Rows of attributes have no totals and are many, so two rules bound a query. Steps of long windows are whole hours, which the
coarsest tier has. Where the rows are still too many, only a part of each step is read, the same share of every step; the place of
this part changes from step to step, so that no time of day or minute of the hour is preferred. The counts are then those of the
requests in these parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
from sqlalchemy import select

from ...analysis.attributes import AttributeCounts
from ...analysis.replicas import ReplicaCounts, ReplicaTable
from ...core.attributes import (
    ATTRIBUTE_SCALE,
    DIMENSIONS,
    REPLICA,
    SCRAPED,
    split_attribute_key,
    split_replica_stage_key,
)
from ...core.columns import Ints
from ...core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE, REQUEST_DURATION
from ...core.stages import OTHER
from .. import schema
from ..selection import Selection, step_seconds
from ..series import MAX_ATTRIBUTE_VALUES
from ..storage import Columns, PointQuery, Steps, StoreSnapshot, bucket_table, join_columns
from .fetch import QueryGroup, fetch_segments

_MINUTE, _HOUR, _DAY_SECONDS = 60, 3600, 86_400
# The coarsest tier with rows of replicas. [seconds]
_REPLICA_TIER = max(tier for tier in schema.TIERS if tier < schema.WITHOUT_REPLICAS)
# Fine enough that an incident of some minutes covers several steps of a window of hours: a cause is named by several steps.
MAX_STEPS = 480
# Maximum number of rows of a query; and of rows of replicas beside those of other attributes, among which they are stored.
MAX_ROWS, _MAX_REPLICA_ROWS = 100_000, 25_000
# Buckets whose rows are counted to estimate the rows of a query.
_PROBES = 40
# Fractional parts of its multiples are spread evenly over [0, 1).
_GOLDEN_RATIO = 0.6180339887


class AttributeQueries(QueryGroup):
    def attributes(self, selection: Selection, steps: int = MAX_STEPS) -> AttributeCounts:
        """Return the requests of *selection* by the values of each attribute, in at most *steps* steps of at least a minute.

        Dimensions of the series are attributes, too. An attribute has at most `MAX_ATTRIBUTE_VALUES` values and `__other__`. The
        replica is known in the minute tier only, so it may have requests in fewer steps than the other attributes.
        """
        with self._snapshot() as snapshot:
            chosen, starts = _steps(snapshot, selection, steps)
            widest = _widest_of(chosen)
            counted = PointQuery(selection, (REQUEST_BY_ATTRIBUTE,))
            sample = _sample(snapshot, counted, chosen, starts, widest, MAX_ROWS)
            by_value = sample.fetch(snapshot, counted)
            if widest > _REPLICA_TIER:
                of_replica = np.array([split_attribute_key(key)[0] == REPLICA.key for key in by_value.stages], bool)
                replicas = replace(counted, prefix=f"{REPLICA.key}=")
                finer = _sample(snapshot, replicas, chosen, starts, _REPLICA_TIER, _MAX_REPLICA_ROWS)
                by_value = join_columns([by_value.where(~of_replica[by_value.stage]), finer.fetch(snapshot, replicas)])
            by_series = sample.fetch(snapshot, PointQuery(selection, (REQUEST_DURATION,), by="series"))
            keys = _keys(by_value)
            names = sorted(set(keys))
            position = {name: number for number, name in enumerate(names)}
            series, which = np.unique(by_series.series, return_inverse=True)
            columns = join_columns([by_value, by_series])
            row = np.concatenate(
                (np.array([position[key] for key in keys], np.int64)[by_value.stage], len(names) + which)
            )
            scale, index, table = _table(columns, sample.step_of(columns), row, (len(starts), len(names) + len(series)))
            requests: defaultdict[str, dict[str, Ints]] = defaultdict(dict)
            places = _places(value for name, value in names if name == REPLICA.key)
            for number, (name, value) in enumerate(names):
                if name == REPLICA.key and value in places:
                    requests[name][places[value]] = table[:, number]
                elif name not in (OTHER, REPLICA.key):
                    requests[name][value] = table[:, number]
            # A dimension replaces an attribute of the same name.
            requests.update(_by_dimension(snapshot, series, table[:, len(names) :]))
            return AttributeCounts(scale, index, starts, dict(requests))

    def replica_counts(self, selection: Selection, steps: int = 60) -> ReplicaTable:
        """Return the requests and the time in stages of each replica of *selection*, in at most *steps* steps of at least a minute.

        Replicas beyond the cap (`SeriesIndex.attribute`) are one replica `__other__`; a process without a name is left out.
        """
        with self._snapshot() as snapshot:
            chosen, starts = _steps(snapshot, selection, steps)
            spent = PointQuery(selection, (REPLICA_STAGE_TIME,))
            sample = _sample(snapshot, spent, chosen, starts, min(_widest_of(chosen), _REPLICA_TIER), MAX_ROWS)
            latency = sample.fetch(snapshot, PointQuery(selection, (REQUEST_BY_ATTRIBUTE,), prefix=f"{REPLICA.key}="))
            values = [split_attribute_key(stage)[1] for stage in latency.stages]
            scale, index, table = _table(latency, sample.step_of(latency), latency.stage, (len(starts), len(values)))
            stages = _stage_time(sample.fetch(snapshot, spent), sample)
            replicas = [
                ReplicaCounts(replica, table[:, values.index(value)], stages.get(value, {}))
                for value, replica in _places(filter(None, values)).items()
            ]
            return ReplicaTable(scale, index, starts, replicas)


@dataclass(frozen=True, slots=True)
class _Sample:
    steps: Steps
    starts: Ints
    segments: Sequence[schema.Segment]

    def fetch(self, snapshot: StoreSnapshot, question: PointQuery) -> Columns:
        return fetch_segments(snapshot, question, self.steps, self.segments)

    def step_of(self, columns: Columns) -> Ints:
        return self.steps.number(columns.times)


def _steps(snapshot: StoreSnapshot, selection: Selection, most: int) -> tuple[Steps, Ints]:
    start, end = selection.seconds
    least = max(_MINUTE, schema.finest_retained(snapshot.tiers, start))
    width = max((end - start) / max(most, 1), _HOUR if end - start > _DAY_SECONDS else least)
    width = step_seconds(timedelta(seconds=width))
    while (end - 1) // width - start // width >= most > 1:
        width = step_seconds(timedelta(seconds=width + 1))
    steps = Steps(start, width)
    return steps, steps.of(np.arange(schema.floor_to(start, width), max(end, start + 1), width))


def _widest_of(steps: Steps) -> int:
    return schema.widest_dividing(steps.width or schema.FINEST)


def _sample(  # noqa: PLR0917 - a query and its limits
    snapshot: StoreSnapshot, question: PointQuery, steps: Steps, starts: Ints, widest: int, most: int
) -> _Sample:
    tiers = snapshot.tiers
    start, end = question.selection.seconds
    bounds = [*starts.tolist(), end]
    # The rows of one bucket of every few steps, by which the number of all rows is estimated.
    counted = [
        segment
        for number in range(0, len(starts), -(-len(starts) // _PROBES))
        for segment in schema.plan_segments(tiers, *_part(bounds, number, widest, widest), widest)
    ]
    rows = snapshot.points.number(snapshot.connection, question, counted)
    probed = sum(segment.end - segment.start for segment in counted)
    share = most * probed / (rows * (end - start)) if rows else 1.0
    if share >= 1:
        return _Sample(steps, starts, schema.plan_segments(tiers, start, end, widest))
    seconds = schema.floor_to(int(share * (steps.width or 0)), widest)
    parts = [_part(bounds, number, max(seconds, widest), widest) for number in range(len(starts))]
    return _Sample(steps, starts, [planned for part in parts for planned in schema.plan_segments(tiers, *part, widest)])


def _part(bounds: Sequence[int], number: int, seconds: int, bucket: int) -> tuple[int, int]:
    start, end = bounds[number : number + 2]
    first = schema.ceil_to(start, bucket)
    spare = max(end - first - seconds, 0)
    at = first + schema.floor_to(int(number * _GOLDEN_RATIO % 1 * (spare + bucket)), bucket) if spare else start
    return at, min(at + seconds, end)


def _keys(columns: Columns) -> list[tuple[str, str]]:
    pairs = [split_attribute_key(stage) for stage in columns.stages]
    counts = np.bincount(columns.stage, columns.counts, len(pairs)).tolist()
    frequent: defaultdict[str, set[str]] = defaultdict(set)
    for (name, value), _ in sorted(zip(pairs, counts, strict=True), key=lambda entry: (-entry[1], entry[0])):
        if value != OTHER and len(frequent[name]) < MAX_ATTRIBUTE_VALUES:
            frequent[name].add(value)
    return [(name, value if value in frequent[name] else OTHER) for name, value in pairs]


def _by_dimension(snapshot: StoreSnapshot, series: Ints, table: Ints) -> dict[str, dict[str, Ints]]:
    """Return the requests by dimension and value; *table* has the requests of each of *series*, of shape (t, n, k)."""
    columns = schema.series.c
    rows = snapshot.connection.execute(select(columns.id, *(columns[column.key] for column in DIMENSIONS)))
    row_of = {number: position for position, number in enumerate(series.tolist())}
    values_by_row = {row_of[number]: values for number, *values in rows if number in row_of}
    by_dimension: dict[str, dict[str, Ints]] = {}
    for position, dimension in enumerate(DIMENSIONS):
        owners: defaultdict[str, list[int]] = defaultdict(list)
        for number in sorted(values_by_row):
            owners[values_by_row[number][position]].append(number)
        if owners:
            by_dimension[dimension.key] = {
                value: table[:, numbers].sum(axis=1) for value, numbers in sorted(owners.items())
            }
    return by_dimension


def _table(columns: Columns, step: Ints, row: Ints, shape: tuple[int, int]) -> tuple[int, Ints, Ints]:
    scale = int(columns.scale.min(initial=ATTRIBUTE_SCALE))
    index, amount = bucket_table(columns, step * shape[1] + row, shape[0] * shape[1], scale)
    return scale, index, amount.reshape(*shape, len(index))


def _places(values: Iterable[str]) -> Mapping[str, str]:
    """Return the places of the replicas to show, by value and sorted.

    A scraped engine counts the requests that its spans count, too, but at another place: either the scraped places or the others are
    returned, whichever are more.
    """
    replicas = sorted(values)
    others = {value: value for value in replicas if not value.startswith(SCRAPED)}
    scraped = {value: value.removeprefix(SCRAPED) for value in replicas if value.startswith(SCRAPED)}
    return max(others, scraped, key=len)


def _stage_time(columns: Columns, sample: _Sample) -> Mapping[str, Mapping[str, Ints]]:
    shape = (len(sample.starts), len(columns.stages))
    cell = sample.step_of(columns) * shape[1] + columns.stage
    spent = np.zeros(shape[0] * shape[1], np.int64)
    np.add.at(spent, cell, columns.counts)
    spent_by_replica: defaultdict[str, dict[str, Ints]] = defaultdict(dict)
    for number, key in enumerate(columns.stages):
        stage, where = split_replica_stage_key(key)
        spent_by_replica[where][stage] = spent.reshape(shape)[:, number]
    return spent_by_replica
