"""The percentile chart of the service page, and which charts of it a control may redraw: each from the address alone."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import Node, attributes, card, chart, empty, spoken_stages, switch
from ..figures.parts import Figure, stages_of
from ..figures.percentile import COLUMNS, MARKS, coarse, percentile_figure, percentile_grid
from ..figures.promise import Objective
from ..format import count, duration, enough, interval, needed, percent, percentile, whole
from .fleet import breakdown, stages_at
from .page import Context
from .service_times import heat_chart, hidden_in, over_time_chart

_RULE = (
    "Each column is the average stage time of the requests at that percentile. It adds up to that percentile's latency.",
    "It is not the sum of each stage's own p99.",
    "Point at a percentile and the table beside it tells that one; a click keeps it.",
    "A percentile is drawn when at least ten requests stand above it. Where two causes take turns, the table says how often each.",
    "A click on a stage in the table highlights it in all charts, Alt and a click leaves it out.",
)


def grid_frame(context: Context) -> pd.DataFrame:
    """Return the breakdown over the percentiles that the requests of the window can tell."""
    frame = breakdown(context.source, context.selection)
    told = percentile_grid(int(frame.attrs.get("requests", 0)))
    return frame[frame["percentile"].isin(told)].reset_index(drop=True)


def percentile_card(context: Context, size: str = "c8 fill") -> Component:
    """Return where the time goes, by percentile."""
    view, frame = context.view, grid_frame(context)
    title = "Where the time goes, by percentile"
    if not len(frame):
        return card(title, _too_few(context), size=size)
    y, x = view.choice("y", "time", "share"), view.choice("x", "tail", "even")
    even = switch("Percentile axis", "x", {"tail": "Tail", "even": "Even"}, x, chart_name="percentile", default="tail")
    tools = html.Span(
        [
            switch("Scale", "y", {"time": "Time", "share": "Share"}, y, chart_name="percentile", default="time"),
            html.Span(even, className="hide"),
            help_button("How to read this chart", _RULE),
        ],
        className="pick",
    )
    figure = percentile_chart(context)
    drawn = chart("percentile", figure, _spoken(context, frame), 318, frame=percentile_table(frame))
    return card(title, drawn, sub=population(frame), tools=tools, size=size)


def percentile_chart(context: Context) -> Figure:
    """Return the figure of `percentile_card`."""
    view = context.view
    return percentile_figure(
        grid_frame(context),
        share=view.choice("y", "time", "share") == "share",
        even=view.choice("x", "tail", "even") == "even",
        objective=_objective(context),
        pinned=view.percentile if view.text("p") else None,
        hidden=hidden_in(context),
    )


def percentile_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the percentile chart under names for people."""
    names = {
        "percentile": "percentile",
        "n": "requests there",
        "value_seconds": "latency (s)",
        "low_seconds": "at least (s)",
        "high_seconds": "at most (s)",
    }
    stages = {each: f"{label(each)} (s)" for each in stages_of(frame, COLUMNS)}
    made = frame[[*names, *stages]].rename(columns=names | stages)
    return made.assign(percentile=[percentile(float(each)) for each in frame["percentile"]])


def population(frame: pd.DataFrame) -> str:
    """Say how many requests a breakdown speaks of, which percentile they are too few for, and how exact it is."""
    requests = int(frame.attrs.get("requests", 0))
    missing = next((each for each in MARKS if not enough(requests, each)), None)
    if missing is not None:
        shown = [each for each in MARKS if enough(requests, each)]
        told = f"{percentile(shown[-1])} shown, " if shown else ""
        return f"{whole(requests)} requests: {told}{percentile(missing)} needs {whole(needed(missing))}"
    how = "intervals: fixed buckets" if coarse(frame).any() else "exact, not sampled"
    return f"{count(requests)} requests · {how}"


def help_button(name: str, paragraphs: tuple[str, ...]) -> Component:
    """Return a question mark that opens *paragraphs*."""
    said: list[Node] = [html.P(each) for each in paragraphs]
    mark = html.Summary("?", className="btn icon", **attributes({"aria-label": name}))
    return html.Details([mark, html.Div(said, className="pop says")], className="menu")


# What a control of the page may redraw.
CHARTS: dict[str, Callable[[Context], Figure]] = {
    "percentile": percentile_chart,
    "over": over_time_chart,
    "heat": heat_chart,
}


def _spoken(context: Context, frame: pd.DataFrame) -> str:
    last = frame.iloc[-1]
    low, high = float(last["low_seconds"]), float(last["high_seconds"])
    wide = bool(coarse(frame)[-1])
    latency = f"between {interval(low, high)}" if wide else duration(float(last["value_seconds"]))
    objective = _objective(context)
    promise = ""
    if objective is not None and objective.inside is not None:
        promise = f" {percent(objective.inside, 2)} of requests are inside {duration(objective.threshold_seconds)}."
    return (
        f"Stages of the latency by percentile, up to {percentile(float(last['percentile']))}, "
        f"{latency}: {spoken_stages(stages_at(frame, len(frame) - 1))}.{promise}"
    )


def _objective(context: Context) -> Objective | None:
    status, threshold = context.promise, context.threshold_seconds
    if status is None or threshold is None:
        return None
    # As the objective counts them: what failed at once is not inside.
    counted = context.source.ask(context.source.read.slo_counts, context.selection, threshold)
    value, between = None, None
    if counted.total:
        value, low, high = (1 - bad / counted.total for bad in (counted.bad, counted.bad_high, counted.bad_low))
        between = (low, high)
    return Objective(threshold, status.slo.objective, value, between)


def _too_few(context: Context) -> Component:
    requests = context.source.ask(context.source.read.latency, context.selection).count
    text = f"{requests} so far in this window. A percentile is shown when ten requests stand above it: p50 needs 20."
    return empty("Too few requests for a percentile", text)
