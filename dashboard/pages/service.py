"""One service: where the time of its requests goes, what the tail adds, since when, and which requests show it."""

from __future__ import annotations

import math

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import OVERHEAD, label
from ..components import (
    Node,
    card,
    delta,
    duration_tile,
    empty,
    link,
    ratio_of,
    spark,
    tile,
    tiles,
)
from ..costs import MILLION, a_request
from ..figures.budget import left_parts
from ..figures.percentile import PERCENTILES, coarse, nearest, place
from ..format import (
    UNKNOWN,
    count,
    duration,
    enough,
    interval,
    money,
    needed,
    percent,
    percentile,
    rank,
    span,
    whole,
)
from ..view import service_path
from .advice import top_advice
from .agent_note import agent_cost
from .fleet import Measures, breakdown, measure, stalls
from .inspector import inspector
from .page import Context, Page, panel
from .rows import are_ranked, traces_table
from .scope_filter import whose
from .service_charts import grid_frame, percentile_card
from .service_frame import service_page
from .service_times import heat_card, hidden_in, over_time_card
from .slo_status_text import burn_note
from .suspect_note import suspect_note

_EXEMPLARS, _ADVICE = 6, 3
# How many kept requests are looked through for those around a pinned percentile.
_LOOKED_THROUGH = 400
# So many steps of the percentile axis away on both sides: a fifth of a nine.
_NEAR = 8
# From this share on, what nobody claimed is worth a word: time between stages is not instrumented. [ratio]
_MUCH_OVERHEAD = 0.15
# Below it nobody calls a request slow. [ratio]
_SLOW_RANK = 0.9


def render(context: Context) -> Page:
    """Return the page of one service."""
    return service_page(context, "", lambda: _body(context))


def _body(context: Context) -> list[Node]:
    measures = measure(context.source, context.selection)
    advice = panel("What would help", lambda: top_advice(context, _ADVICE, "c4") or html.Span(), "c4")
    alone = isinstance(advice, html.Span)
    charts = [
        panel("Where the time goes, by percentile", lambda: percentile_card(context), "c8"),
        panel("What the tail adds", lambda: _inspector(context), "c4"),
        panel("Breakdown over time", lambda: over_time_card(context), "c6"),
        panel("Every request", lambda: heat_card(context), "c6"),
        panel("Slow exemplars", lambda: _exemplars(context, "c12" if alone else "c8"), "c8"),
        None if alone else advice,
    ]
    return [
        _tiles(context, measures),
        _unclaimed(context, measures),
        html.Div(charts, className="grid"),
        suspect_note(context),
        agent_cost(context),
    ]


def _tiles(context: Context, now: Measures) -> Component:
    before = measure(context.source, context.previous)
    courses = context.source.ask(
        context.source.read.quantiles_over_time, context.selection, (0.5, 0.99), context.axis.step
    )
    rate = now.requests / context.seconds
    old_rate = before.requests / context.previous_seconds if context.previous_seconds else None
    return tiles(
        [
            tile(
                "Requests",
                count(rate),
                "/s",
                _against(context, ratio_of(rate, old_rate), now.requests, worse_up=False),
                spark(context.rates(courses)),
            ),
            _latency_tile(context, 0.5, now, ratio_of(now.p50, before.p50), courses),
            _latency_tile(context, 0.99, now, ratio_of(now.p99, before.p99), courses),
            tile("Errors", percent(now.error_ratio, 2), "", _errors_note(context, now, before)),
            _budget_tile(context),
            _cost_tile(context, now, before) or _waiting_tile(now),
        ]
    )


def _latency_tile(
    context: Context, quantile: float, now: Measures, ratio: float | None, courses: pd.DataFrame
) -> Component:
    """Return a percentile as a tile: the number of the chart, or what it lies between where the chart draws that."""
    name = percentile(quantile)
    course = _course(courses, name)
    if not enough(now.requests, quantile):
        return tile(name, UNKNOWN, "", f"{_requests(now.requests)}, needs {whole(needed(quantile))}", None)
    row = breakdown(context.source, context.selection).iloc[PERCENTILES.index(quantile) :][:1]
    below = _against(context, ratio)
    if not coarse(row)[0]:
        return duration_tile(name, float(row["value_seconds"].iloc[0]), below, course)
    value = interval(float(row["low_seconds"].iloc[0]), float(row["high_seconds"].iloc[0]))
    return tile(name, value, "", below or "the source has fixed buckets", None)


def _errors_note(context: Context, now: Measures, before: Measures) -> Node:
    told = f"{count(now.errors)} of {count(now.requests)}"
    moved = ratio_of(now.error_ratio, before.error_ratio)
    return html.Span(_against(context, moved), title=told) if moved is not None else told


def _against(context: Context, ratio: float | None, requests: int | None = None, *, worse_up: bool = True) -> Node:
    """Compare with the window before; say how many there were where there is none."""
    if ratio is None:
        return _requests(requests) if requests is not None else None
    return delta(ratio, worse_up=worse_up, after=context.view.compared_words)


def _requests(n: int) -> str:
    return f"{count(n)} request{'s' * (n != 1)}"


def _cost_tile(context: Context, now: Measures, before: Measures) -> Component | None:
    """Return what a million requests cost; None without a price, or where only a part of what it pays for is shown."""
    costs, view = context.source.costs, context.view
    per_hour = costs.per_hour(context.service or "", view.text("env")) if costs else None
    if costs is None or per_hour is None or view.part:
        return None
    each = a_request(per_hour, context.seconds, now.requests)
    if each is None:
        return None
    moved = ratio_of(each, a_request(per_hour, context.previous_seconds, before.requests))
    below = _against(context, moved) or f"{money(per_hour, costs.currency)} an hour"
    return tile("Cost per 1 M", money(each * MILLION, costs.currency), "", below)


