"""Evidence of a firing SLO: dashboard links, burn-rate trend, slow requests, stages that grew, and stage budgets."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from ...analysis.attributes import find_causes
from ...analysis.burn_rate import as_requests, burn_rate
from ...analysis.comparison import StageGrowth, dominant_growth, rank_stage_growth
from ...analysis.profile import FunctionGrowth, grown_functions
from ...core.addresses import path_segment
from ...core.names import STATUS_ERROR
from ...questions.breakdown import breakdown
from ...store import Reader, Selection
from ...store.schema import storable_name
from ..delivery.message import Exemplar, SharedAttribute, Trend
from ..objectives.slo import Slo

# Time before the onset that the dashboard page shows.
CALM_BEFORE = timedelta(minutes=15)
# Service tab per kind of SLO. All other kinds use the first tab, which shows the time of each stage at the percentile.
_TOKENS, _ERRORS = "/tokens", "/traces"
_TABS = {"ttft": _TOKENS, "tpot": _TOKENS, "availability": _ERRORS}
_MINUTE = timedelta(minutes=1)
# Number of points of a trend.
_POINTS = 60
# Number of slow requests shown, and number of slowest requests searched.
_SHOWN, _LOOKED_AT = 3, 30
# Number of functions shown.
_FUNCTIONS = 3
# Number of shared attributes.
_ATTRIBUTES = 3
# Kinds of objectives about whole requests; only their violations can be explained by a stage.
OF_REQUESTS = ("latency", "availability")


@dataclass(frozen=True, slots=True)
class StageUse:
    """Use of a stage budget.

    Args:
        stage: Key of the stage.
        budget_seconds: Budget of the stage. [seconds]
        seconds: Time in the stage of requests at the SLO's percentile. [seconds]
        mean_seconds: Mean time in the stage over all requests. [seconds]
    """

    stage: str
    budget_seconds: float
    seconds: float
    mean_seconds: float

    @property
    def over_seconds(self) -> float:
        """Time by which the stage exceeds its budget, in seconds; negative within the budget."""
        return self.seconds - self.budget_seconds

    @property
    def is_broken(self) -> bool:
        """Whether the stage exceeded its budget."""
        return self.over_seconds > 0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """Split of an SLO's threshold into stage budgets, with their use.

    Args:
        uses: Use of each stage budget, the most exceeded first.
        requests: Number of requests. [count]
        seconds: Latency at the SLO's percentile. [seconds]
        mean_seconds: Mean latency. [seconds]
    """

    uses: tuple[StageUse, ...]
    requests: int
    seconds: float
    mean_seconds: float

    @property
    def rest_seconds(self) -> float:
        """Time in stages without a budget at the SLO's percentile, in seconds."""
        return max(0.0, self.seconds - sum(use.seconds for use in self.uses))

    @property
    def rest_mean_seconds(self) -> float:
        """Mean time in stages without a budget, in seconds."""
        return max(0.0, self.mean_seconds - sum(use.mean_seconds for use in self.uses))

    @property
    def broken(self) -> tuple[StageUse, ...]:
        """Stages that exceeded their budgets, worst first."""
        return tuple(use for use in self.uses if use.is_broken)


def stage_budgets(read: Reader, slo: Slo, start: datetime, end: datetime) -> BudgetSplit | None:
    """Return the use of the stage budgets of *slo* by the requests in `[start, end)`.

    Returns:
        The use; None if the SLO has no stage budgets, or there are no requests.

    Raises:
        StoreError: The store cannot be read.
    """
    if not slo.budgets:
        return None
    selection = slo.select(start, end)
    found = breakdown(read, selection, (slo.objective,))
    whole = read.breakdown_over_time(selection, None, end - start)
    if not found.requests or whole.empty:
        return None
    there = found.stages(slo.objective)

    def mean(column: str) -> float:
        # A stage without requests has no column.
        return float((whole.get(column, 0.0) * whole["n"]).sum() / whole["n"].sum())

    uses = [
        StageUse(stage, length.total_seconds(), seconds=there.get(stage, 0.0), mean_seconds=mean(stage))
        for stage, length in slo.budgets
    ]
    return BudgetSplit(
        uses=tuple(sorted(uses, key=lambda use: -use.over_seconds)),
        requests=found.requests,
        seconds=sum(there.values()),
        mean_seconds=mean("value_seconds"),
    )


