"""The charts of the service page, each from the address alone, so that a control redraws one without the others."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import card, chart, empty, spoken_stages, switch
from ..figures.heat import heat_figure
from ..figures.over_time import over_time_figure
from ..figures.parts import Figure
from ..figures.percentile import MARKS, Objective, percentile_figure, percentile_grid
from ..format import MIN_REQUESTS_ABOVE, count, duration, enough, needed, percentile, span, whole
from .measures import breakdown, stages_at
from .page import Context
from .rows import records

# Value in the address to label and quantile; the first is the default.
OVER_TIME = {"99": ("p99", 0.99), "95": ("p95", 0.95), "50": ("p50", 0.5), "mean": ("Mean", None)}
_HEAT_QUANTILES = (0.5, 0.99)
_EXEMPLARS = 24
_AROUND = "The stages of a percentile are the mean of the requests around it; they add up to its latency."


def grid_frame(context: Context) -> pd.DataFrame:
    """Return the breakdown over the percentiles that the requests of the window can tell."""
    frame = breakdown(context.source, context.selection)
    told = percentile_grid(int(frame.attrs.get("requests", 0)))
    return frame[frame["percentile"].isin(told)].reset_index(drop=True)


def percentile_card(context: Context, size: str = "c8") -> Component:
    """Return where the time goes, by percentile."""
    view, frame = context.view, grid_frame(context)
    title = "Where the time goes, by percentile"
    if not len(frame):
        return card(title, _too_few(context), size=size)
    p99 = frame.iloc[-1]
    spoken = (
        f"Stages of the latency by percentile, up to {percentile(float(p99['percentile']))}, "
        f"{duration(float(p99['value_seconds']))}: {spoken_stages(stages_at(frame, len(frame) - 1))}."
    )
    y, x = view.choice("y", "time", "share"), view.choice("x", "tail", "even")
    tools = html.Span(
        [
            switch("Scale", "y", {"time": "Time", "share": "Share"}, y, chart_name="percentile", default="time"),
            html.Span(
                switch(
                    "Percentile axis", "x", {"tail": "Tail", "even": "Even"}, x, chart_name="percentile", default="tail"
                ),
                className="hide",
            ),
        ],
        className="pick",
    )
    return card(
        title,
        chart("percentile", percentile_chart(context), spoken, 318),
        sub=html.Span(population(frame), title=_AROUND),
        tools=tools,
        size=size,
    )


def percentile_chart(context: Context) -> Figure:
    """Return the figure of `percentile_card`."""
    view, frame = context.view, grid_frame(context)
    return percentile_figure(
        frame,
        share=view.choice("y", "time", "share") == "share",
        even=view.choice("x", "tail", "even") == "even",
        objective=_objective(context),
    )


def population(frame: pd.DataFrame) -> str:
    """Say how many requests a breakdown speaks of, and which percentile they are too few for."""
    requests = int(frame.attrs.get("requests", 0))
    missing = next((each for each in MARKS if not enough(requests, each)), None)
    if missing is None:
        return f"{count(requests)} requests · exact, not sampled"
    shown = [each for each in MARKS if enough(requests, each)]
    told = f"{percentile(shown[-1])} shown, " if shown else ""
    return f"{whole(requests)} requests: {told}{percentile(missing)} needs {whole(needed(missing))}"


def over_time_card(context: Context, size: str = "c6") -> Component:
    """Return the breakdown over time."""
    figure = over_time_chart(context)
    chosen = context.view.choice("t", *OVER_TIME)
    spoken = f"Stages of the latency over time, {figure['subtitle']}."
    # On screen from the mean to the tail; the tail is the default.
    options = {value: OVER_TIME[value][0] for value in reversed(OVER_TIME)}
    tools = switch("Percentile", "t", options, chosen, chart_name="over", default="99")
    return card(
        "Breakdown over time", chart("over", figure, spoken, 290), sub=figure["subtitle"], tools=tools, size=size
    )


def over_time_chart(context: Context) -> Figure:
    """Return the figure of `over_time_card`; its subtitle says which requests it is about."""
    source, step = context.source, context.axis.step
    name, quantile = OVER_TIME[context.view.choice("t", *OVER_TIME)]
    frame = source.ask(source.read.breakdown_over_time, context.selection, quantile, step)
    axis = context.axis_of(frame)
    figure = over_time_figure(frame, axis, versions=context.releases, threshold_seconds=context.threshold_seconds)
    figure["subtitle"] = _step_note(frame, name, quantile, span(axis.step))
    return figure


def heat_card(context: Context, size: str = "c6") -> Component:
    """Return every request over time."""
    by = context.view.choice("by", "stage", "count")
    figure = heat_chart(context)
    tools = switch("Tint", "by", {"stage": "Stage", "count": "Count"}, by, chart_name="heat", default="stage")
    stages = [label(each) for each in figure.pop("stages")]
    spoken = f"Every request by time and latency, tinted by the stage that dominates: {', '.join(stages)}."
    return card("Every request", chart("heat", figure, spoken, 290), sub=figure["subtitle"], tools=tools, size=size)


def heat_chart(context: Context) -> Figure:
    """Return the figure of `heat_card`."""
    source, selection, step = context.source, context.selection, context.axis.step
    cells = source.ask(source.read.heat, selection, step)
    axis = context.axis_of(cells)
    quantiles = source.ask(source.read.quantiles_over_time, selection, _HEAT_QUANTILES, step)
    by_stage = context.view.choice("by", "stage", "count") == "stage"
    kept = records(source.ask(source.read.exemplars, selection, limit=_EXEMPLARS))
    exemplars = [{**each, "at": pd.Timestamp(each["at"]).to_pydatetime(warn=False)} for each in kept]
    figure = heat_figure(
        cells,
        quantiles,
        axis,
        by_stage=by_stage,
        exemplars=exemplars,
        versions=context.releases,
        threshold_seconds=context.threshold_seconds,
    )
    figure["subtitle"] = "tint = stage that dominates" if by_stage else "depth = how many"
    figure["stages"] = sorted({str(each) for each in cells["dominant"]})
    return figure


# What a control of the page may redraw.
CHARTS: dict[str, Callable[[Context], Figure]] = {
    "percentile": percentile_chart,
    "over": over_time_chart,
    "heat": heat_chart,
}


def _objective(context: Context) -> Objective | None:
    status = context.source.slo_of(context.service or "")
    if status is None or status.slo.threshold_seconds is None:
        return None
    latency = context.source.ask(context.source.read.latency, context.selection)
    inside = latency.fraction_below(status.slo.threshold_seconds)
    return Objective(status.slo.threshold_seconds, status.slo.objective, inside.value if inside else None)


def _step_note(frame: pd.DataFrame, name: str, quantile: float | None, step: str) -> str:
    text = f"{name.lower() if quantile is None else name} of each {step}"
    usual = float(frame["n"].median()) if len(frame) else 0.0
    if quantile is not None and usual * (1 - quantile) < MIN_REQUESTS_ABOVE:
        text += f" · rough, n ≈ {count(usual)}"
    return text


def _too_few(context: Context) -> Component:
    requests = context.source.ask(context.source.read.latency, context.selection).count
    text = f"{requests} so far in this window. A percentile is shown when ten requests stand above it: p50 needs 20."
    return empty("Too few requests for a percentile", text)
