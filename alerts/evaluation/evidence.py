"""Evidence of a firing SLO: dashboard links, burn-rate trend, slow requests, stages that grew, and stage budgets."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pandas as pd

from ...analysis.comparison import StageGrowth, rank_stage_growth
from ...core.names import STATUS_ERROR
from ...store import Reader
from ...store.texts import name as stored
from ..delivery.message import Exemplar, Trend
from ..objectives.slo import Slo
from .burn_rate import burn_rate
from .measurement import as_requests


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage took of its budget.

    Args:
        stage: Which.
        budget_seconds: Its part of the threshold.
        seconds: What it took in the requests at the percentile the SLO promises: those that must just fit.
        mean_seconds: What it took on average, of all requests.
    """

    stage: str
    budget_seconds: float
    seconds: float
    mean_seconds: float

    @property
    def over_seconds(self) -> float:
        """How much more than its budget it took; below zero when it kept it."""
        return self.seconds - self.budget_seconds

    @property
    def is_broken(self) -> bool:
        """Whether it took more than its budget."""
        return self.over_seconds > 0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """How some requests spent the threshold of an SLO.

    Args:
        uses: What each stage with a budget took, the worst broken first.
        requests: How many requests there are. [count]
        seconds: The latency at the percentile the SLO promises; all stages together.
        mean_seconds: The latency on average.
    """

    uses: tuple[StageUse, ...]
    requests: int
    seconds: float
    mean_seconds: float

    @property
    def rest_seconds(self) -> float:
        """What stages without a budget took in the requests at the percentile."""
        return max(0.0, self.seconds - sum(use.seconds for use in self.uses))

    @property
    def rest_mean_seconds(self) -> float:
        """What they took on average."""
        return max(0.0, self.mean_seconds - sum(use.mean_seconds for use in self.uses))

    @property
    def broken(self) -> tuple[StageUse, ...]:
        """The stages that took more than their budgets, the worst first."""
        return tuple(use for use in self.uses if use.is_broken)


def stage_budgets(read: Reader, slo: Slo, start: datetime, end: datetime) -> BudgetSplit | None:
    """Return how the requests of `[start, end)` spent the budgets of *slo*.

    Returns:
        None when the SLO has no budgets, or there are no requests.

    Raises:
        StoreError: The store cannot be read.
    """
    if not slo.budgets:
        return None
    selection = slo.select(start, end)
    at = read.breakdown(selection, (slo.objective,))
    whole = read.breakdown_over_time(selection, None, end - start)
    if at.empty or whole.empty:
        return None
    there = at.iloc[0]

    def mean(column: str) -> float:
        # A stage that no request had has no column.
        return float((whole.get(column, 0.0) * whole["n"]).sum() / whole["n"].sum())

    uses = [
        StageUse(stage, length.total_seconds(), seconds=float(there.get(stage, 0.0)), mean_seconds=mean(stage))
        for stage, length in slo.budgets
    ]
    return BudgetSplit(
        uses=tuple(sorted(uses, key=lambda use: -use.over_seconds)),
        requests=int(at.attrs["requests"]),
        seconds=float(there["value_seconds"]),
        mean_seconds=mean("value_seconds"),
    )


# The page opens on some of the calm before it.
CALM_BEFORE = timedelta(minutes=15)
# The tab of a service that shows best what a promise is about. All others are on the first, where each stage, and what no
# stage claimed, stands with the time it takes at the percentile.
_TOKENS, _ERRORS = "/tokens", "/traces"
_TABS = {"ttft": _TOKENS, "tpot": _TOKENS, "availability": _ERRORS}


def dashboard_link(dashboard_url: str, slo: Slo, began: datetime, now: datetime, quantile: float = 0.0) -> str:
    """Return the page that shows the trouble and the calm before it, or nothing without a dashboard.

    Args:
        dashboard_url: Where the dashboard is; empty for no link.
        slo: Whose requests, and what of them.
        began: When the trouble began.
        now: Until when it is shown.
        quantile: The percentile of the latency that the message speaks of; 0 where it speaks of what is promised.

    >>> shop = Slo("x", "shop", 0.99, timedelta(days=30), timedelta(seconds=1), version="v2", route="/pay/{id}")
    >>> dashboard_link("http://127.0.0.1:8600/", shop, datetime.fromtimestamp(900), datetime.fromtimestamp(1000))
    'http://127.0.0.1:8600/s/shop?p=99&v=v2&r=/pay/%7Bid%7D&from=0&to=1000000'
    """
    if not dashboard_url:
        return ""
    tab = "" if quantile else _TABS.get(slo.kind, "")
    # In the order the dashboard writes them in: equal views have equal addresses.
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
    return f"{dashboard_url.rstrip('/')}/s/{quote(slo.service, safe='')}{tab}?{asked}"


def filter_params(slo: Slo) -> dict[str, str]:
    """Return which part of its service *slo* is about, by the keys of a dashboard address, cut as the store cuts names."""
    found = {"v": slo.version, "m": slo.model, "r": slo.route}
    return {key: stored(value) for key, value in found.items() if value}


def trace_link(dashboard_url: str, trace: str) -> str:
    """Return the page of the kept request *trace*, or nothing without a dashboard."""
    return f"{dashboard_url.rstrip('/')}/traces/{quote(trace, safe='')}" if dashboard_url else ""


def filters_of(slo: Slo) -> dict[str, str]:
    """Return what of a service *slo* is about, where it is not about all of it."""
    found = {"environment": slo.environment, "route": slo.route, "model": slo.model, "version": slo.version}
    return {key: value for key, value in found.items() if value}


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


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
    shown = found[_bad_mask(found, slo)].head(_SHOWN)
    return tuple(exemplar_of(row, dashboard_url, slo.stage) for row in shown.to_dict("records"))


def burn_rate_trend(read: Reader, slo: Slo, began: datetime, now: datetime) -> Trend | None:
    """Return the burn rate up to *now*: of the trouble, and of as long before it; None where nothing was seen."""
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
    """Return start, requests and bad requests of each *step* that has any, in order of time."""
    series = read.tally_series(slo.select(start, end), slo.indicator, step)
    counts = [
        as_requests(float(requests), float(total), float(bad))
        for requests, total, bad in zip(series["requests"], series["total"], series["bad"], strict=True)
    ]
    moments = [at.to_pydatetime().astimezone(UTC) for at in series["at"]]
    return [(at, each.total, each.bad) for at, each in zip(moments, counts, strict=True)]


def exemplar_of(row: Mapping[Hashable, Any], dashboard_url: str, stage: str | None = None) -> Exemplar:
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


def _bad_mask(found: pd.DataFrame, slo: Slo) -> pd.Series:
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


# Kinds of objectives about whole requests. Of any other kind no stage of a request explains why it was broken.
OF_REQUESTS = ("latency", "availability")


def stage_excess(read: Reader, slo: Slo, began: datetime, now: datetime) -> tuple[StageGrowth, ...]:
    """Return the stages that bad requests spend more time in than good ones, worst first; the good ones of the calm before too.

    Args:
        read: The store's queries.
        slo: Which requests are bad.
        began: When the trouble began.
        now: The end of it.
    """
    # Failures are reported by their number: a request that fails at once spends no time in any stage.
    if slo.kind != "latency":
        return ()
    return excess_by_stage(read.bad_breakdown(slo.select(began - CALM_BEFORE, now), slo.threshold_seconds))


def excess_by_stage(breakdown: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, worst first, from a frame of `Reader.bad_breakdown`."""
    return rank_stage_growth(breakdown.rename(columns={"excess_seconds": "delta_seconds"}))