def dashboard_link(dashboard_url: str, slo: Slo, began: datetime, now: datetime, quantile: float = 0.0) -> str:
    """Return the URL of the dashboard page that shows the incident and the time before it; "" without a dashboard.

    Args:
        dashboard_url: Base URL of the dashboard; empty for no link.
        slo: The SLO.
        began: Onset.
        now: End of the page's window.
        quantile: Latency quantile to show; 0 for the quantile of the objective.

    >>> shop = Slo("x", "shop", 0.99, timedelta(days=30), timedelta(seconds=1), version="v2", route="/pay/{id}")
    >>> dashboard_link("http://127.0.0.1:8600/", shop, datetime.fromtimestamp(900), datetime.fromtimestamp(1000))
    'http://127.0.0.1:8600/s/shop?p=99&v=v2&r=/pay/%7Bid%7D&from=0&to=1000000'
    """
    if not dashboard_url:
        return ""
    tab = "" if quantile else _TABS.get(slo.kind, "")
    # In the parameter order of the dashboard, so that equal views have equal URLs.
    query = {
        "p": None if tab == _ERRORS else f"{100 * (quantile or slo.objective):g}",
        "by": slo.definition if tab == _TOKENS else None,
        **filter_params(slo),
        "err": "1" if tab == _ERRORS else None,
        "env": slo.environment or None,
        "from": _milliseconds(began - CALM_BEFORE),
        "to": _milliseconds(now),
    }
    asked = urlencode({key: value for key, value in query.items() if value is not None}, safe=":,/")
    return f"{dashboard_url.rstrip('/')}/s/{path_segment(storable_name(slo.service))}{tab}?{asked}"


def filter_params(slo: Slo) -> dict[str, str]:
    """Return the filters of *slo* as parameters of a dashboard URL, truncated like names in the store."""
    found = {"v": slo.version, "m": slo.model, "r": slo.route}
    return {key: storable_name(value) for key, value in found.items() if value}


def trace_link(dashboard_url: str, trace: str) -> str:
    """Return the URL of the dashboard page for the retained trace *trace*; "" without a dashboard."""
    return f"{dashboard_url.rstrip('/')}/traces/{path_segment(trace)}" if dashboard_url else ""


def filters_of(slo: Slo) -> dict[str, str]:
    """Return the filters of *slo* by dimension."""
    found = {"environment": slo.environment, "route": slo.route, "model": slo.model, "version": slo.version}
    return {key: value for key, value in found.items() if value}


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def slow_requests(read: Reader, slo: Slo, began: datetime, now: datetime, dashboard_url: str) -> tuple[Exemplar, ...]:
    """Return the slowest retained trace of bad requests for each cause since *began*, slowest first."""
    if slo.kind in ("coverage", "freshness"):
        return ()
    found = read.one_per_cause(slo.select(began, now), _LOOKED_AT)
    shown = found[_bad_mask(found, slo)].head(_SHOWN)
    return tuple(exemplar_of(row, dashboard_url, slo.stage) for row in shown.to_dict("records"))


def burn_rate_trend(read: Reader, slo: Slo, began: datetime, now: datetime) -> Trend | None:
    """Return the burn rate over the incident and a time of the same length before it; None without requests."""
    start = began - max(CALM_BEFORE, now - began)
    step = _MINUTE * max(1, math.ceil((now - start) / _MINUTE / _POINTS))
    found = {
        round((at - start) / step): burn_rate(bad, total, slo.objective)
        for at, total, bad in counts_by_step(read, slo, start, now, step)
    }
    points = math.ceil((now - start) / step)
    values = tuple(found.get(point) for point in range(points))
    return Trend(values, step.total_seconds(), start.timestamp()) if found else None


