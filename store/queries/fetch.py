"""Reading of points for queries: selection of tiers, sums of points by step, and the base class of all query groups.

This module does not need pandas, so that a collector can use it. Consecutive steps are summed together if their points have the
same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Self

import numpy as np
from sqlalchemy import Connection, Engine, select

from ...core.columns import Floats, Ints
from ...core.histogram import Histogram, bucket_middle, rank_of
from ...core.names import REQUEST_DURATION
from ...core.stages import ordered
from .. import schema
from ..engines import database
from ..retention import Retention
from ..schema import storable_name
from ..selection import Selection, step_seconds
from ..series import SeriesCaps
from ..storage import (
    Columns,
    PointQuery,
    Steps,
    StoredPoints,
    StoreSnapshot,
    WrappedPoints,
    add_up,
    join_columns,
    row_sums,
    sum_points,
)

# Maximum number of steps in a table; each step takes a row of some hundred buckets for every stage.
_STEPS_AT_ONCE = 128
# Reading more rows would take too long for a page: the steps of a chart are widened instead.
MAX_ROWS = 100_000
# Number of buckets of the coarser tier in which rows are counted to estimate their number.
_COUNTED = 6


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Table with the counts of several steps of the same scale.

    Args:
        starts: Starts of the steps; shape (n,). [Unix seconds]
        index: Buckets that are non-empty in at least one step, ascending; shape (k,).
        amount: Number of requests, or microseconds; shape (n, stages, k).
        zero: Number of values below a nanosecond; shape (n, stages).
        sum: Sum of the values; shape (n, stages). [seconds]
    """

    starts: Ints
    scale: int
    index: Ints
    amount: Ints
    zero: Ints
    sum: Floats

    @property
    def total(self) -> Ints:
        """Sum of all counts of each step; shape (n,)."""
        return self.amount.sum(axis=(1, 2)) + self.zero.sum(axis=1)

    @property
    def by_stage(self) -> Ints:
        """Sum of all counts of each step by stage; shape (n, stages)."""
        return self.amount.sum(axis=2) + self.zero

    def places_of(self, quantile: float) -> Ints:
        """Return the position in `index` of the request at *quantile* of each step, -1 for below all buckets; shape (n,)."""
        ranks = np.array([rank_of(quantile, total) for total in self.total.tolist()]) - self.zero.sum(axis=1)
        held = np.cumsum(self.amount.sum(axis=1), axis=1)
        return np.where(ranks > 0, (held < ranks[:, None]).sum(axis=1), -1)

    def values_at(self, quantile: float) -> Floats:
        """Return the value at *quantile* in each step, as `StageCounts.value_at` does; shape (n,)."""
        # The last value is for the place -1.
        middles = [*(bucket_middle(index, self.scale) for index in self.index.tolist()), 0.0]
        return np.array(middles)[self.places_of(quantile)]

    def above(self, threshold: float) -> Floats:
        """Return the number of values above *threshold* in each step, as `Histogram.count_above` does; shape (n,)."""
        return self.above_by_stage(threshold).sum(axis=1)

    def above_by_stage(self, threshold: float) -> Floats:
        """Return the number of values above *threshold* in each step by stage; shape (n, stages)."""
        # The threshold splits the same bucket in all steps, so the share above it is computed once for each bucket.
        alone = [Histogram(self.scale, {index: 1}) for index in self.index.tolist()]
        shares = np.array([histogram.count_above(threshold).value for histogram in alone], np.float64)
        split = (shares > 0) & (shares < 1)
        return self.amount[..., shares == 1].sum(axis=2) + (self.amount[..., split] * shares[split]).sum(axis=2)


@dataclass(frozen=True, slots=True)
class StepEdges:
    """Division of points, sorted by time, into non-empty steps.

    Args:
        starts: Starts of the steps; shape (n,). [Unix seconds]
        edges: Index of the first point of each step, and the number of points; shape (n + 1,).
        scale: Coarsest scale of each step; shape (n,).
    """

    starts: Ints
    edges: Ints
    scale: Ints


def step_edges(columns: Columns, steps: Steps) -> StepEdges:
    starts = steps.of(columns.times)
    if not len(columns):
        return StepEdges(starts, np.zeros(1, np.int64), starts)
    edges = np.flatnonzero(np.diff(starts, prepend=-1, append=-1))
    return StepEdges(starts[edges[:-1]], edges, np.minimum.reduceat(columns.scale, edges[:-1]))


def equal_scale_slices(*scales: Ints) -> Iterator[slice]:
    changed = np.any([np.diff(scale, prepend=scale[:1] - 1) for scale in scales], axis=0)
    for first, last in pairwise([*np.flatnonzero(changed).tolist(), len(changed)]):
        yield from (slice(low, min(low + _STEPS_AT_ONCE, last)) for low in range(first, last, _STEPS_AT_ONCE))


