"""Kept requests: the exemplars of a selection, and one of them whole."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Connection, Row, Select, select

from ...core.histogram import Histogram
from . import schema
from .frames import frame
from .latency import latency
from .records import KeptTrace
from .selection import Selection
from .series import Series

COLUMNS = (
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
# A prefix of eight hexadecimal digits is shared by two of a million traces once in a few thousand stores.
MIN_PREFIX = 8
_NS = 1_000_000_000


def exemplars(
    connection: Connection, selection: Selection, *, limit: int, dominant: str | None, order: Literal["slow", "time"]
) -> pd.DataFrame:
    """See `Reader.exemplars`."""
    statement = _select(selection)
    if dominant is not None:
        statement = statement.where(schema.traces.c.dominant == dominant)
    column = schema.traces.c.duration if order == "slow" else schema.traces.c.started
    rows = connection.execute(
        statement.order_by(column.desc(), schema.traces.c.trace_id, schema.traces.c.span_id).limit(limit)
    ).all()
    return _frame(connection, selection, rows)


def one_per_cause(connection: Connection, selection: Selection, limit: int) -> pd.DataFrame:
    """See `Reader.one_per_cause`."""
    traces = schema.traces
    slowest = _select(selection).order_by(traces.c.duration.desc(), traces.c.trace_id, traces.c.span_id)
    causes = connection.scalars(_select(selection).with_only_columns(traces.c.dominant).distinct()).all()
    first = [connection.execute(slowest.where(traces.c.dominant == cause).limit(1)).one() for cause in causes]
    first.sort(key=lambda row: -row.duration)
    taken = {_name(row) for row in first}
    rest = [row for row in connection.execute(slowest.limit(limit + len(first))) if _name(row) not in taken]
    return _frame(connection, selection, [*first, *rest][:limit])


def trace(connection: Connection, trace_id: str) -> KeptTrace | None:
    """See `Reader.trace`."""
    traces, series = schema.traces, schema.series
    wanted, _, span_id = trace_id.lower().partition("-")
    if len(wanted) < MIN_PREFIX:
        return None
    statement = (
        select(traces, *(series.c[name] for name in schema.DIMENSIONS))
        .join_from(traces, series, traces.c.series_id == series.c.id)
        # "g" sorts after every hexadecimal digit: the ids that begin with what is wanted, straight from the index.
        .where(traces.c.trace_id >= wanted, traces.c.trace_id < wanted + "g")
        .order_by(traces.c.started.desc())
        .limit(1)
    )
    if span_id:
        statement = statement.where(traces.c.trace_id == wanted, traces.c.span_id == span_id)
    row = connection.execute(statement).one_or_none()
    return None if row is None else _kept(row)


def _name(row: Row[Any]) -> tuple[str, str]:
    return row.trace_id, row.span_id


def _kept(row: Row[Any]) -> KeptTrace:
    document = json.loads(zlib.decompress(row.spans))
    return KeptTrace(
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
    )


def _select(selection: Selection) -> Select[Any]:
    traces, series = schema.traces, schema.series
    start, end = selection.seconds
    wanted = ("trace_id", "span_id", "started", "duration", "dominant", "because", "stages")
    return (
        select(
            *(traces.c[name] for name in wanted),
            *(series.c[name] for name in ("service", "version", "route", "status")),
        )
        .join_from(traces, series, traces.c.series_id == series.c.id)
        .where(*selection.conditions(), traces.c.started >= start * _NS, traces.c.started < end * _NS)
    )


def _frame(connection: Connection, selection: Selection, rows: Sequence[Row[Any]]) -> pd.DataFrame:
    distribution = latency(connection, selection) if rows else Histogram()
    made = frame(COLUMNS, [_exemplar(row, distribution) for row in rows])
    made["at"] = pd.to_datetime(made["at"].astype("int64"), unit="ns", utc=True)
    return made


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
