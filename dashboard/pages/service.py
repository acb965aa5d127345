"""One service: where the time of its requests goes, what the tail adds, since when, and which requests show it."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import (
    Node,
    attributes,
    card,
    delta,
    duration_tile,
    empty,
    link,
    pill,
    ratio_of,
    spark,
    status,
    tile,
    tiles,
)
from ..figures.budget import left_parts
from ..format import count, duration, percent, rank, span, times
from ..view import service_path, slo_path
from .inspector import inspector
from .measures import Measures, measure
from .page import Context, Page, nothing, panel
from .rows import traces_table
from .service_charts import grid_frame, heat_card, over_time_card, percentile_card

_EXEMPLARS = 6
_BUCKET = timedelta(seconds=10)


def render(context: Context) -> Page:
    """Return the page of one service."""
    service = context.service or ""
    trail: list[tuple[str, str | None]] = [("Services", context.view.link("/")), (service, None)]
    place = service_path(service)
    if context.versions.empty:
        gone = nothing(
            f"No service called {service}",
            "Nothing of that name was received, or it is older than what is kept.",
            actions=[link("All services", href=context.view.link("/"), className="btn pri")],
        )
        return Page(f"{service} · Stagelens", trail, [gone], place)
    measures = measure(context.source, context.selection)
    body: list[Node] = [_head(context), _tabs(context)]
    body += _without_data(context) if not measures.requests else _with_data(context, measures)
    return Page(f"{service} · Stagelens", trail, body, place)


def _with_data(context: Context, measures: Measures) -> list[Node]:
    frame = grid_frame(context)
    charts = [
        panel("Where the time goes, by percentile", lambda: percentile_card(context), "c8"),
        panel("What the tail adds", lambda: _inspector(context, frame), "c4"),
        panel("Breakdown over time", lambda: over_time_card(context), "c6"),
        panel("Every request", lambda: heat_card(context), "c6"),
        panel("Slow exemplars", lambda: _exemplars(context), "c12"),
    ]
    return [_tiles(context, measures), html.Div(charts, className="grid")]


def _head(context: Context) -> Component:
    service = context.service or ""
    found = context.source.slo_of(service)
    rows = context.source.services(context.view.start, context.view.end)
    row = rows[rows["service"] == service]
    newest = str(context.versions["version"].iloc[-1])
    chips: list[Node] = [html.Span(service)]
    if found is not None:
        chips.append(link(status(found.state), href=context.view.link(slo_path(found.slo.name))))
    model = str(row["model"].iloc[0]) if len(row) else ""
    chips += [pill(text, "out") for text in (model, context.view.text("v") or newest) if text]
    return html.Div(
        [
            html.Div([html.H1(chips), html.P(context.young, className="sub") if context.young else None]),
            html.Span(className="grow"),
            *_actions(context),
        ],
        className="phead",
    )


def _actions(context: Context) -> list[Node]:
    actions: list[Node] = []
    if context.view.text("v"):
        actions.append(link("All versions", href=context.view.here(v=None), className="btn"))
    if len(context.versions) > 1:
        href = context.view.link("/compare", svc=context.service)
        actions.append(link([html.I(className="ic ic-compare"), "Compare versions"], href=href, className="btn"))
    return actions


def _tabs(context: Context) -> Component:
    service, view = context.service, context.view
    slo = context.source.slo_of(service or "")
    items = [
        link(
            "Breakdown",
            href=view.link(service_path(service or "")),
            className="on",
            **attributes({"aria-current": "page"}),
        ),
        link("Compare", href=view.link("/compare", svc=service)),
        link("SLO", href=view.link(slo_path(slo.slo.name))) if slo else None,
        link("Traces", href=view.link("/traces", svc=service)),
    ]
    return html.Nav(
        [item for item in items if item is not None], className="tabs", **attributes({"aria-label": "Of this service"})
    )


def _tiles(context: Context, now: Measures) -> Component:
    before = measure(context.source, context.previous)
    courses = context.source.ask(
        context.source.read.quantiles_over_time, context.selection, (0.5, 0.99), context.axis.step
    )
    rate = now.requests / context.seconds
    old_rate = before.requests / (context.view.end - context.view.start).total_seconds()
    waiting = now.waiting_share
    return tiles(
        [
            tile(
                "Requests",
                count(rate),
                "/s",
                _against(ratio_of(rate, old_rate), now.requests, worse_up=False),
                spark(context.rates(courses)),
            ),
            duration_tile("p50", now.p50, _against(ratio_of(now.p50, before.p50)), _course(courses, "p50")),
            duration_tile("p99", now.p99, _p99_note(now, before), _course(courses, "p99")),
            tile("Errors", percent(now.error_ratio, 2), "", f"{count(now.errors)} of {count(now.requests)}"),
            tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
            if waiting is not None
            else None,
            _budget_tile(context),
        ]
    )


def _p99_note(now: Measures, before: Measures) -> Node:
    if now.p99 is None:
        return f"{now.requests} requests, needs 1000"
    return _against(ratio_of(now.p99, before.p99))


def _against(ratio: float | None, requests: int | None = None, *, worse_up: bool = True) -> Node:
    """Compare with the window before; say how many there were where there is none."""
    if ratio is None:
        return f"{count(requests)} requests" if requests is not None else None
    return delta(ratio, worse_up=worse_up, after="vs prev.")


def _budget_tile(context: Context) -> Component | None:
    found = context.source.slo_of(context.service or "")
    if found is None or found.budget_left is None:
        return None
    burning = found.burn_1h > 1
    below = [html.Span(f"burning {times(found.burn_1h)}", className="bad" if burning else "muted"), " · 1 h"]
    return tile("Error budget", *left_parts(found.budget_left), below)


def _course(frame: pd.DataFrame, column: str) -> Component | None:
    return spark([float(each) for each in frame[column]]) if len(frame) else None


def _inspector(context: Context, frame: pd.DataFrame) -> Component:
    if not len(frame) or not (frame["percentile"] == 0.5).any():  # noqa: PLR2004 - the median
        return card("What the tail adds", empty("Too few requests", "p50 needs 20."), size="c4")
    return inspector(frame, context.view.percentile)


def _exemplars(context: Context) -> Component:
    frame = context.source.ask(context.source.read.one_per_cause, context.selection, _EXEMPLARS)
    more = link("All traces →", href=context.view.link("/traces", svc=context.service), className="link")
    if not len(frame):
        return card(
            "Slow exemplars",
            empty("No request of this window was kept", "Agents keep the slowest, errors and a uniform share."),
        )
    least = float(frame["rank"].min())
    sub = f"one per cause, {rank(least)} and up" if least == least else "one per cause"  # noqa: PLR0124 - NaN is not itself
    return card("Slow exemplars", traces_table(frame, context.view, "Slow exemplars"), sub=sub, tools=more, flush=True)


def _without_data(context: Context) -> list[Node]:
    """Say when the service was last seen and lead there."""
    view = context.view
    last = context.versions["last_seen"].max().to_pydatetime() + _BUCKET
    length = min(view.end - view.start, timedelta(days=1))
    age = context.source.now() - last
    text = (
        f"The last request came {span(age)} ago, at {last.astimezone(view.zone):%-d %b %H:%M:%S}."
        if age > timedelta()
        else "All there is came later than this window."
    )
    first = context.versions["first_seen"].min().to_pydatetime().astimezone(view.zone)
    return [
        nothing(
            "No request in this window",
            text,
            f"What is kept starts on {first:%-d %b %H:%M}.",
            actions=[
                link("Go to last data", href=view.with_window(last - length, last), className="btn pri"),
                link("Last 24 h", href=view.here(from_="now-24h", to=None), className="btn"),
            ],
        )
    ]


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