def add_up_steps(columns: Columns, steps: Steps, scale: int | None = None) -> Iterator[StepCounts]:
    edges = step_edges(columns, steps)
    scales = edges.scale if scale is None else np.minimum(edges.scale, scale)
    for chosen in equal_scale_slices(scales):
        yield count_steps(columns, edges, chosen, int(scales[chosen.start]))


def count_steps(columns: Columns, all_edges: StepEdges, chosen: slice, scale: int) -> StepCounts:
    edges = all_edges.edges[chosen.start : chosen.stop + 1]
    part = columns.between(int(edges[0]), int(edges[-1]))
    return count_at(part, np.repeat(np.arange(len(edges) - 1), np.diff(edges)), all_edges.starts[chosen], scale)


def count_at(columns: Columns, step: Ints, at: Ints, scale: int) -> StepCounts:
    shape = (len(at), max(1, len(columns.stages)))
    index, amount, zero, total = row_sums(columns, step * shape[1] + columns.stage, shape[0] * shape[1], scale)
    return StepCounts(at, scale, index, amount.reshape(*shape, len(index)), zero.reshape(shape), total.reshape(shape))


class QueryGroup:
    """Base class of query groups; each query runs in a transaction of its own."""

    def __init__(
        self, engine: Engine, points: StoredPoints, retention: Retention, caps: SeriesCaps, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._points = points
        self._retention = retention
        self._caps = caps
        self._clock = clock
        self._shared: StoreSnapshot | None = None

    @property
    def retention(self) -> Retention:
        return self._retention

    @property
    def caps(self) -> SeriesCaps:
        return self._caps

    @contextmanager
    def together(self) -> Generator[Self]:
        """Provide a reader for the queries of one thread about many services, which run in one transaction.

        A query that is repeated for another service reads the points of all services, so that the next ones read nothing.
        """
        with self._snapshot() as snapshot:
            group = copy(self)
            group._shared = replace(snapshot, points=SharedPoints(snapshot.points))  # noqa: SLF001 - of a copy of this reader
            yield group

    @contextmanager
    def _snapshot(self) -> Generator[StoreSnapshot]:
        if self._shared is not None:
            yield self._shared
            return
        with database.reading(self._engine) as connection:
            yield StoreSnapshot(connection, self._points)


class SharedPoints(WrappedPoints):
    """Points that are read for all services at once if a query is repeated for another service, see `StoredPoints`."""

    def __init__(self, points: StoredPoints) -> None:
        super().__init__(points)
        # Points by service of each query that was repeated; None for queries that were not.
        self._read: dict[Hashable, dict[str, Columns] | None] = {}

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[schema.Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        selection = question.selection
        whole = replace(
            question,
            selection=replace(selection, service=None),
            metrics=tuple(question.metrics),
            by=question.by or "total",
        )
        key = (whole, tuple(segments), steps)
        if selection.service is None or key not in self._read:
            self._read.setdefault(key)
            yield from self._points.read(connection, question, segments, steps)
            return
        by_service = self._read[key]
        if by_service is None:
            by_service = self._read[key] = self._by_service(connection, whole, segments, steps)
        if (columns := by_service.get(storable_name(selection.service))) is not None:
            yield columns

    def _by_service(
        self, connection: Connection, question: PointQuery, segments: Sequence[schema.Segment], steps: Steps | None
    ) -> dict[str, Columns]:
        columns = join_columns(list(self._points.read(connection, question, segments, steps)))
        names, owned = with_service_numbers(connection, question.selection, columns)
        order = np.argsort(owned.series, kind="stable")
        owners, edges = np.unique(owned.series[order], return_index=True)
        ordered = columns.take(order)
        return {
            names[owner]: ordered.between(low, high).without_unused_stages()
            for owner, (low, high) in zip(owners.tolist(), pairwise([*edges.tolist(), len(order)]), strict=True)
        }


def with_service_numbers(connection: Connection, selection: Selection, columns: Columns) -> tuple[list[str], Columns]:
    """Return the names of all services, and *columns* with the index of the service in place of the series or total."""
    series = schema.series.c
    rows = connection.execute(select(series.id, series.total_id, series.service).where(*selection.conditions())).all()
    names = sorted({row.service for row in rows})
    index_of = {name: number for number, name in enumerate(names)}
    # A total has the id of its first series, which may already be deleted.
    owner = {row.total_id: index_of[row.service] for row in rows} | {row.id: index_of[row.service] for row in rows}
    numbers, which = np.unique(columns.series, return_inverse=True)
    services = np.array([owner[number] for number in numbers.tolist()], np.int64)[which]
    return names, replace(columns, series=services)


def fetch(snapshot: StoreSnapshot, question: PointQuery) -> Columns:
    """Return the points of the selection, summed over time, because a month of a large service takes gigabytes."""
    return _fetch_tiers(snapshot, question, None, schema.COARSEST)


def fetch_each(snapshot: StoreSnapshot, questions: Sequence[PointQuery]) -> list[Columns]:
    """Return the result of `fetch` for each of *questions*, which few statements read together."""
    asked = [
        (question, schema.plan_segments(snapshot.tiers, *question.selection.seconds, schema.COARSEST))
        for question in questions
    ]
    columns = sum_points(join_columns(list(snapshot.points.read_each(snapshot.connection, asked))))
    edges = np.searchsorted(columns.series, np.arange(len(questions) + 1)).tolist()
    return [columns.between(low, high).without_unused_stages() for low, high in pairwise(edges)]


def fetch_steps(snapshot: StoreSnapshot, question: PointQuery, step: timedelta) -> tuple[Columns, Steps]:
    """Return the points summed by step, and the steps: of width *step*, or wider because of retention or the number of rows."""
    start, _ = question.selection.seconds
    width = _step_width(snapshot, question, step_seconds(step))
    if width is None:
        return fetch(snapshot, question), Steps(start, None)
    steps = Steps(start, width)
    return _fetch_tiers(snapshot, question, steps, width), steps


def fetch_exact(snapshot: StoreSnapshot, question: PointQuery, width: int) -> tuple[Columns, Steps]:
    """Return the points in steps of *width* seconds, whatever their number; data in wider buckets are left out."""
    start, end = question.selection.seconds
    steps = Steps(start, width)
    fine = [tier for tier in snapshot.tiers if tier.seconds <= width]
    return fetch_segments(snapshot, question, steps, schema.plan_segments(fine, start, end, width)), steps


def _fetch_tiers(snapshot: StoreSnapshot, question: PointQuery, steps: Steps | None, widest: int) -> Columns:
    start, end = question.selection.seconds
    return fetch_segments(snapshot, question, steps, schema.plan_segments(snapshot.tiers, start, end, widest))


def fetch_segments(
    snapshot: StoreSnapshot, question: PointQuery, steps: Steps | None, segments: Sequence[schema.Segment]
) -> Columns:
    """Return the points of *segments*, summed while they are read, so that memory does not grow with the length of time."""
    apart = question.by is not None
    pieces = [
        sum_points(piece, steps, apart=apart)
        for piece in snapshot.points.read(snapshot.connection, question, segments, steps)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return sum_points(join_columns(pieces), steps, apart=apart)


def _step_width(snapshot: StoreSnapshot, question: PointQuery, wanted: int) -> int | None:
    start, end = question.selection.seconds
    tiers = snapshot.tiers
    width = max(wanted, schema.finest_retained(tiers, start))
    widest = schema.widest_dividing(width)
    while widest != schema.COARSEST and width < end - start and estimated_rows(snapshot, question, widest) > MAX_ROWS:
        widest = schema.TIERS[schema.TIERS.index(widest) + 1]
        width = schema.ceil_to(width, widest)
    return width if width < end - start else None


def estimated_rows(snapshot: StoreSnapshot, question: PointQuery, tier: int) -> int:
    start, end = question.selection.seconds
    tiers = snapshot.tiers
    coarse = next(
        (candidate for candidate in reversed(tiers) if candidate.seconds <= (end - start) / _COUNTED), tiers[0]
    )
    if coarse.seconds <= tier:
        return snapshot.points.number(snapshot.connection, question, [schema.Segment(tier, start, end)])
    rolled_up = schema.Segment(coarse.seconds, schema.floor_to(start, coarse.seconds), min(end, coarse.watermark))
    rest = schema.Segment(tier, max(start, coarse.watermark), end)
    if tier == schema.FINEST:
        # The finest tier has no totals, so the rows of all series are read.
        question = replace(question, by="series")
    counted = snapshot.points.number(snapshot.connection, question, [rolled_up]) * coarse.seconds // tier
    return counted + snapshot.points.number(snapshot.connection, question, [rest])


def points_with_key(columns: Columns, key: str) -> Columns:
    return columns.where(columns.stage == (columns.stages.index(key) if key in columns.stages else -1))


def request_latency(snapshot: StoreSnapshot, selection: Selection) -> Histogram:
    columns = fetch(snapshot, PointQuery(selection, (REQUEST_DURATION,)))
    return add_up(columns).histogram() if len(columns) else Histogram()


def histograms_by_key(columns: Columns) -> dict[str, Histogram]:
    """Return the histogram of each stage of *columns*, of one metric, in the order of stages."""
    present = {columns.stages[number] for number in columns.stage.tolist()}
    # Summed separately, because a stage that was sent at a coarser scale must not reduce the scale of the others.
    return {stage: add_up(points_with_key(columns, stage)).histogram() for stage in ordered(present)}
