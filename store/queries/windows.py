"""Queries of requests in windows that end at given times and may overlap, by service and other dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from ...core.columns import Floats, Ints
from ...core.errors import StoreError
from ...core.histogram import MAX_SCALE, has_enough_samples
from ...core.names import REQUEST_DURATION, STAGE_TIME, STATUS_ERROR
from ...core.stages import OVERHEAD
from .. import schema
from ..selection import Selection, moment
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, Steps, StoreSnapshot
from .fetch import QueryGroup, StepCounts, count_at, estimated_rows, fetch_segments
from .time_series import StepMixtures

Measure: TypeAlias = Literal["requests", "latency", "stages"]
# A query that reads or returns so many takes about 10 s. [rows, or values]
MAX_VALUES = 1_000_000
# Windows of one table, unless more of them overlap, and cells of a table: 32 MB, of which a query has four at once.
_WINDOWS_AT_ONCE, _MAX_CELLS = 128, 4_000_000


# Memory of a group with one value: its names and its objects. [bytes]
_GROUP_BYTES = 1000


class TooManyValuesError(StoreError):
    """Windows with more data than one query may read."""


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """Windows of equal length, and what to return for each."""

    ends: range | tuple[int, ...]
    seconds: int
    unit: int
    by: tuple[str, ...]
    measure: Measure
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowTable:
    """Values of groups of requests in windows."""

    groups: Mapping[tuple[str, ...], Mapping[str, Floats]]

    @property
    def nbytes(self) -> int:
        return sum(_GROUP_BYTES + values.nbytes for parts in self.groups.values() for values in parts.values())


class WindowQueries(QueryGroup):
    def windows(self, selection: Selection, query: WindowQuery) -> WindowTable:
        with self._snapshot() as snapshot:
            ends, index, seconds = _whole_windows(snapshot.tiers, query)
            start = int(ends[0]) - seconds
            about = replace(selection, start=moment(start), end=moment(int(ends[-1])))
            question = PointQuery(
                about,
                BREAKDOWN_METRICS if query.measure == "stages" else (REQUEST_DURATION,),
                by="total" if {*query.by} <= {*schema.TOTAL_DIMENSIONS} else "series",
                counts_only=query.measure == "requests",
            )
            width = seconds if len(ends) == 1 else int(np.gcd.reduce(np.append(ends, seconds)))
            columns = _fetch(snapshot, question, width)
            if not len(columns):
                return WindowTable({})
            names, group, failed = _groups(snapshot, about, query.by, columns)
            last = (ends - start) // width
            spans = _Spans(last - seconds // width, last)
            if query.measure == "requests":
                indicators = _rates(spans, columns, group, failed, seconds)
            else:
                order = np.lexsort((columns.times, group))
                edges = np.searchsorted(group[order], np.arange(len(names) + 1)).tolist()
                sorted_columns = columns.take(order)
                most = MAX_VALUES // (len(names) * len(query.quantiles))
                indicators = [
                    _quantiles(spans, sorted_columns.between(low, high).without_unused_stages(), query, most)
                    for low, high in pairwise(edges)
                ]
            return WindowTable(
                {
                    name: {part: values[:, index] for part, values in parts.items() if np.nan_to_num(values).any()}
                    for name, parts in zip(names, indicators, strict=True)
                }
            )


@dataclass(frozen=True, slots=True)
class _Spans:
    first: Ints
    last: Ints

    def sums(self, table: NDArray[Any]) -> NDArray[Any]:
        held = np.concatenate((np.zeros_like(table[:1]), np.cumsum(table, axis=0)))
        return held[self.last] - held[self.first]

    def counts(self, columns: Columns, scale: int) -> StepCounts:
        fine = columns.where((columns.scale >= scale) & (columns.times < self.last[-1]))
        counts = count_at(fine, fine.times, np.arange(int(self.last[-1])), scale)
        tables = (self.sums(table) for table in (counts.amount, counts.zero, counts.sum))
        return StepCounts(np.arange(len(self.first)), scale, counts.index, *tables)

    def scales(self, columns: Columns) -> Ints:
        scales = np.full(len(self.first), MAX_SCALE)
        for scale in np.unique(columns.scale)[::-1].tolist():
            points = np.bincount(columns.times[columns.scale == scale], minlength=int(self.last[-1]))
            scales[self.sums(points) > 0] = scale
        return scales


def _whole_windows(tiers: Sequence[schema.Tier], query: WindowQuery) -> tuple[Ints, Ints, int]:
    def finest_at(at: int) -> int:
        # Nothing is retained before, so that buckets of that time do not matter.
        return schema.finest_retained(tiers, max(at, tiers[-1].kept_from))

    first, seconds = query.ends[0], query.seconds
    # Windows over time have one length, and the start of a single one is rounded separately.
    unit = max(query.unit, finest_at(first if len(query.ends) == 1 else first - seconds))
    ends, index = np.unique(np.array(query.ends, np.int64) // unit * unit, return_inverse=True)
    if len(query.ends) == 1:
        end = int(ends[0])
        return ends, index, end - schema.floor_to(end - seconds, finest_at(end - seconds))
    return ends, index, schema.ceil_to(seconds, unit)


def _fetch(snapshot: StoreSnapshot, question: PointQuery, width: int) -> Columns:
    start, end = question.selection.seconds
    if end - start == width:
        steps, widest = Steps(start, None), schema.COARSEST
    else:
        steps, widest = Steps(start, width), schema.widest_dividing(width)
        if estimated_rows(snapshot, question, widest) > MAX_VALUES:
            _raise_too_many()
    segments = schema.plan_segments(snapshot.tiers, start, end, widest)
    columns = fetch_segments(snapshot, question, steps, segments)
    return replace(columns, times=steps.number(columns.times))


def _raise_too_many() -> None:
    msg = f"the query reads or returns more than {MAX_VALUES:,} values; use a larger step, a shorter time, or fewer services"
    raise TooManyValuesError(msg)


def _groups(
    snapshot: StoreSnapshot, about: Selection, by: Sequence[str], columns: Columns
) -> tuple[list[tuple[str, ...]], Ints, NDArray[np.bool_]]:
    series = schema.series.c
    statement = select(series.id, series.total_id, series.status, *(series[name] for name in by))
    rows = snapshot.connection.execute(statement.where(*about.conditions())).all()
    # A total has the id of its first series, which may already be deleted.
    row_of_series = {row.total_id: row for row in rows} | {row.id: row for row in rows}
    ids, which = np.unique(columns.series, return_inverse=True)
    series_rows = [row_of_series[series_id] for series_id in ids.tolist()]
    names = sorted({tuple(row[3:]) for row in series_rows})
    number = {name: index for index, name in enumerate(names)}
    groups = np.array([number[tuple(row[3:])] for row in series_rows], np.int64)
    failed = np.array([row.status == STATUS_ERROR for row in series_rows], np.bool_)
    return names, groups[which], failed[which]


def _rates(
    spans: _Spans, columns: Columns, group: Ints, failed: NDArray[np.bool_], seconds: int
) -> list[dict[str, Floats]]:
    shape = int(spans.last[-1]), int(group.max()) + 1
    if math.prod(shape) > _MAX_CELLS:
        _raise_too_many()
    cell = columns.times * shape[1] + group
    counted = (np.bincount(cell, columns.counts * factor, math.prod(shape)) for factor in (1, failed))
    total, errors = (spans.sums(counts.reshape(shape)).T[:, None] for counts in counted)
    total[total == 0] = np.nan
    return [
        {"rate": requests / seconds, "errors": wrong / requests} for requests, wrong in zip(total, errors, strict=True)
    ]


def _quantiles(spans: _Spans, columns: Columns, query: WindowQuery, most: int) -> dict[str, Floats]:
    with_stages = query.measure == "stages"
    stages = (*columns.stages, OVERHEAD) if with_stages else ("latency",)
    windows = len(spans.first)
    if windows * len(stages) > most:
        _raise_too_many()
    quantiles = {stage: np.full((len(query.quantiles), windows), np.nan) for stage in stages}
    # Each interval of long windows is read twice at most.
    at_once = max(_WINDOWS_AT_ONCE, int(np.searchsorted(spans.first, spans.last[0])))
    for low in range(0, windows, at_once):
        first, last = spans.first[low : low + at_once], spans.last[low : low + at_once]
        part = columns.between(*np.searchsorted(columns.times, (first[0], last[-1])).tolist())
        if not len(part):
            continue
        part = replace(part, times=part.times - first[0])
        index = part.buckets.index
        width = int(index.max() - index.min()) + 1 if len(index) else 1
        if int(last[-1] - first[0]) * len(columns.stages) * width > _MAX_CELLS:
            _raise_too_many()
        here = _Spans(first - first[0], last - first[0])
        for number, requests, values in _values_of_windows(here, part, query):
            for row, (quantile, seconds) in enumerate(zip(query.quantiles, values, strict=True)):
                enough = [has_enough_samples(count, quantile) for count in requests.tolist()]
                for stage, stage_seconds in zip(stages, seconds.T, strict=True):
                    # The last column is added to the stage of its name.
                    previous = np.nan_to_num(quantiles[stage][row, low + number])
                    quantiles[stage][row, low + number] = np.where(enough, previous + stage_seconds, np.nan)
    return quantiles


def _values_of_windows(
    spans: _Spans, columns: Columns, query: WindowQuery
) -> Iterator[tuple[Ints, Ints, list[Floats]]]:
    """Yield numbers of windows, their numbers of requests, and for each quantile their values; shape (windows, stages or 1)."""
    requests, times = columns.of(REQUEST_DURATION), columns.of(STAGE_TIME)
    request_scales = spans.scales(requests)
    # Latency at its own scale, so that all queries return the same number; stages at the scale of both metrics.
    shared = np.minimum(request_scales, spans.scales(times))
    for scale, common in np.unique(np.stack((request_scales, shared)), axis=1).T.tolist():
        number = np.flatnonzero((request_scales == scale) & (shared == common))
        here = _Spans(spans.first[number], spans.last[number])
        latency = here.counts(requests, scale)
        if query.measure == "latency":
            values = [latency.values_at(quantile)[:, None] for quantile in query.quantiles]
        else:
            coarse = latency if common == scale else here.counts(requests, common)
            mixed = StepMixtures(columns.stages, latency, coarse, here.counts(times, common))
            values = [mixed.breakdown(quantile)[1] for quantile in query.quantiles]
        yield number, latency.total, values
