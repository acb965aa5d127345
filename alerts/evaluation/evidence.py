"""Evidence of an incident: dashboard links, burn-rate trend, bad requests, called services, functions, stage budgets, and the slow replica."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from ...analysis.attributes import find_causes
from ...analysis.burn_rate import as_requests, burn_rate
from ...analysis.comparison import StageGrowth, dominant_growth
from ...analysis.critical_path import DEPENDENCY, DependencySplit
from ...analysis.profile import FunctionGrowth, grown_functions
from ...analysis.replicas import HardwareDifference, ReplicaOutlier, find_outlier, stratified
from ...core import hardware as measures
from ...core.addresses import path_segment
from ...core.names import STATUS_ERROR, STATUS_OK
from ...core.settings.values import format_size
from ...core.stages import label
from ...questions.breakdown import breakdown
from ...questions.changed import CauseKind, Explanation
from ...store import Indicator, Reader, Selection
from ...store.schema import storable_name
from ..delivery.message import Exemplar, SharedAttribute, Trend
from ..formatting import count, latency, moment_of, percent, times, whole
from ..objectives.slo import Slo

# Time before the onset that the dashboard page shows.
CALM_BEFORE = timedelta(minutes=15)
# Service tab per kind of SLO. All other kinds use the first tab, which shows the time of each stage at the percentile.
_TOKENS, _ERRORS = "/tokens", "/traces"
_TABS = {"ttft": _TOKENS, "tpot": _TOKENS, "availability": _ERRORS}
_MINUTE = timedelta(minutes=1)
# Number of points of a trend.
_POINTS = 60
# Number of bad requests shown.
_SHOWN = 3
# Number of called services and hosts in a sentence.
_MAX_CALLED = 4
# Number of functions shown.
_FUNCTIONS = 3
# Number of shared attributes.
_ATTRIBUTES = 3
# Kinds of objectives about whole requests; only their violations can be explained by a stage.
OF_REQUESTS = ("latency", "availability")
# Steps in which replicas are compared.
REPLICA_STEPS = 60
# Replicas are counted once a minute: of a longer window, the last hour is also looked at minute by minute.
_RECENT = timedelta(hours=1)
# Maximum number of routes, and of models, that are compared one by one.
_MAX_PARTS = 6
# Smaller shares of the time are written as never. [ratio]
_NEVER = 0.0005
# Number of measures of the machine in the sentence.
_MAX_MEASURES = 2
_SENTENCES = {
    measures.GPU_CLOCK: "Its GPU runs at {own}, the others at {others}.",
    measures.GPU_HOT: "Its GPU is throttled by heat {own} of the time; the others {others}.",
    measures.GPU_CAPPED: "Its GPU is throttled by its power limit {own} of the time; the others {others}.",
    measures.THROTTLED: "It is throttled by its CPU limit in {own} of the scheduler periods; the others in {others}.",
    measures.HOST_CPU: "The CPUs of its machine are {own} busy, those of the others {others}.",
    measures.GPU: "Its GPU is {own} busy, the others {others}.",
    measures.CPU_SHARE: "It uses {own} of its CPUs, the others {others}.",
    measures.GPU_MEMORY_SHARE: "The memory of its GPU is {own} full, that of the others {others}.",
    measures.MEMORY: "It uses {own} of memory, the others {others}.",
}


@dataclass(frozen=True, slots=True)
class StageUse:
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
        return self.over_seconds > 0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
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
        return tuple(use for use in self.uses if use.is_broken)


def stage_budgets(read: Reader, slo: Slo, start: datetime, end: datetime) -> BudgetSplit | None:
    if not slo.budgets:
        return None
    selection = slo.select(start, end)
    spent = breakdown(read, selection, (slo.objective,))
    whole = read.breakdown_over_time(selection, None, end - start)
    if not spent.requests or whole.empty:
        return None
    there = spent.stages(slo.objective)

    def mean(column: str) -> float:
        # A stage without requests has no column.
        return float((whole.get(column, 0.0) * whole["n"]).sum() / whole["n"].sum())

    uses = [
        StageUse(stage, length.total_seconds(), seconds=there.get(stage, 0.0), mean_seconds=mean(stage))
        for stage, length in slo.budgets
    ]
    return BudgetSplit(
        uses=tuple(sorted(uses, key=lambda use: -use.over_seconds)),
        requests=spent.requests,
        seconds=sum(there.values()),
        mean_seconds=mean("value_seconds"),
    )


def dashboard_link(
    dashboard_url: str, slo: Slo, began: datetime, now: datetime, quantile: float = 0.0, *, failed: bool = False
) -> str:
    """Return the URL of the dashboard page that shows the incident and the time before it; "" without a dashboard.

    >>> shop = Slo("x", "shop", 0.99, timedelta(days=30), timedelta(seconds=1), version="v2", route="/pay/{id}")
    >>> dashboard_link("http://127.0.0.1:8600/", shop, datetime.fromtimestamp(900), datetime.fromtimestamp(1000))
    'http://127.0.0.1:8600/s/shop?p=99&v=v2&r=/pay/%7Bid%7D&from=0&to=1000000'
    """
    if not dashboard_url:
        return ""
    tab = "" if quantile else _ERRORS if failed else _TABS.get(slo.kind, "")
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
    params = {"v": slo.version, "m": slo.model, "r": slo.route}
    return {key: storable_name(value) for key, value in params.items() if value}


def trace_link(dashboard_url: str, trace: str) -> str:
    return f"{dashboard_url.rstrip('/')}/traces/{path_segment(trace)}" if dashboard_url else ""


def filters_of(slo: Slo) -> dict[str, str]:
    filters = {"environment": slo.environment, "route": slo.route, "model": slo.model, "version": slo.version}
    return {key: value for key, value in filters.items() if value}


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def exemplars_of(
    read: Reader, slo: Slo, began: datetime, now: datetime, url: str, *, cause: CauseKind
) -> tuple[Exemplar, ...]:
    """Return the slowest retained request for each longest stage that violated *slo* since *began*, slowest first."""
    requests = bad_requests(read, slo.select(began, now), slo.indicator, cause=cause, limit=_SHOWN)
    return tuple(exemplar_of(row, url, slo.stage) for row in requests.to_dict("records"))


def bad_requests(
    read: Reader,
    selection: Selection,
    violated: Indicator | None,
    *,
    cause: CauseKind,
    limit: int,
    above_seconds: float = 0.0,
) -> pd.DataFrame:
    chosen = replace(selection, status=STATUS_ERROR) if cause == "failures" else selection
    return read.one_per_cause(chosen, limit, violated, above_seconds=above_seconds)


def no_exemplar_text(violated: Indicator, change: Explanation) -> str:
    """Return why no retained request violated an objective.

    >>> no_exemplar_text(Indicator("latency", 1.0), Explanation("latency", requests=4310, bad=2))
    'No retained request broke the objective of 1 s: 2 of 4,310 did, and none was sampled.'
    """
    fixed = {
        "freshness": "The objective limits the age of data, which no request shows.",
        "coverage": "The objective limits a share of the time of all requests, which no single request breaks.",
        "ttft": "Retained requests do not record the time to their first token.",
        "tpot": "Retained requests do not record their time per token.",
    }
    if violated.kind in fixed:
        return fixed[violated.kind]
    counted = f"{count(change.bad)} of {count(change.requests)} did, and none was sampled."
    if violated.threshold_seconds is None:
        return f"No failed request is retained: {counted.replace('did', 'failed')}"
    where = f" in {label(violated.key)}" if violated.key else ""
    return f"No retained request broke the objective of {latency(violated.threshold_seconds)}{where}: {counted}"


def burn_rate_trend(read: Reader, slo: Slo, began: datetime, now: datetime) -> Trend | None:
    """Return the burn rate over the incident and a time of the same length before it; None without requests."""
    start = began - max(CALM_BEFORE, now - began)
    step = _MINUTE * max(1, math.ceil((now - start) / _MINUTE / _POINTS))
    burn_rates = {
        round((at - start) / step): burn_rate(bad, total, slo.objective)
        for at, total, bad in counts_by_step(read, slo, start, now, step)
    }
    points = math.ceil((now - start) / step)
    values = tuple(burn_rates.get(point) for point in range(points))
    return Trend(values, step.total_seconds(), start.timestamp()) if burn_rates else None


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
    return [(at, count.total, count.bad) for at, count in zip(moments, counts, strict=True)]


def exemplar_of(row: Mapping[Hashable, Any], dashboard_url: str, stage: str | None = None) -> Exemplar:
    stage = stage or str(row["dominant"])
    trace = f"{row['trace_id']}-{row['span_id']}"
    return Exemplar(
        trace=trace,
        seconds=float(row["duration_seconds"]),
        stage=stage,
        stage_seconds=float(row["stages"].get(stage, 0.0)),
        link=trace_link(dashboard_url, trace),
        failed=row["status"] == STATUS_ERROR,
    )


def code_growth(
    read: Reader, before: Selection, after: Selection, growth: Sequence[StageGrowth], quantile: float
) -> tuple[FunctionGrowth, ...]:
    """Return the functions that grew most within the stage to blame, most first; none without a dominant stage or with few samples."""
    blamed = dominant_growth(growth)
    now = read.profile(after, (quantile,)) if blamed else []
    then = read.profile(before, (quantile,)) if now else []
    growths = grown_functions(then[0], now[0]) if then else []
    blamed_growths = [
        replace(growth, quantile=quantile) for growth in growths if blamed and growth.stage == blamed.stage
    ]
    return tuple(blamed_growths[:_FUNCTIONS])


def shared_attributes(read: Reader, slow: tuple[Selection, float] | None) -> tuple[SharedAttribute, ...]:
    """Return the attributes that *slow* requests, those above a quantile, share more often than all, strongest first."""
    causes = find_causes(read.attributes(slow[0]), slow[1]).causes if slow else ()
    distinct = (cause for cause in causes if not cause.same_as)
    return tuple(
        SharedAttribute(cause.label, cause.share_all, cause.share_slow) for cause in islice(distinct, _ATTRIBUTES)
    )


def slow_selection(selection: Selection, change: Explanation, most: float = 1.0) -> tuple[Selection, float] | None:
    failed = change.failures.failed if change.failures else 0.0
    served, slow = change.requests - failed, change.bad - failed
    if served <= 0:
        return None
    # The slow requests are the bad ones that succeeded; where most are bad, the slower half.
    return replace(selection, status=STATUS_OK) if failed else selection, min(max(0.5, 1 - slow / served), most)


def reader_of(read: Reader, slo: Slo) -> Reader:
    """Return *read* for the environments of *slo*: readers of its incident may see no names of others that its requests called."""
    if slo.environment is not None:
        return read.within(frozenset({slo.environment}))
    return read.within(read.service_environments().get(storable_name(slo.service), frozenset()))


def called_text(
    read: Reader, slow: tuple[Selection, float] | None, growth: Sequence[StageGrowth], stage: str = ""
) -> str:
    """Return what *slow* requests that succeeded called; "" unless `dependency` is the *stage* of the objective or dominates *growth*."""
    blamed = dominant_growth(growth)
    if slow is None or DEPENDENCY not in (stage, blamed and blamed.stage):
        return ""
    return dependency_sentence(read.dependency_split(replace(slow[0], status=STATUS_OK), slow[1]))


def dependency_sentence(split: DependencySplit | None) -> str:
    """Return what slow requests waited for in the stage Dependency as a sentence; "" if nothing is known.

    >>> dependency_sentence(DependencySplit(41, (("ranker", 0.7), ("", 0.3))))
    'Of Dependency in 41 retained slow requests: ranker 70 %, unknown 30 %.'
    """
    if split is None or not any(name for name, _ in split.shares):
        return ""
    named = ", ".join(f"{name or 'unknown'} {percent(whole(share))}" for name, share in split.shares[:_MAX_CALLED])
    return f"Of Dependency in {count(split.requests)} retained slow request{'s' * (split.requests != 1)}: {named}."


def slow_replica(read: Reader, selection: Selection) -> ReplicaOutlier | None:
    """Return the replica that is slower than the others until the end of *selection*; None if there is none.

    With several routes or models, the replica must also be slower within them, because replicas may serve different ones.
    """
    recent = replace(selection, start=max(selection.start, selection.end - _RECENT))
    outliers = [outlier for window in dict.fromkeys((selection, recent)) if (outlier := _outlier(read, window))]
    # The longer window has the earlier onset.
    return outliers[0] if outliers else None


def slow_replica_text(read: Reader, selection: Selection) -> str:
    outlier = slow_replica(read, selection)
    return outlier_sentence(outlier, moment_of(outlier.onset)) if outlier else ""


def _outlier(read: Reader, selection: Selection) -> ReplicaOutlier | None:
    table = read.replica_counts(selection, REPLICA_STEPS)
    outlier = find_outlier(table)
    if outlier is None or not _holds_in_parts(read, selection, outlier):
        return None
    return find_outlier(table, read.hardware(selection, (selection.end - selection.start) / REPLICA_STEPS))


def _holds_in_parts(read: Reader, selection: Selection, outlier: ReplicaOutlier) -> bool:
    """Return whether *outlier* is also found if each route, and each model, is compared with itself only."""
    dimensions = read.dimensions(selection)
    for dimension in ("route", "model"):
        values = list(dimensions.get(dimension, {}))[:_MAX_PARTS]
        if len(values) < 2:  # noqa: PLR2004 - one part is the whole
            continue
        parts = [read.replica_counts(replace(selection, **{dimension: value}), REPLICA_STEPS) for value in values]
        pooled_outlier = find_outlier(stratified(parts))
        if pooled_outlier is None or pooled_outlier.place != outlier.place:
            return False
    return True


def outlier_sentence(outlier: ReplicaOutlier, since: str) -> str:
    """Return *outlier* as text.

    >>> slow = ReplicaOutlier("a:1", "a", 11, 0.5, 0.31, 0.1, 900, 0, True, (), ())
    >>> outlier_sentence(slow, "14:02").replace(chr(215), "x")
    'a is 3.1x slower than the other 11 since 14:02.'
    """
    others = f"the other {outlier.others}" if outlier.others > 1 else "the other replica"
    factor = times(outlier.ratio)
    at = f" at p{100 * outlier.quantile:g}" if outlier.quantile > 0.5 else ""  # noqa: PLR2004 - the median
    when = f"since {since}" if outlier.is_dated else f"since {since} or earlier"
    stage = dominant_growth(outlier.growth)
    why = f": {label(stage.stage)} {latency(stage.seconds, signed=True)}" if stage else ""
    sentences = [hardware_sentence(hardware) for hardware in outlier.hardware[:_MAX_MEASURES]]
    return " ".join([f"{outlier.name} is {factor} slower than {others}{at} {when}{why}.", *sentences])


def hardware_sentence(difference: HardwareDifference) -> str:
    """Return one difference between machines as text.

    >>> hardware_sentence(HardwareDifference(measures.GPU_CLOCK, 1.005e9, 1.755e9))
    'Its GPU runs at 1,005 MHz, the others at 1,755 MHz.'
    >>> hardware_sentence(HardwareDifference(measures.GPU_HOT, 0.9, 0.0))
    'Its GPU is throttled by heat 90 % of the time; the others never.'
    """
    own_value, others = (_value_text(difference.measure, value) for value in (difference.own, difference.others))
    sentence = _SENTENCES[difference.measure].format(own=own_value, others=others)
    about_it, is_throttled, _ = sentence.partition("; ")
    return f"{about_it}; the others never." if is_throttled and difference.others < _NEVER else sentence


def _value_text(measure: measures.Measure, value: float) -> str:
    if measure.unit == "Hz":
        return f"{value / 1e6:,.0f} MHz"
    return format_size(value) if measure.unit == "By" else percent(whole(value))
