"""What a message shows beside its numbers: how it went so far, and a few slow requests to look at."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from ...core.names import STATUS_ERROR
from ...store import Reader
from ..delivery.finding_parts import Course, Exemplar
from ..objectives.slo import Slo
from . import burn_rate
from .links import CALM_BEFORE, trace_link
from .measurement import counts_of

_MINUTE = timedelta(minutes=1)
# A picture in a message is small.
_POINTS = 60
# So many requests are shown, found among so many of the slowest.
_SHOWN, _LOOKED_AT = 3, 30


def slow_requests(read: Reader, slo: Slo, began: datetime, now: datetime, dashboard_url: str) -> tuple[Exemplar, ...]:
    """Return kept requests that were bad since *began*: the slowest of each cause, slowest first."""
    if slo.kind in ("coverage", "freshness"):
        return ()
    found = read.one_per_cause(slo.select(began, now), _LOOKED_AT)
    shown = found[_bad(found, slo)].head(_SHOWN)
    return tuple(exemplar(row, dashboard_url, slo.stage) for row in shown.to_dict("records"))


def course(read: Reader, slo: Slo, began: datetime, now: datetime) -> Course | None:
    """Return the burn rate up to *now*: of the trouble, and of as long before it; None where nothing was seen."""
    start = began - max(CALM_BEFORE, now - began)
    step = _MINUTE * max(1, math.ceil((now - start) / _MINUTE / _POINTS))
    found = {
        round((at - start) / step): burn_rate.burn_rate(bad, total, slo.objective)
        for at, total, bad in counted(read, slo, start, now, step)
    }
    points = math.ceil((now - start) / step)
    values = tuple(found.get(point) for point in range(points))
    return Course(values, step.total_seconds(), start.timestamp()) if found else None


def counted(
    read: Reader, slo: Slo, start: datetime, end: datetime, step: timedelta
) -> list[tuple[datetime, float, float]]:
    """Return start, requests and bad requests of each *step* that has any, in order of time."""
    series = read.tally_series(slo.select(start, end), slo.indicator, step)
    counts = [
        counts_of(float(requests), float(total), float(bad))
        for requests, total, bad in zip(series["requests"], series["total"], series["bad"], strict=True)
    ]
    moments = [at.to_pydatetime().astimezone(UTC) for at in series["at"]]
    return [(at, each.total, each.bad) for at, each in zip(moments, counts, strict=True)]


def exemplar(row: Mapping[Hashable, Any], dashboard_url: str, stage: str | None = None) -> Exemplar:
    """Return a retained request, a row of `Reader.one_per_cause`, as messages show it: with *stage*, or the one that took most."""
    stage = stage or str(row["dominant"])
    trace = f"{row['trace_id']}-{row['span_id']}"
    return Exemplar(
        trace=trace,
        seconds=float(row["duration_seconds"]),
        stage=stage,
        stage_seconds=float(row["stages"].get(stage, 0.0)),
        link=trace_link(dashboard_url, trace),
    )


def _bad(found: pd.DataFrame, slo: Slo) -> pd.Series:
    failed = found["status"] == STATUS_ERROR
    if slo.kind == "availability":
        return failed
    if slo.stage is not None and slo.threshold is not None:
        limit = slo.threshold.total_seconds()
        return pd.Series(
            [float(spent.get(slo.stage, 0.0)) > limit for spent in found["stages"]], found.index, dtype=bool
        )
    # Of tokens the whole request does not say which of them were bad: the slowest are shown.
    return failed | (found["duration_seconds"] > (slo.threshold_seconds or 0.0))
