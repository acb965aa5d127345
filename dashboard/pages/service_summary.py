"""Start of the service page: what changed, for which requests and where, each as a sentence with its link.

`analysis.situation` decides what is stated. The numbers come from queries that the cards below use, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.delivery.message_text import failures_text
from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.reader import Incident
from ...analysis.attributes import SharedCauses
from ...analysis.breakdown import PERCENTILES, stages_at
from ...analysis.comparison import (
    QuantileComparison,
    StageGrowth,
    compare_failures,
    compare_quantile,
    dominant_growth,
    highest_quantile,
    stage_growth,
)
from ...analysis.profile import functions, main_function
from ...analysis.situation import Kind, Situation
from ...core.histogram import Histogram, has_enough_samples, samples_needed, value_at
from ...core.names import FIRST_TOKEN
from ...core.stages import label
from ...questions.changed import explain_regression, explain_violations
from ...store import Indicator
from ..ui.components import Node, delta, duration_tile, link
from ..ui.format import count, duration, percent, percentile, portion, span, times, whole
from ..view import incident_page, service_path, slo_path
from .comparison import window_name
from .comparison_text import TRAFFIC_NOISE, short_name
from .measures import breakdown, measure
from .page import Context, clock_or_date
from .regressions import Release, regressions
from .replicas import slow_replica_of, slow_sentence
from .service_frame import records_nothing
from .service_status import incidents_of, slos_of
from .shared_attributes import causes_of, requests_path
from .slo_spent import blamed_cause
from .tokens_charts import first_token_frame, first_tokens_by_prompt, token_measures

_COMPARED = {"prev": "the previous {}", "1d": "the same time a day before", "7d": "the same time a week before"}
_MEDIAN, _TAIL = 0.5, 0.99
# From this ratio on, a change is written as a factor.
_MANYFOLD = 10.0
# Kinds of situations for which the requests that are hit, and the stage that grew, are stated.
_SLOWER: tuple[Kind, ...] = ("release", "latency", "burning")


class Sentence(NamedTuple):
    """One sentence, with the address and the name of its evidence; "" without one."""

    text: str
    href: str = ""
    then: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    sentences: tuple[Sentence, ...]
    states_cause: bool = False
    states_replica: bool = False


def summary_line(context: Context) -> Component:
    first, *others = context.once(summarize).sentences
    inside = [html.Div(_parts(first), className="big"), *(html.Div(_parts(other)) for other in others)]
    return html.Div(html.Div(inside, className="say"), className="verdict")


def _parts(sentence: Sentence) -> list[Node]:
    if not sentence.href:
        return [sentence.text]
    return [f"{sentence.text} ", link(f"{sentence.then} →", href=sentence.href, className="link")]


def summarize(context: Context) -> Summary:
    release, latency = _release(context), _compared(context)
    first_token = _at_highest(*_first_token_times(context))
    now, before = measure(context.source, context.selection), measure(context.source, context.previous)
    failures = compare_failures(before.errors, before.requests, now.errors, now.requests) if before.requests else None
    incidents, slow = incidents_of(context, context.service or ""), slow_replica_of(context)
    burning = [status for status in slos_of(context, context.service or "") if status.state == "burning"]
    kind = Situation(
        is_silent=context.silence is not None,
        failure_ratio=now.error_ratio or 0.0,
        failures=failures,
        latency=latency,
        first_token=first_token,
        release=release.comparison.verdict if release else None,
        is_burning=bool(burning or incidents),
        has_slow_replica=slow is not None,
        are_failures_cause=_are_failures_cause(context, latency, incidents, burning),
    ).kind
    if kind == "no_data":
        return Summary(_silence(context))
    if kind == "failures":
        return Summary(_failures(context, latency))
    if kind == "first_token" and first_token is not None:
        return Summary(_first_token(context, first_token))
    replica = slow and Sentence(slow_sentence(context, slow), _page(context, "replicas"), "All replicas")
    if kind not in _SLOWER:
        first = _change(context, latency) if kind == "faster" and latency else _unchanged(context, latency)
        if replica is None or kind != "replica":
            return Summary((first,))
        whole_service = first._replace(text=first.text.replace("Nothing stands out: ", "Of all replicas, "))
        return Summary((replica, whole_service) if first.href else (replica,), states_replica=True)
    causes = causes_of(context, context.selection, _TAIL)
    if kind == "release" and release is not None:
        what = _release_sentence(release)
        where = _where(context, release.comparison.growth, release.comparison.quantile)
    elif kind == "latency" and latency is not None:
        what = _change(context, latency, _traffic(now.requests / context.seconds, before.requests, context))
        where = _where(context, _growth(context, latency.quantile), latency.quantile)
    else:
        what, where = _burning(context, incidents)
    affected = replica or _cause(context, causes)
    return Summary((what, affected, where), replica is None and bool(causes.causes), replica is not None)


def _page(context: Context, tab: str = "", **more: str | None) -> str:
    view = context.view
    return view.link(service_path(context.service or "", tab), **(view.scope | more))


def _compared_words(context: Context) -> str:
    view = context.view
    return _COMPARED[view.choice("vs", *_COMPARED)].format(span(view.end - view.start))


def _release(context: Context) -> Release | None:
    if context.view.scope:
        # With a filter, the versions are not compared as a whole.
        return None
    return next(
        (release for release in context.once(regressions) if release.service == context.service and release.is_clear),
        None,
    )


def _compared(context: Context) -> QuantileComparison | None:
    if context.previous is None:
        return None
    read = context.source.read
    before, now = (
        context.source.cached(read.latency, selection) for selection in (context.previous, context.selection)
    )
    return _at_highest(before, now)


def _at_highest(before: Histogram, now: Histogram) -> QuantileComparison | None:
    fewer = min(before.count, now.count)
    return compare_quantile(before, now, highest_quantile(fewer) or _MEDIAN) if fewer else None


def first_token_tile(context: Context) -> Component | None:
    value = value_at(_first_token_times(context)[1], _TAIL)
    if value is None:
        return None
    comparison = _at_highest(*_first_token_times(context))
    moved = None
    if comparison is not None and comparison.quantile == _TAIL and comparison.ratio is not None:
        moved = delta(comparison.growth, certain=comparison.has_changed, after=context.view.compared_words)
    return duration_tile(link("TTFT p99", href=_page(context, "tokens"), className="link"), value, moved)


def _first_token_times(context: Context) -> tuple[Histogram, Histogram]:
    cached, read = context.source.cached, context.source.read
    now = cached(read.streams, context.selection, FIRST_TOKEN)
    definition = max(now, key=lambda name: (now[name].count, name), default="")
    before = cached(read.streams, context.previous, FIRST_TOKEN) if now and context.previous else {}
    return before.get(definition, Histogram()), now.get(definition, Histogram())


def _windows(context: Context, quantile: float) -> str:
    now, before = context.selection, context.previous or context.selection
    sides = {"a": window_name(before.start, before.end), "b": window_name(now.start, now.end)}
    return context.view.link("/compare", svc=context.service, **sides, **context.view.scope, p=f"{quantile * 100:g}")


def _traffic(rate: float, before: int, context: Context) -> str:
    earlier = before / context.previous_seconds if context.previous_seconds else 0.0
    ratio = rate / earlier if earlier else 1.0
    return f" Traffic {_moved(ratio)}." if abs(ratio - 1) >= TRAFFIC_NOISE else ""


def _moved(ratio: float) -> str:
    if ratio >= _MANYFOLD:
        return f"rose {ratio:.0f}-fold"
    return f"rose {percent(ratio - 1)}" if ratio > 1 else f"fell {percent(1 - ratio)}"


def _change(context: Context, comparison: QuantileComparison, more: str = "") -> Sentence:
    name, moved = percentile(comparison.quantile), _moved(comparison.ratio or 1.0)
    text = f"{name} {moved} against {_compared_words(context)}: {duration(comparison.a_value)} → {duration(comparison.b_value)}."
    return Sentence(text + more, _windows(context, comparison.quantile), "Compare the windows")


def _unchanged(context: Context, latency: QuantileComparison | None) -> Sentence:
    now, compared = measure(context.source, context.selection), _compared_words(context)
    if latency is None or latency.kind == "not_enough":
        basis = f"{compared} has no requests" if context.previous else "no other window is compared"
        if latency is not None:
            fewer = whole(min(latency.a_n, latency.b_n))
            basis = f"a comparison needs {samples_needed(_MEDIAN)} requests, the smaller side has {fewer}"
        return Sentence(f"Nothing stands out among {count(now.requests)} requests; {basis}.")
    name, quantile = percentile(latency.quantile), latency.quantile
    values = f"{name} is {duration(latency.b_value)}, {duration(latency.a_value)} in {compared}"
    text = f"Nothing stands out: {values} ({count(latency.b_n)} and {count(latency.a_n)} requests)."
    return Sentence(text, _windows(context, quantile), "Compare the windows")


def _silence(context: Context) -> tuple[Sentence, ...]:
    silence, view = context.silence or timedelta(), context.view
    last, length = context.source.now() - silence, min(view.end - view.start, timedelta(days=1))
    what = f"No data since {clock_or_date(last, view)}, for {span(silence)}."
    down, stopped = (
        "The process, its agent or the collector may be down.",
        "An agent reached its overhead budget and recorded nothing.",
    )
    why = Sentence(stopped if records_nothing(context) else down, _page(context, "replicas"), "Replicas")
    return Sentence(what, view.with_window(last - length, last), "Go to last data"), why


def _release_sentence(release: Release) -> Sentence:
    comparison, pair = release.comparison.verdict, release.comparison.pair
    older, newer = short_name(pair.a_name), short_name(pair.b_name)
    moved = _moved(comparison.ratio or 1.0)
    values = f"{duration(comparison.a_value)} in {older}, {duration(comparison.b_value)} in {newer}"
    since = clock_or_date(release.since, release.context.view)
    text = f"{percentile(release.comparison.quantile)} {moved} with version {newer} since {since}: {values}."
    return Sentence(text, release.href, "Compare the versions")


def _are_failures_cause(
    context: Context, latency: QuantileComparison | None, incidents: Sequence[Incident], burning: Sequence[SloStatus]
) -> bool:
    read, cached, view = context.source.read, context.source.cached, context.view
    causes = {incident.name: incident.cause_kind for incident in incidents}
    for slo in (status.slo for status in burning if status.slo.name not in causes):
        causes[slo.name] = cached(explain_violations, read, slo.select(view.start, view.end), slo.indicator).kind
    if latency is not None and latency.kind == "regression":
        causes[""] = cached(explain_regression, read, context.selection, latency.a_value or 0.0, ()).kind
    return "failures" in causes.values()


def _burning(context: Context, incidents: Sequence[Incident]) -> tuple[Sentence, Sentence]:
    """Return the open incident, or the objective that burns, although nothing became slower in the window, and its cause."""
    view = context.view
    incident = next((incident for incident in incidents if incident.impact), None)
    if incident is not None:
        text = f"Incident since {clock_or_date(incident.since, view)}, {incident.name}: {incident.impact}"
        what = Sentence(text, view.link(incident_page(incident.id)), "Open the incident")
        blamed, cause = incident.blamed, incident.cause
    else:
        status = min(slos_of(context, context.service or ""), key=lambda slo_status: slo_status.urgency)
        text = f"{status.slo.name} burns its error budget at {times(status.burn_1h)} the sustainable rate, over 1 h."
        what = Sentence(text, view.link(slo_path(status.slo.name)), "See what spends the budget")
        blamed, cause = blamed_cause(context, status.slo)
    cause = cause or "no single stage explains it"
    tab, then = ("advice", "Ways to fix this") if blamed else ("traces", "Slowest requests")
    return what, Sentence(f"{cause[0].upper()}{cause[1:]}.", _page(context, tab), then)


def _cause(context: Context, causes: SharedCauses) -> Sentence:
    if causes.causes:
        href = requests_path(context, causes.causes[0])
        return Sentence(causes.sentence, href, "Its requests" if href else "")
    if not causes.compared:
        return Sentence("Which requests are slow is unknown: no attribute of them is recorded.")
    return Sentence(f"No version, replica or attribute stands out; compared: {', '.join(causes.compared)}.")


def _growth(context: Context, quantile: float) -> tuple[StageGrowth, ...]:
    sides = (context.previous or context.selection, context.selection)
    row = PERCENTILES.index(quantile)
    before, now = (stages_at(breakdown(context.source, selection), row) for selection in sides)
    return stage_growth(before, now)


def _where(context: Context, growth: Sequence[StageGrowth], quantile: float) -> Sentence:
    blamed, name = dominant_growth(growth), percentile(quantile)
    if blamed is None:
        return Sentence("No single stage explains it.", _page(context, "traces"), "Slowest requests")
    stage = label(blamed.stage)
    text = f"{stage} grew {duration(blamed.seconds, sign=True)} at {name}, {portion(blamed.share)} of the growth"
    bands = context.source.cached(context.source.read.profile, context.selection, (_MEDIAN, quantile))
    seconds = bands[1].stages.get(blamed.stage, 0.0) if bands else 0.0
    function_times = (
        [function for function in functions(bands[1], bands[0]) if function.stage == blamed.stage] if bands else []
    )
    if cause := main_function(function_times, seconds * 1e3):
        text += f"; {cause[0].title} has {percent(min(cause[1], 1.0))} of {stage}"
    return Sentence(f"{text}.", _page(context, "advice"), "Ways to fix this")


def _failures(context: Context, latency: QuantileComparison | None) -> tuple[Sentence, ...]:
    source = context.source
    now, before = measure(source, context.selection), measure(source, context.previous)
    was = f", {percent(before.error_ratio, 2)} in {_compared_words(context)}" if before.requests else ""
    share = f"{percent(now.error_ratio, 2)} of requests fail: {count(now.errors)} of {count(now.requests)}{was}."
    what = Sentence(share, _page(context, "traces", err="1"), "Failed requests")
    lost = source.cached(explain_violations, source.read, context.selection, Indicator("availability")).failures
    text = (failures_text(lost) if lost else "") or "no error type, route or called service has most of the failures"
    route = {"r": lost.route.value} if lost and lost.route else {}
    affected = Sentence(f"{text[0].upper()}{text[1:]}.", _page(context, "traces", err="1", **route), "Its requests")
    if latency is not None and latency.kind == "regression":
        return what, affected, _change(context, latency)
    return what, affected


def _first_token(context: Context, comparison: QuantileComparison) -> tuple[Sentence, ...]:
    change = _change(context, comparison)
    what = Sentence(f"TTFT {change.text}", _page(context, "tokens"), "Time to first token")
    measures = token_measures(context.source, context.selection, None)
    medians = {
        band: value_at(histogram, _MEDIAN)
        for band, histogram in first_tokens_by_prompt(context, measures.definition).items()
        if has_enough_samples(histogram.count, _MEDIAN)
    }
    sides = (context.previous, context.selection)
    frames = [first_token_frame(context, measures, selection) for selection in sides]
    before, now = (_row_at(frame, comparison.quantile) for frame in frames)
    where = "No single stage before the first token explains it."
    if blamed := dominant_growth(stage_growth(before, now)):
        grown = f"{label(blamed.stage)} before the first token grew {duration(blamed.seconds, sign=True)}"
        where = f"{grown}, {portion(blamed.share)} of the growth."
    advice = Sentence(where, _page(context, "advice", rank="ttft"), "Ways to fix this")
    if len(medians) < 2:  # noqa: PLR2004 - a difference has two sides
        return what, advice
    (short, low), *_, (long, high) = medians.items()
    affected = f"TTFT p50 is {duration(low)} with {short} prompt tokens and {duration(high)} with {long}."
    return what, Sentence(affected, _page(context, "tokens"), "TTFT by prompt length"), advice


def _row_at(frame: pd.DataFrame, quantile: float) -> dict[str, float]:
    rows = np.flatnonzero(frame["percentile"] == quantile) if len(frame) else np.empty(0, dtype=int)
    return stages_at(frame, int(rows[0])) if len(rows) else {}
