"""Kept requests: the exemplars of a selection, and one of them whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Row, Select, func, select

from ...core.histogram import Histogram
from .. import documents, schema
from ..points import Snapshot
from ..records import KeptTrace
from ..retention import Retention
from ..selection import Selection
from ..series import Series
from ..texts import storable
from .frames import frame
from .latency import latency

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
# What every agent keeps (`instrumentors.sampler`), and what is kept of other programs' traces (`collector.traces.sampling`).
RULE = (
    "of every series and export those that were asked for, failed ones, the slowest, those in which something was loaded, "
    "and a uniform share, each up to a limit; of other programs' traces the same"
)
# A prefix of eight hexadecimal digits is shared by two of a million traces once in a few thousand stores.
MIN_PREFIX = 8
_NS = 1_000_000_000
# What a signed number of 64 bits holds.
_MOST_NS = 2**63 - 1
# Attributes are looked for in so many kept requests: a tenth of a second.
_MOST_LOOKED_AT = 5000


def exemplars(
    snapshot: Snapshot,
    selection: Selection,
    retention: Retention,
    *,
    limit: int,
    dominant: str | None,
    order: Literal["slow", "time"],
    between_seconds: tuple[float, float] | None = None,
    attribute: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """See `Reader.exemplars`."""
    traces = schema.traces
    statement = _select(selection)
    if dominant is not None:
        statement = statement.where(traces.c.dominant == storable(dominant))
    if between_seconds is not None:
        low, high = (int(min(max(seconds * _NS, 0), _MOST_NS)) for seconds in between_seconds)
        statement = statement.where(traces.c.duration >= low, traces.c.duration < high)
    column = traces.c.duration if order == "slow" else traces.c.started
    statement = statement.order_by(column.desc(), traces.c.trace_id, traces.c.span_id)
    rows = (
        snapshot.connection.execute(statement.limit(limit)).all()
        if attribute is None
        else _with_attribute(snapshot, statement, attribute, limit)
    )
    return _frame(snapshot, selection, rows, retention)


def _with_attribute(
    snapshot: Snapshot, statement: Select[Any], attribute: tuple[str, str], limit: int
) -> list[Row[Any]]:
    """Return the first rows that have *attribute*: it is in a packed document, so they are looked at one by one."""
    rows = snapshot.connection.execute(statement.add_columns(schema.traces.c.spans).limit(_MOST_LOOKED_AT))
    return list(islice((row for row in rows if _has(row, *attribute)), limit))


def _has(row: Row[Any], key: str, value: str) -> bool:
    document = documents.read(row.spans)
    every = [document["attributes"], *(span.get("attributes", {}) for span in document["spans"])]
    return any(str(attributes.get(key)) == value for attributes in every)


def one_per_cause(snapshot: Snapshot, selection: Selection, retention: Retention, limit: int) -> pd.DataFrame:
    """See `Reader.one_per_cause`."""
    traces = schema.traces
    slowest = _select(selection).order_by(traces.c.duration.desc(), traces.c.trace_id, traces.c.span_id)
    causes = snapshot.connection.scalars(_select(selection).with_only_columns(traces.c.dominant).distinct()).all()
    first = [snapshot.connection.execute(slowest.where(traces.c.dominant == cause).limit(1)).one() for cause in causes]
    # Of equally slow ones the order must not be the database's.
    first.sort(key=lambda row: (-row.duration, *_name(row)))
    taken = {_name(row) for row in first}
    rest = [row for row in snapshot.connection.execute(slowest.limit(limit + len(first))) if _name(row) not in taken]
    return _frame(snapshot, selection, [*first, *rest][:limit], retention)


def trace(snapshot: Snapshot, trace_id: str) -> KeptTrace | None:
    """See `Reader.trace`."""
    traces, series = schema.traces, schema.series
    wanted, _, span_id = storable(trace_id).lower().partition("-")
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
    row = snapshot.connection.execute(statement).one_or_none()
    return None if row is None else _kept(row)


def _name(row: Row[Any]) -> tuple[str, str]:
    return row.trace_id, row.span_id


def _kept(row: Row[Any]) -> KeptTrace:
    document = documents.read(row.spans)
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


def _frame(snapshot: Snapshot, selection: Selection, rows: Sequence[Row[Any]], retention: Retention) -> pd.DataFrame:
    distribution = latency(snapshot, selection) if rows else Histogram()
    made = frame(COLUMNS, [_exemplar(row, distribution) for row in rows])
    made["at"] = pd.to_datetime(made["at"].astype("int64"), unit="ns", utc=True)
    made.attrs |= {
        "rule": RULE,
        "requests": distribution.count,
        "kept": _kept_because(snapshot, selection),
        "retention_seconds": int(retention.traces.total_seconds()),
        "kept_a_service": retention.traces_per_service,
    }
    return made


def _kept_because(snapshot: Snapshot, selection: Selection) -> dict[str, int]:
    """Return how many requests of *selection* are kept, by why."""
    because = schema.traces.c.because
    counted = _select(selection).with_only_columns(because, func.count()).group_by(because).order_by(because)
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
