"""Charts of the service page that controls may redraw: percentiles, breakdown over time, and heatmap."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import COLUMNS, percentile_grid, stages_at
from ...core.histogram import has_enough_samples, samples_needed
from ...core.stages import label, position
from ...store import Indicator
from ..figures.elements import Figure, outline, stages_of
from ..figures.heatmap import heat_figure
from ..figures.over_time import OVER_TIME_COLUMNS, over_time_figure
from ..figures.percentile import MARKS, Objective, has_wide_bucket, percentile_figure
from ..figures.time_axis import Alert, TimeAxis, has_too_few
from ..ui.components import Node, attributes, card, chart, empty, spoken_stages, steady, switch
from ..ui.format import count, duration, interval, percentile, several, span, whole
from .measures import breakdown
from .page import Context, records
from .scope_filter import matches_selection
from .shared_attributes import selected_requests

# Label and quantile by value in the address; the first is the default.
OVER_TIME = {"99": ("p99", 0.99), "95": ("p95", 0.95), "50": ("p50", 0.5), "mean": ("Mean", None)}
_HEAT_QUANTILES = (0.5, 0.99)
_EXEMPLARS = 24
# Kinds of events that may explain a change.
_MARKED = ("deploy", "config")
_MAX_MARKS = 4
_MAX_MARK_CHARS = 24
_RULE = (
    "Each column shows the mean stage times of the requests at that percentile. The stages add up to its latency.",
    "A column is not the sum of the p99 of each stage.",
    "Point at a percentile to show it in the table; click to select it.",
    "A percentile is drawn when at least ten requests are above it. If slow requests have several causes, the table shows the share of each cause.",
    "Click a stage in the table to highlight it in all charts; Alt+click hides it.",
)


def grid_frame(context: Context) -> pd.DataFrame:
    frame = breakdown(context.source, context.selection)
    percentiles = percentile_grid(int(frame.attrs.get("requests", 0)))
    return frame[frame["percentile"].isin(percentiles)].reset_index(drop=True)


def percentile_card(context: Context, size: str = "c8 fill") -> Component:
    view, frame = context.view, grid_frame(context)
    title = "Where the time goes, by percentile"
    if not len(frame):
        return card(title, _too_few(context), size=size)
    y, x = view.choice("y", "time", "share"), view.choice("x", "tail", "even")
    even = switch("Percentile axis", "x", {"tail": "Tail", "even": "Even"}, x, chart_name="percentile", default="tail")
    tools = html.Span(
        [
            switch("Scale", "y", {"time": "Time", "share": "Share"}, y, chart_name="percentile", default="time"),
            even,
            help_button("How to read this chart", _RULE),
        ],
        className="pick",
    )
    figure = percentile_chart(context)
    drawn = chart("percentile", figure, _percentile_words(context, frame), 318, frame=percentile_table(frame))
    return card(title, drawn, sub=population(frame), tools=tools, size=size)


def percentile_chart(context: Context) -> Figure:
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
    names = {
        "percentile": "percentile",
        "n": "requests there",
        "value_seconds": "latency (s)",
        "low_seconds": "at least (s)",
        "high_seconds": "at most (s)",
    }
    stages = {stage: f"{label(stage)} (s)" for stage in stages_of(frame, COLUMNS)}
    table = frame[[*names, *stages]].rename(columns=names | stages)
    return table.assign(percentile=[percentile(float(quantile)) for quantile in frame["percentile"]])


def population(frame: pd.DataFrame) -> str:
    requests = int(frame.attrs.get("requests", 0))
    missing = next((mark for mark in MARKS if not has_enough_samples(requests, mark)), None)
    if missing is not None:
        shown = [mark for mark in MARKS if has_enough_samples(requests, mark)]
        highest = f"{percentile(shown[-1])} shown, " if shown else ""
        return f"{whole(requests)} requests: {highest}{percentile(missing)} needs {whole(samples_needed(missing))}"
    how = "intervals: fixed buckets" if has_wide_bucket(frame).any() else "exact, not sampled"
    return f"{count(requests)} requests · {how}"


def help_button(name: str, paragraphs: tuple[str, ...]) -> Component:
    content: list[Node] = [html.P(paragraph) for paragraph in paragraphs]
    mark = html.Summary("?", className="btn icon", **attributes({"aria-label": name}))
    return html.Details([mark, html.Div(content, className="pop says")], className="menu")


def _percentile_words(context: Context, frame: pd.DataFrame) -> str:
    last = frame.iloc[-1]
    low, high = float(last["low_seconds"]), float(last["high_seconds"])
    wide = bool(has_wide_bucket(frame)[-1])
    latency = f"between {interval(low, high)}" if wide else duration(float(last["value_seconds"]))
    objective = _objective(context)
    objective_text = ""
    if objective is not None and objective.inside is not None:
        objective_text = f" Objective of {duration(objective.threshold_seconds)}: {objective.shares}."
    return (
        f"Stages of the latency by percentile, up to {percentile(float(last['percentile']))}, "
        f"{latency}: {spoken_stages(stages_at(frame, len(frame) - 1))}.{objective_text}"
    )


def _objective(context: Context) -> Objective | None:
    status, threshold = context.covering_slo, context.threshold_seconds
    if status is None or threshold is None:
        return None
    # The curve has every request; for the objective, fast failures are bad, too.
    inside = context.source.cached(context.source.read.latency, context.selection).fraction_below(threshold)
    counted = context.source.cached(context.source.read.tally, context.selection, Indicator("latency", threshold))
    if inside is None or not counted.total:
        return Objective(threshold, status.slo.objective)
    good, low, high = (1 - bad / counted.total for bad in (counted.bad, counted.bad_high, counted.bad_low))
    return Objective(threshold, status.slo.objective, inside.value, good, (low, high))


def _too_few(context: Context) -> Component:
    requests = context.source.cached(context.source.read.latency, context.selection).count
    text = f"{requests} so far in this window. A percentile needs ten requests above it: p50 needs 20 requests."
    return empty("Too few requests for a percentile", text)


def hidden_in(context: Context) -> frozenset[str]:
    return frozenset(stage for stage in (context.view.text("hide") or "").split(",") if stage)


def over_time_card(context: Context, size: str = "c6") -> Component:
    figure = over_time_chart(context)
    frame, chosen = _over_time(context), context.view.choice("t", *OVER_TIME)
    # The options are in the order from the mean to the tail; the tail is the default.
    options = {value: OVER_TIME[value][0] for value in reversed(OVER_TIME)}
    tools = switch("Percentile", "t", options, chosen, chart_name="over", default="99")
    spoken = _over_time_words(frame, figure["subtitle"], context.axis)
    drawn = chart("over", figure, spoken, 290, frame=over_time_table(frame), stages=_every_stage(context))
    notes = [
        _step_note(frame, *quantile_and_column, span(context.axis_of(frame).step))
        for quantile_and_column in OVER_TIME.values()
    ]
    return card("Breakdown over time", drawn, sub=steady(html.Span(figure["subtitle"]), notes), tools=tools, size=size)


def over_time_chart(context: Context) -> Figure:
    frame = _over_time(context)
    axis = context.axis_of(frame)
    name, quantile = OVER_TIME[context.view.choice("t", *OVER_TIME)]
    figure = over_time_figure(
        frame,
        axis,
        quantile=quantile,
        versions=context.releases,
        reported=_marked_events(context),
        alerts=_alerts(context),
        threshold_seconds=context.threshold_seconds,
        hidden=hidden_in(context),
    )
    figure["subtitle"] = _step_note(frame, name, quantile, span(axis.step))
    return figure


def over_time_table(frame: pd.DataFrame) -> pd.DataFrame:
    names = {"at": "time", "n": "requests", "value_seconds": "latency (s)"}
    stages = {stage: f"{label(stage)} (s)" for stage in stages_of(frame, OVER_TIME_COLUMNS)}
    return frame[[*names, *stages]].rename(columns=names | stages)


def heat_card(context: Context) -> Component:
    by = context.view.choice("by", "stage", "count")
    figure, cells = heat_chart(context), _cells(context)
    drag = context.view.choice("d", "zoom", "select")
    tools = html.Span(
        [
            switch("Drag", "d", {"zoom": "Zoom", "select": "Select"}, drag, chart_name="heat", default="zoom"),
            switch("Colour", "by", {"stage": "Stage", "count": "Count"}, by, chart_name="heat", default="stage"),
        ],
        className="pick",
    )
    drawn = chart("heat", figure, _heat_words(cells), 290, frame=heat_table(cells), stages=_every_stage(context))
    return card("Every request", drawn, sub=figure["subtitle"], tools=tools, size="c6")


def heat_chart(context: Context) -> Figure:
    source, selection = context.source, context.selection
    cells = _cells(context)
    quantiles = source.cached(source.read.quantiles_over_time, selection, _HEAT_QUANTILES, context.axis.step)
    by_stage = context.view.choice("by", "stage", "count") == "stage"
    retained = records(source.cached(source.read.exemplars, selection, limit=_EXEMPLARS))
    figure = heat_figure(
        cells,
        quantiles,
        context.axis_of(cells),
        by_stage=by_stage,
        exemplars=[{**record, "at": pd.Timestamp(record["at"]).to_pydatetime(warn=False)} for record in retained],
        versions=context.releases,
        reported=_marked_events(context),
        threshold_seconds=context.threshold_seconds,
        hidden=hidden_in(context),
    )
    figure["subtitle"] = "colour = largest stage" if by_stage else "depth = number of requests"
    if context.view.choice("d", "zoom", "select") == "select":
        figure["layout"]["dragmode"] = "select"
    selected = selected_requests(context.view)
    if selected is not None:
        x0, x1 = (context.axis.place(datetime.fromtimestamp(moment, UTC)) for moment in (selected.start, selected.end))
        figure["layout"]["shapes"].append(outline(x0, x1, selected.low, selected.high))
    return figure


def heat_table(cells: pd.DataFrame) -> pd.DataFrame:
    names = {
        "at": "time",
        "low_seconds": "from (s)",
        "high_seconds": "to (s)",
        "n": "requests",
        "dominant": "mostly",
        "share": "of them (ratio)",
        "second": "then",
        "second_share": "of them too (ratio)",
    }
    table = cells[list(names)].rename(columns=names)
    return table.assign(
        **{name: [label(str(stage)) if stage else "" for stage in table[name]] for name in ("mostly", "then")}
    )


def _every_stage(context: Context) -> tuple[str, ...]:
    histograms = context.source.cached(context.source.read.stage_latency, context.selection)
    return tuple(sorted(histograms, key=position))


def _over_time(context: Context) -> pd.DataFrame:
    quantile = OVER_TIME[context.view.choice("t", *OVER_TIME)][1]
    return context.source.cached(
        context.source.read.breakdown_over_time, context.selection, quantile, context.axis.step
    )


def _cells(context: Context) -> pd.DataFrame:
    return context.source.cached(context.source.read.heat, context.selection, context.axis.step)


def _alerts(context: Context) -> list[Alert]:
    incidents = [
        incident
        for incident in context.source.incidents_between(context.axis.start, context.axis.end)
        if incident.service == context.service and matches_selection(incident.where, context.selection)
    ]
    shown = sorted(
        (incident for incident in incidents if incident.opened_at < context.axis.end),
        key=lambda incident: incident.opened_at,
    )
    return [
        Alert(incident.opened_at, incident.resolved_at, incident.name, incident.severity == "page")
        for incident in shown
    ]


def _marked_events(context: Context) -> dict[datetime, str]:
    axis, source = context.axis, context.source
    frame = source.cached(source.read.events, axis.start, axis.end, service=context.service)
    marked = frame[frame["kind"].isin(_MARKED)]
    # Deployments have priority if not all events fit.
    shown = marked.iloc[(marked["kind"] != "deploy").argsort(kind="stable")].head(_MAX_MARKS)
    return {
        pd.Timestamp(at).to_pydatetime(warn=False): (str(key) or str(text))[:_MAX_MARK_CHARS]
        for at, key, text in zip(shown["at"], shown["key"], shown["text"], strict=True)
    }


def _step_note(frame: pd.DataFrame, name: str, quantile: float | None, step: str) -> str:
    text = f"{name.lower() if quantile is None else name} of each {step}"
    unsure = has_too_few(frame, quantile)
    if quantile is None or not unsure.any():
        return text
    if unsure.all():
        few = several(round(float(frame["n"].median())), "request")
        return f"{text}. Imprecise: {few} per step, {name} needs {whole(samples_needed(quantile))}"
    return f"{text} · grey: fewer than {whole(samples_needed(quantile))} requests per step"


def _over_time_words(frame: pd.DataFrame, subtitle: str, axis: TimeAxis) -> str:
    if not len(frame):
        return f"Stages of the latency over time, {subtitle}; no data."
    worst = frame.iloc[int(frame["value_seconds"].to_numpy().argmax())]
    last = float(frame["value_seconds"].iloc[-1])
    return (
        f"Stages of the latency over time, {subtitle}: latest {duration(last)}, "
        f"maximum {duration(float(worst['value_seconds']))} at {axis.text(worst['at'])}."
    )


def _heat_words(cells: pd.DataFrame) -> str:
    dominated = cells.groupby("dominant")["n"].sum().sort_values(ascending=False)
    stages = ", ".join(f"{label(str(stage))} {count(float(n))}" for stage, n in dominated.items())
    return (
        f"Every request by time and latency, in the colour of its largest stage. Requests by largest stage: {stages}."
    )


# Charts that a control may redraw.
CHARTS: dict[str, Callable[[Context], Figure]] = {
    "percentile": percentile_chart,
    "over": over_time_chart,
    "heat": heat_chart,
}