def _waiting_tile(now: Measures) -> Component | None:
    waiting = now.waiting_share
    return (
        tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
        if waiting is not None
        else None
    )


def _unclaimed(context: Context, now: Measures) -> Component | None:
    """Say that much of the time is nobody's, where it is."""
    total = sum(now.median_stages.values())
    share = now.median_stages.get(OVERHEAD, 0.0) / total if total else 0.0
    if share <= _MUCH_OVERHEAD or not enough(now.requests, 0.5):
        return None
    where = link("What fits →", href=_advice(context), className="link")
    text = " of the median: time between stages is not instrumented. "
    return html.Div([html.Span([html.B(f"Overhead is {percent(share)}"), text, where])], className="quiet")


def _budget_tile(context: Context) -> Component | None:
    found = context.slo
    if found is None or found.budget_left is None:
        return None
    other = whose(found.slo, context.selection)
    below: list[Node] = [html.Span(other, className="muted"), " · "] if other else []
    below += burn_note(found, context.view)
    promise = f"{found.slo.name}: {found.slo.in_words()}"
    return tile("Error budget", *left_parts(found.budget_left), html.Span(below, title=promise))


def _course(frame: pd.DataFrame, column: str) -> Component | None:
    return spark([float(each) for each in frame[column]]) if len(frame) else None


def _inspector(context: Context) -> Component:
    frame, view = grid_frame(context), context.view
    if not len(frame) or not (frame["percentile"] == 0.5).any():  # noqa: PLR2004 - the median
        return card("What the tail adds", empty("Too few requests", "p50 needs 20."), size="c4")
    return inspector(
        frame,
        view.percentile,
        dominants=context.source.ask(context.source.read.dominants, context.selection, PERCENTILES),
        stalls=stalls(context.source, context.selection),
        hidden=hidden_in(context),
        advice=_advice(context),
        show_all=view.here(hide=None),
    )


def _exemplars(context: Context, size: str) -> Component:
    source, view = context.source, context.view
    pinned = view.percentile if view.text("p") else None
    if pinned is None:
        frame = slow_of_each_cause(source.ask(source.read.one_per_cause, context.selection, _EXEMPLARS))
    else:
        frame = around(_kept_near(context, pinned), pinned)
    more = link("All traces →", href=view.link("/traces", svc=context.service, **view.part), className="link")
    title = "Slow exemplars" if pinned is None else f"Exemplars around {percentile(pinned)}"
    if not len(frame):
        return card(
            title,
            empty("No request of this window was kept", "Agents keep the slowest, errors and a uniform share."),
            size=size,
        )
    least = f", {rank(float(frame['rank'].min()))} and up" if are_ranked(frame) else ""
    slow = f"one per cause{least}"
    sub = slow if pinned is None else "nearest in rank"
    retention = source.read.retention
    # In the page of a run they are kept as long as all else.
    lasting = f", for {span(retention.traces)}" if retention.traces < retention.hours else ""
    rule = f"Kept: {frame.attrs['rule']}{lasting}."
    return card(title, traces_table(frame, view, title), sub=sub, tools=more, flush=True, foot=rule, size=size)


def slow_of_each_cause(kept: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest of each cause, of those causes that slow requests have; the slowest of all where none is slow."""
    first = kept.drop_duplicates("dominant")
    slow = first[~(first["rank"] < _SLOW_RANK)]
    return slow if len(slow) else first.head(1)


def _advice(context: Context) -> str:
    return context.view.link(service_path(context.service or "", "advice"), **context.view.part)


def _kept_near(context: Context, quantile: float) -> pd.DataFrame:
    """Return the kept requests whose latency is about that of *quantile*."""
    grid = breakdown(context.source, context.selection)
    at = nearest(grid["percentile"], quantile)
    low, high = (grid["value_seconds"].iloc[min(max(at + side * _NEAR, 0), len(grid) - 1)] for side in (-1, 1))
    between = (float(low), float(high) if at + _NEAR < len(grid) else math.inf)
    return context.source.ask(
        context.source.read.exemplars, context.selection, limit=_LOOKED_THROUGH, between_seconds=between
    )


def around(kept: pd.DataFrame, quantile: float, limit: int = _EXEMPLARS) -> pd.DataFrame:
    """Return those of *kept* (see `read.exemplars`) whose rank is nearest to *quantile*, slowest first."""
    chosen = kept.dropna(subset="rank")
    away = [abs(place(min(float(each), 0.999999), even=False) - place(quantile, even=False)) for each in chosen["rank"]]
    near = chosen.assign(away=away).nsmallest(limit, "away").sort_values("rank", ascending=False)
    return near.drop(columns="away")


def tail_sentence(measures: Measures) -> str:
    """Say which stage takes most of p99.

    >>> tail_sentence(Measures(10, 0, 0.1, None, {}, {}))
    ''
    """
    if not measures.tail_stages:
        return ""
    stage = max(measures.tail_stages, key=lambda key: measures.tail_stages[key])
    share = measures.tail_stages[stage] / sum(measures.tail_stages.values())
    return f"{label(stage)} is {percent(share)} of p99 ({duration(measures.p99)})"
