"""The reader: all queries that pages, alerts and commands send to the store.

A reader of some environments adds their condition to every statement when it is executed, so that no query can omit it. A
table that is not named in `_visible_rows` is empty for such a reader, and trace documents have no names of other environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import event
from sqlalchemy.sql.visitors import replacement_traverse

from ..core.names import PROBE_DURATION, REQUEST_DURATION
from . import records, schema
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
from .storage import Columns, PointQuery, Steps, StoredPoints, WrappedPoints

# Tables without names and numbers of an environment; points are restricted by `VisiblePoints`.
_SHARED = (schema.store, schema.rollups, schema.intents, schema.stages, schema.code_stacks, schema.points)


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
        if environments not in self._narrower:
            engine, points = filtered_engine(self._engine, environments), VisiblePoints(self._points, environments)
            self._narrower[environments] = Reader(engine, points, self._retention, self._caps, self._clock)
        return self._narrower[environments]

    @cached_property
    def _narrower(self) -> dict[frozenset[str], Reader]:
        # Of environments, for which there are few combinations.
        return {}


def filtered_engine(engine: sa.Engine, environments: frozenset[str]) -> sa.Engine:
    """Return an engine with the connections of *engine* that reads only the rows of *environments*."""
    visible = _visible_rows(environments)
    filtered = engine.execution_options()

    def restrict(
        _connection: sa.Connection, statement: Any, multiparams: Any, params: Any, _options: Any
    ) -> tuple[Any, Any, Any]:
        if isinstance(statement, sa.Select):
            statement = _restricted(statement, visible)
        return statement, multiparams, params

    event.listen(filtered, "before_execute", restrict, retval=True)
    return filtered


def _visible_rows(environments: frozenset[str]) -> dict[sa.Table, sa.FromClause]:
    visible = sorted(environments)
    series, loads, traces = schema.series, schema.loads, schema.traces
    services, events, batches = schema.services, schema.events, schema.batches
    series_ids = sa.select(series.c.id).where(series.c.environment.in_(visible))
    # Counts, names and revisions of a service include its other environments only if it has some of these as well.
    service_ids = sa.select(series.c.service_id).where(series.c.environment.in_(visible))
    instances = sa.select(loads.c.instance).where(loads.c.environment.in_(visible))
    conditions = {
        series: series.c.environment.in_(visible),
        loads: loads.c.environment.in_(visible),
        traces: traces.c.series_id.in_(series_ids),
        services: services.c.id.in_(service_ids),
        # An event without an environment is about all environments of its service.
        events: sa.or_(
            events.c.environment.in_([name for name in visible if name]),
            sa.and_(
                events.c.environment == "",
                events.c.service.in_(sa.select(series.c.service).where(series.c.environment.in_(visible))),
                events.c.service.not_in(sa.select(series.c.service).where(series.c.environment.not_in(visible))),
            ),
        ),
        batches: batches.c.instance.in_(instances),
    }
    documents = sa.type_coerce(traces.c.spans, _VisibleDocument(environments)).label(traces.c.spans.name)
    columns = {traces: (*(column for column in traces.c if column is not traces.c.spans), documents)}
    return {
        table: sa.select(*columns.get(table, table.c)).where(condition).subquery(table.name)
        for table, condition in conditions.items()
    }


class _VisibleDocument(sa.TypeDecorator[bytes]):
    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, environments: frozenset[str]) -> None:
        super().__init__()
        self.environments = environments

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> bytes | None:
        del dialect
        return None if value is None else records.visible_trace(value, self.environments)


def _restricted(statement: sa.Select[Any], visible: dict[sa.Table, sa.FromClause]) -> sa.Select[Any]:
    def replacement(element: Any, **_: Any) -> Any:
        if isinstance(element, sa.Table):
            return None if element in _SHARED else _rows_of(element, visible)
        table = getattr(element, "table", None)
        if isinstance(table, sa.Table) and table not in _SHARED:
            return _rows_of(table, visible).c[element.key]
        return None

    return cast("sa.Select[Any]", replacement_traverse(statement, {}, replacement))


def _rows_of(table: sa.Table, visible: dict[sa.Table, sa.FromClause]) -> sa.FromClause:
    if table not in visible:
        visible[table] = sa.select(table).where(sa.false()).subquery(table.name)
    return visible[table]


_REQUESTS, _PROBES = (schema.METRIC_CODES[name] for name in (REQUEST_DURATION, PROBE_DURATION))


class RoutePoints(WrappedPoints):
    """Points in which the health probes of a selected route are requests, see `StoredPoints`; otherwise no request is a probe."""

    def _changed(self, question: PointQuery) -> PointQuery:
        if question.selection.route is None or REQUEST_DURATION not in question.metrics:
            return question
        return replace(question, metrics=(*question.metrics, PROBE_DURATION))

    def read(
        self, connection: sa.Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        columns = super().read(connection, question, segments, steps)
        return columns if self._changed(question) is question else map(_as_requests, columns)

    def read_each(
        self, connection: sa.Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        changed = [index for index, (question, _) in enumerate(asked) if self._changed(question) is not question]
        for columns in super().read_each(connection, asked):
            yield _as_requests(columns, np.isin(columns.series, changed)) if changed else columns


def _as_requests(columns: Columns, which: NDArray[np.bool_] | bool = True) -> Columns:
    return replace(columns, metric=np.where((columns.metric == _PROBES) & which, _REQUESTS, columns.metric))


class VisiblePoints(WrappedPoints):
    """Points of the series of some environments, see `StoredPoints`."""

    def __init__(self, points: StoredPoints, environments: frozenset[str]) -> None:
        super().__init__(points)
        self._environments = environments

    def _changed(self, question: PointQuery) -> PointQuery:
        return replace(question, visible=self._environments)
