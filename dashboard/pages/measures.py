"""Request measures of one service and of the fleet: counts, p50, p99 and their stages.

`measure` reads one service; `measures_in_window` and `urgent_first` read all services with one query, which has the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Literal

import pandas as pd

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.reader import Incident
from ...analysis.breakdown import AT_P50, AT_P99, NO_REQUESTS, PERCENTILES, Measures, measures_of, stages_at
from ...analysis.comparison import QuantileComparison, compare_quantile
from ...analysis.slo_status import URGENCY, SloState
from ...core.histogram import Histogram
from ...questions.breakdown import Breakdown
from ...questions.breakdown import breakdown as question
from ...store import Reader, Selection
from ..source import Source
from .page import Context
from .regressions import Release, regressions
from .service_status import ServiceStatus, incidents_of, service_status, slos_of

# Stages of token generation; speech models decode too, but have no prefill.
_TOKEN_STAGES = {"prefill", "decode"}
KINDS = {"llm": "LLM", "model": "Model", "other": "Other"}


def breakdown(source: Source, selection: Selection) -> pd.DataFrame:
    return breakdown_with_shares(source, selection).table


def breakdown_with_shares(source: Source, selection: Selection) -> Breakdown:
    return source.cached(question, source.read, selection)


def stalls(source: Source, selection: Selection) -> pd.DataFrame:
    return source.cached(source.read.stalls, selection, PERCENTILES)


def measure(source: Source, selection: Selection | None) -> Measures:
    if selection is None:
        return NO_REQUESTS
    frame = breakdown(source, selection)
    requests = int(frame.attrs.get("requests", 0)) if len(frame) else 0
    if not requests:
        return NO_REQUESTS
    failed = source.cached(source.read.latency, replace(selection, status="error")).count
    p50, p99 = (float(frame["value_seconds"].iloc[index]) for index in (AT_P50, AT_P99))
    return measures_of(requests, failed, (p50, p99), (stages_at(frame, AT_P50), stages_at(frame, AT_P99)))


def generates_tokens(measures: Measures) -> bool:
    return _stages(measures) >= _TOKEN_STAGES


def _stages(measures: Measures) -> set[str]:
    return {*measures.median_stages, *measures.tail_stages}


@dataclass(frozen=True, slots=True)
class ServiceMeasures:
    service: str
    model: str
    first_seen: datetime
    last_seen: datetime
    measures: Measures

    @property
    def kind(self) -> str:
        if generates_tokens(self.measures):
            return "llm"
        return "model" if self.model or "forward" in _stages(self.measures) else "other"


@dataclass(frozen=True)
class ServiceRow:
    fleet: Context
    context: Context
    seen: ServiceMeasures
    slos: tuple[SloStatus, ...]
    incidents: tuple[Incident, ...]
    release: Release | None

    @property
    def slo(self) -> SloStatus | None:
        return min(self.slos, key=lambda status: status.urgency, default=None)

    @cached_property
    def status(self) -> ServiceStatus:
        return service_status(self.context.view, self.slos, self.incidents, self.release)

    @property
    def service(self) -> str:
        return self.seen.service

    @property
    def environment(self) -> str:
        return self.context.view.text("env") or ""

    @property
    def now(self) -> Measures:
        return self.seen.measures

    @property
    def requests_before(self) -> int:
        before = self.fleet.once(_latency_before).get(self.service)
        return before.count if before else 0

    @property
    def seconds(self) -> float:
        first, last = self.fleet.axis.counted
        return max((last - max(first, self.fleet.once(_history_starts).get(self.service, first))).total_seconds(), 1.0)

    @property
    def state(self) -> SloState | Literal[""]:
        return self.status.state

    @cached_property
    def p99_compared(self) -> QuantileComparison | None:
        before, now = (self.fleet.once(latency_of).get(self.service) for latency_of in (_latency_before, _latency_now))
        return _compared(before, now, 0.99) if before and now else None

    @property
    def urgency(self) -> tuple[int, float, str]:
        return URGENCY[self.state or "healthy"], -((self.slo and self.slo.burn_1h) or 0.0), self.service


def measures_in_window(context: Context) -> dict[str, ServiceMeasures]:
    view = context.view
    return context.source.cached(fleet_measures, context.source.read, view.start, view.end, view.text("env"))


def compared_latency(context: Context, quantile: float) -> QuantileComparison | None:
    if context.previous is None:
        return None
    before, now = (
        context.source.cached(context.source.read.latency, selection)
        for selection in (context.previous, context.selection)
    )
    return _compared(before, now, quantile)


def _compared(before: Histogram, now: Histogram, quantile: float) -> QuantileComparison | None:
    comparison = compare_quantile(before, now, quantile)
    return None if comparison.kind == "not_enough" else comparison


def _latency_before(context: Context) -> dict[str, Histogram]:
    return {} if context.previous is None else _fleet_latency(context, context.previous)


def _latency_now(context: Context) -> dict[str, Histogram]:
    view = context.view
    return _fleet_latency(context, Selection(view.start, view.end, environment=view.text("env")))


def _fleet_latency(context: Context, window: Selection) -> dict[str, Histogram]:
    source = context.source
    return source.cached(source.read.fleet_latency, window.start, window.end, environment=window.environment)


def _history_starts(context: Context) -> dict[str, datetime]:
    release_rows = context.source.cached(context.source.read.releases, context.view.text("env"))
    return {str(name): at.to_pydatetime() for name, at in release_rows.groupby("service")["first_seen"].min().items()}


def urgent_first(context: Context) -> list[ServiceRow]:
    return context.once(_urgent_first)


def _urgent_first(context: Context) -> list[ServiceRow]:
    slower = {release.service: release for release in context.once(regressions) if release.is_clear}
    return sorted(_rows_of(context, slower), key=lambda row: row.urgency)


def _rows_of(context: Context, releases: Mapping[str, Release | None]) -> list[ServiceRow]:
    return [
        ServiceRow(
            fleet=context,
            context=context.of(name),
            seen=measures,
            slos=slos_of(context, name),
            incidents=incidents_of(context, name),
            release=releases.get(name),
        )
        for name, measures in measures_in_window(context).items()
    ]


def by_environment(context: Context) -> list[ServiceRow]:
    """Return the services of the window once for each environment, those with a burning budget first.

    A service without any environment is one row. The release of a service in several environments is left out.
    """
    return context.once(_by_environment)


def _by_environment(context: Context) -> list[ServiceRow]:
    every, view, source = urgent_first(context), context.view, context.source
    parts = [
        Context(replace(view, query={**view.query, "env": name}), source)
        for name in source.cached(source.read.environments)
    ]
    number = Counter(name for part in parts for name in measures_in_window(part))
    releases = {row.service: row.release for row in every if number[row.service] == 1}
    rows = [row for part in parts for row in _rows_of(part, releases)]
    return sorted([*rows, *(row for row in every if not number[row.service])], key=lambda row: row.urgency)


def fleet_measures(read: Reader, start: datetime, end: datetime, environment: str | None) -> dict[str, ServiceMeasures]:
    services = read.services(start, end, environment=environment).to_dict("records")
    frame = read.fleet(start, end, (0.5, 0.99), environment=environment)
    rows_of = {str(name): rows for name, rows in frame.groupby(level=0)}
    return {
        name: _service_measures({str(key): value for key, value in row.items()}, rows_of[name])
        for row in services
        if (name := str(row["service"])) in rows_of
    }


def _service_measures(row: dict[str, object], at: pd.DataFrame) -> ServiceMeasures:
    requests, errors = int(str(row["requests"])), int(str(row["errors"]))
    p50, p99 = at["value_seconds"].tolist()
    measures = measures_of(requests, errors, (p50, p99), (stages_at(at, 0), stages_at(at, 1)))
    first, last = (pd.Timestamp(str(row[name])).to_pydatetime() for name in ("first_seen", "last_seen"))
    return ServiceMeasures(str(row["service"]), str(row["model"]), first, last, measures)
