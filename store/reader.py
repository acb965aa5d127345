"""The reader: all queries that pages, alerts and commands send to the store.

A reader of some environments adds their condition to every statement when it is executed, so that no query can omit it. A
table that is not named in `_visible_rows` is empty for such a reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, FromClause, Select, Table, and_, event, false, or_, select
from sqlalchemy.sql.visitors import replacement_traverse

from ..core.names import PROBE_DURATION, REQUEST_DURATION
from . import schema
from .queries.attributes import AttributeQueries
from .queries.comparison import ComparisonQueries
from .queries.latency import LatencyQueries
from .queries.minutes import MinuteQueries
from .queries.paths import PathQueries
from .queries.profile import ProfileQueries
from .queries.replicas import ReplicaQueries
from .queries.services import ServiceQueries
from .queries.slo import IndicatorQueries, SloQueries
from .queries.state import StoreQueries
from .queries.streaming import StreamingQueries
from .queries.time_series import TimeSeriesQueries
from .queries.trace_search import TraceSearchQueries
from .queries.traces import TraceQueries
from .queries.windows import WindowQueries
from .schema import Segment
from .storage import Columns, PointQuery, SeriesSeen, Steps, StoredPoints, WrappedPoints


class Reader(
    ServiceQueries,
    ReplicaQueries,
    AttributeQueries,
    LatencyQueries,
    ProfileQueries,
    TimeSeriesQueries,
    WindowQueries,
    ComparisonQueries,
    MinuteQueries,
    StreamingQueries,
    SloQueries,
    IndicatorQueries,
    TraceQueries,
    PathQueries,
    TraceSearchQueries,
    StoreQueries,
):
    """All queries to the store. Thread-safe.

    Each query runs in one transaction, so that its result describes one moment. The same selection has the same numbers
    in every query, because all queries add up the same rows with the same code.

    Times are timezone-aware; windows are half open and contain the 10 s buckets that start in them. Frames without data have
    their columns and no rows. Steps start at multiples of their width since the epoch; a step as wide as the window is
    the window. If steps are finer than the retained tiers, or would read too many rows, they are wider than requested:
    `attrs["step_seconds"]` is the actual width (that of the window if there is only one step).

    Every method raises StoreError if the database cannot be read.
    """

    def within(self, environments: frozenset[str]) -> Reader:
        """Return a reader that sees only the data of *environments*; "" is the environment of requests without one."""
        engine = filtered_engine(self._engine, environments)
        return Reader(engine, VisiblePoints(self._points, environments), self._retention, self._caps, self._clock)


# Tables without names and numbers of an environment; points are restricted by `VisiblePoints`.
_SHARED = (schema.store, schema.rollups, schema.intents, schema.stages, schema.code_stacks, schema.points)


def filtered_engine(engine: Engine, environments: frozenset[str]) -> Engine:
    """Return an engine with the connections of *engine* that reads only the rows of *environments*."""
    visible = _visible_rows(environments)
    filtered = engine.execution_options()

    def restrict(
        _connection: Connection, statement: Any, multiparams: Any, params: Any, _options: Any
    ) -> tuple[Any, Any, Any]:
        if isinstance(statement, Select):
            statement = _restricted(statement, visible)
        return statement, multiparams, params

    event.listen(filtered, "before_execute", restrict, retval=True)
    return filtered


def _visible_rows(environments: frozenset[str]) -> dict[Table, FromClause]:
    own = sorted(environments)
    series, loads, traces = schema.series, schema.loads, schema.traces
    services, events, batches = schema.services, schema.events, schema.batches
    series_ids = select(series.c.id).where(series.c.environment.in_(own))
    # Counts, names and revisions of a service include its other environments only if it has some of these as well.
    service_ids = select(series.c.service_id).where(series.c.environment.in_(own))
    instances = select(loads.c.instance).where(loads.c.environment.in_(own))
    conditions = {
        series: series.c.environment.in_(own),
        loads: loads.c.environment.in_(own),
        traces: traces.c.series_id.in_(series_ids),
        services: services.c.id.in_(service_ids),
        # An event without an environment is about all environments of its service.
        events: or_(
            events.c.environment.in_([name for name in own if name]),
            and_(
                events.c.environment == "",
                events.c.service.in_(select(series.c.service).where(series.c.environment.in_(own))),
                events.c.service.not_in(select(series.c.service).where(series.c.environment.not_in(own))),
            ),
        ),
        batches: batches.c.instance.in_(instances),
    }
    return {table: select(table).where(condition).subquery(table.name) for table, condition in conditions.items()}


def _restricted(statement: Select[Any], visible: dict[Table, FromClause]) -> Select[Any]:
    def replacement(element: Any, **_: Any) -> Any:
        if isinstance(element, Table):
            return None if element in _SHARED else _rows_of(element, visible)
        table = getattr(element, "table", None)
        if isinstance(table, Table) and table not in _SHARED:
            return _rows_of(table, visible).c[element.key]
        return None

    return cast("Select[Any]", replacement_traverse(statement, {}, replacement))


def _rows_of(table: Table, visible: dict[Table, FromClause]) -> FromClause:
    if table not in visible:
        visible[table] = select(table).where(false()).subquery(table.name)
    return visible[table]


_REQUESTS, _PROBES = (schema.METRIC_CODES[name] for name in (REQUEST_DURATION, PROBE_DURATION))


class RoutePoints(WrappedPoints):
    """Points in which the health probes of a selected route are requests, see `StoredPoints`; otherwise no request is a probe."""

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        found = super().read(connection, _with_probes(question), segments, steps)
        return map(_as_requests, found) if _with_probes(question) is not question else found

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        own = [(_with_probes(question), segments) for question, segments in asked]
        changed = [place for place, (question, _) in enumerate(asked) if own[place][0] is not question]
        for columns in super().read_each(connection, own):
            yield _as_requests(columns, np.isin(columns.series, changed)) if changed else columns

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        return super().seen(connection, _with_probes(question), segments)

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int:
        return super().number(connection, _with_probes(question), segments)


def _with_probes(question: PointQuery) -> PointQuery:
    if question.selection.route is None or REQUEST_DURATION not in question.metrics:
        return question
    return replace(question, metrics=(*question.metrics, PROBE_DURATION))


def _as_requests(columns: Columns, which: NDArray[np.bool_] | bool = True) -> Columns:
    return replace(columns, metric=np.where((columns.metric == _PROBES) & which, _REQUESTS, columns.metric))


class VisiblePoints(WrappedPoints):
    """Points of the series of some environments, see `StoredPoints`."""

    def __init__(self, points: StoredPoints, environments: frozenset[str]) -> None:
        super().__init__(points)
        self._environments = environments

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        return super().read(connection, replace(question, visible=self._environments), segments, steps)

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        own = [(replace(question, visible=self._environments), segments) for question, segments in asked]
        return super().read_each(connection, own)

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        return super().seen(connection, replace(question, visible=self._environments), segments)

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int:
        return super().number(connection, replace(question, visible=self._environments), segments)
