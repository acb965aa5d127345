"""Queries of retained traces: the exemplars of a selection, and single requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
from sqlalchemy import ColumnElement, Row, Select, false, func, or_, select

from ...core.histogram import Histogram
from ...core.names import STATUS_ERROR
from .. import records, schema
from ..records import RetainedTrace
from ..retention import Retention
from ..schema import storable
from ..selection import Indicator, Selection
from ..series import Series
from ..storage import StoreSnapshot
from .fetch import QueryGroup, request_latency
from .frames import frame

EXEMPLAR_COLUMNS = (
    "trace_id",
    "span_id",
    "at",
    "service",
    "version",
    "route",
    "duration_seconds",
    "rank",
    "status",
    "dominant",
    "because",
    "stages",
)
# Retention rule of agents (`instrumentors.agent.sample`) and of traces of other programs (`collector.traces`).
RETENTION_RULE = (
    "the slowest, failed, cold-start and random requests, and those forced by header, of every series and "
    "export, each up to a limit; the same for traces of other programs"
)
# Minimum length of a prefix of a trace id: of a million traces, one in a few thousand shares its first eight hexadecimal digits
# with another one.
MIN_PREFIX = 8
_NS = 1_000_000_000
# Largest signed 64-bit number.
_MAX_NS = 2**63 - 1


class TraceQueries(QueryGroup):
    def exemplars(
        self,
        selection: Selection,
        *,
        limit: int = 20,
        dominant: str | None = None,
        order: Literal["slow", "time"] = "slow",
        between_seconds: tuple[float, float] | None = None,
    ) -> pd.DataFrame:
        """Return retained requests, the slowest or the newest first.

        Returns:
            Columns trace_id, span_id (of the root), at (UTC, to the nanosecond), service, version, route,
            duration_seconds, rank (0..1, the share of the selection's requests that are not slower; NaN without requests),
            status, dominant, because (reason for the retention), stages (seconds by stage). `<trace_id>-<span_id>` is a permanent
            name of a request. `attrs`: rule (description of the retention rule), requests (number of requests on which the ranks
            are based), kept (number of retained requests of the selection by reason), retention_seconds (retention),
            kept_a_service (maximum number of retained requests of a service; the newest are retained).
        """
        with self._snapshot() as snapshot:
            traces = schema.traces
            statement = select_traces(selection)
            if dominant is not None:
                statement = statement.where(traces.c.dominant == storable(dominant))
            if between_seconds is not None:
                statement = statement.where(*duration_range(between_seconds))
            column = traces.c.duration if order == "slow" else traces.c.started
            statement = statement.order_by(column.desc(), traces.c.trace_id, traces.c.span_id)
            rows = snapshot.connection.execute(statement.limit(limit)).all()
            return exemplar_frame(snapshot, selection, rows, self._retention)

    def one_per_cause(
        self, selection: Selection, limit: int, violated: Indicator | None = None, *, above_seconds: float = 0.0
    ) -> pd.DataFrame:
        """Return the slowest retained request of each dominant stage, slowest first, followed by the slowest other requests.

        Returns:
            The columns and `attrs` of `exemplars`.
        """
        with self._snapshot() as snapshot:
            traces = schema.traces
            chosen = select_traces(selection).where(
                traces.c.duration > int(above_seconds * _NS), *_bad_traces(violated)
            )
            slowest = chosen.order_by(traces.c.duration.desc(), traces.c.trace_id, traces.c.span_id)
            if violated is not None and violated.kind == "stage":
                threshold = (violated.threshold_seconds or 0) * _NS
                candidates = snapshot.connection.execute(slowest)
                rows = [row for row in candidates if json.loads(row.stages).get(violated.key, 0) > threshold]
                first = list({row.dominant: row for row in reversed(rows)}.values())
            else:
                causes = snapshot.connection.scalars(chosen.with_only_columns(traces.c.dominant).distinct()).all()
                statements = (slowest.where(traces.c.dominant == cause).limit(1) for cause in causes)
                first = [snapshot.connection.execute(statement).one() for statement in statements]
                rows = snapshot.connection.execute(slowest.limit(limit + len(first))).all()
            # A fixed order of equally slow traces, which the database returns in any order.
            first.sort(key=lambda row: (-row.duration, *_trace_key(row)))
            first_keys = {_trace_key(row) for row in first}
            rest = [row for row in rows if _trace_key(row) not in first_keys]
            return exemplar_frame(snapshot, selection, [*first, *rest][:limit], self._retention)

    def trace(self, trace_id: str) -> RetainedTrace | None:
        with self._snapshot() as snapshot:
            return find_trace(snapshot, trace_id)


def duration_range(between_seconds: tuple[float, float]) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of a duration in [low, high)."""
    low, high = (int(min(max(seconds * _NS, 0), _MAX_NS)) for seconds in between_seconds)
    return [schema.traces.c.duration >= low, schema.traces.c.duration < high]


def _bad_traces(violated: Indicator | None) -> list[ColumnElement[bool]]:
    if violated is None:
        return []
    failed, limit = schema.series.c.status == STATUS_ERROR, int((violated.threshold_seconds or 0) * _NS)
    longer = schema.traces.c.duration > limit
    by_kind = {"availability": failed, "latency": or_(failed, longer), "stage": longer}
    return [by_kind.get(violated.kind, false())]


def select_documents() -> Select[Any]:
    """Return the statement of all retained requests, for `retained_trace`."""
    traces, series = schema.traces, schema.series
    dimensions = (series.c[name] for name in schema.DIMENSIONS)
    return select(traces, *dimensions).join_from(traces, series, traces.c.series_id == series.c.id)


def find_trace(snapshot: StoreSnapshot, trace_id: str) -> RetainedTrace | None:
    """Return the retained request with *trace_id*, see `Reader.trace`."""
    traces = schema.traces
    wanted, _, span_id = storable(trace_id).lower().partition("-")
    if len(wanted) < MIN_PREFIX:
        return None
    statement = (
        select_documents()
        # "g" sorts after every hexadecimal digit, so this range has all ids with the wanted prefix and uses the index.
        .where(traces.c.trace_id >= wanted, traces.c.trace_id < wanted + "g")
        .order_by(traces.c.started.desc())
        .limit(1)
    )
    if span_id:
        statement = statement.where(traces.c.trace_id == wanted, traces.c.span_id == span_id)
    row = snapshot.connection.execute(statement).one_or_none()
    return None if row is None else retained_trace(row)


def _trace_key(row: Row[Any]) -> tuple[str, str]:
    return row.trace_id, row.span_id


def retained_trace(row: Row[Any]) -> RetainedTrace:
    document = records.unpack_trace(row.spans)
    return RetainedTrace(
        trace_id=row.trace_id,
        span_id=row.span_id,
        series=Series(*(getattr(row, name) for name in schema.DIMENSIONS)),
        started_ns=row.started,
        duration_ns=row.duration,
        because=row.because,
        dominant=row.dominant,
        stages_ns=json.loads(row.stages),
        spans=document["spans"],
        attributes=document["attributes"],
        parent_id=document.get("parent", ""),
    )


def select_traces(selection: Selection) -> Select[Any]:
    """Return the statement of the retained traces of *selection*, without their documents."""
    traces, series = schema.traces, schema.series
    wanted = ("trace_id", "span_id", "started", "duration", "dominant", "because", "stages")
    return (
        select(
            *(traces.c[name] for name in wanted),
            *(series.c[name] for name in ("service", "version", "route", "status")),
        )
        .join_from(traces, series, traces.c.series_id == series.c.id)
        .where(*started_in(selection))
    )


def started_in(selection: Selection) -> list[ColumnElement[bool]]:
    started, (start, end) = schema.traces.c.started, selection.seconds
    return [*selection.conditions(), started >= start * _NS, started < end * _NS]


def exemplar_frame(
    snapshot: StoreSnapshot, selection: Selection, rows: Sequence[Row[Any]], retention: Retention
) -> pd.DataFrame:
    distribution = request_latency(snapshot, selection) if rows else Histogram()
    table = frame(EXEMPLAR_COLUMNS, [_exemplar(row, distribution) for row in rows])
    table["at"] = pd.to_datetime(table["at"].astype("int64"), unit="ns", utc=True)
    table.attrs |= {
        "rule": RETENTION_RULE,
        "requests": distribution.count,
        "kept": _counts_by_reason(snapshot, selection),
        "retention_seconds": int(retention.traces.total_seconds()),
        "kept_a_service": retention.traces_per_service,
    }
    return table


def _counts_by_reason(snapshot: StoreSnapshot, selection: Selection) -> dict[str, int]:
    because = schema.traces.c.because
    counted = select_traces(selection).with_only_columns(because, func.count()).group_by(because).order_by(because)
    return {row[0]: row[1] for row in snapshot.connection.execute(counted)}


def _exemplar(row: Row[Any], distribution: Histogram) -> dict[str, Any]:
    seconds = row.duration / _NS
    rank = distribution.fraction_below(seconds)
    return {
        "trace_id": row.trace_id,
        "span_id": row.span_id,
        "at": row.started,
        "service": row.service,
        "version": row.version,
        "route": row.route,
        "duration_seconds": seconds,
        "rank": float("nan") if rank is None else rank.value,
        "status": row.status,
        "dominant": row.dominant,
        "because": row.because,
        "stages": {stage: spent / _NS for stage, spent in json.loads(row.stages).items()},
    }