def counts_by_step(
    read: Reader, slo: Slo, start: datetime, end: datetime, step: timedelta
) -> list[tuple[datetime, float, float]]:
    """Return start time, requests and bad requests of each *step* that has requests, in order of time."""
    series = read.tally_series(slo.select(start, end), slo.indicator, step)
    counts = [
        as_requests(float(requests), float(total), float(bad))
        for requests, total, bad in zip(series["requests"], series["total"], series["bad"], strict=True)
    ]
    moments = [at.to_pydatetime().astimezone(UTC) for at in series["at"]]
    return [(at, each.total, each.bad) for at, each in zip(moments, counts, strict=True)]


def exemplar_of(row: Mapping[Hashable, Any], dashboard_url: str, stage: str | None = None) -> Exemplar:
    """Return a row of `Reader.one_per_cause` as an exemplar, with *stage* or else the longest stage."""
    stage = stage or str(row["dominant"])
    trace = f"{row['trace_id']}-{row['span_id']}"
    return Exemplar(
        trace=trace,
        seconds=float(row["duration_seconds"]),
        stage=stage,
        stage_seconds=float(row["stages"].get(stage, 0.0)),
        link=trace_link(dashboard_url, trace),
    )


def _bad_mask(found: pd.DataFrame, slo: Slo) -> pd.Series:
    failed = found["status"] == STATUS_ERROR
    if slo.kind == "availability":
        return failed
    if slo.stage is not None and slo.threshold is not None:
        limit = slo.threshold.total_seconds()
        return pd.Series(
            [float(spent.get(slo.stage, 0.0)) > limit for spent in found["stages"]], found.index, dtype=bool
        )
    # The duration of a request does not contain its token latencies, so the slowest requests are shown.
    return failed | (found["duration_seconds"] > (slo.threshold_seconds or 0.0))


def stage_excess(read: Reader, slo: Slo, began: datetime, now: datetime) -> tuple[StageGrowth, ...]:
    """Return the stages in which bad requests spend more time than good ones, worst first.

    Args:
        read: The store's queries.
        slo: The SLO, which defines bad requests.
        began: Onset; good requests from some time before it are included.
        now: End of the window.
    """
    # Not for failures, because a request that fails immediately spends no time in any stage.
    if slo.kind != "latency":
        return ()
    return excess_by_stage(read.bad_breakdown(slo.select(began - CALM_BEFORE, now), slo.threshold_seconds))


def code_growth(
    read: Reader, before: Selection, after: Selection, growth: Sequence[StageGrowth], quantile: float
) -> tuple[FunctionGrowth, ...]:
    """Return the functions that grew most within the stage to blame, most growth first.

    Args:
        read: The store's queries.
        before: Requests before the problem.
        after: Requests during the problem.
        growth: Stages that grew, worst first.
        quantile: Percentile of the compared requests.

    Returns:
        No functions without a dominant stage, or with too few samples.
    """
    blamed = dominant_growth(growth)
    now = read.profile(after, (quantile,)) if blamed else []
    then = read.profile(before, (quantile,)) if now else []
    found = grown_functions(then[0], now[0]) if then else []
    return tuple(each for each in found if blamed and each.stage == blamed.stage)[:_FUNCTIONS]


def shared_attributes(read: Reader, slow: Selection, quantile: float) -> tuple[SharedAttribute, ...]:
    """Return the attributes that the requests above *quantile* share more often than all requests of *slow*, strongest first."""
    distinct = (each for each in find_causes(read.attributes(slow), quantile).causes if not each.same_as)
    return tuple(SharedAttribute(each.label, each.share_all, each.share_slow) for each in islice(distinct, _ATTRIBUTES))


def excess_by_stage(breakdown: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, worst first, from a data frame of `Reader.bad_breakdown`."""
    return rank_stage_growth(breakdown.rename(columns={"excess_seconds": "delta_seconds"}))
