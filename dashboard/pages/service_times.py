"""The two time charts of the service page: the breakdown over time, and every request."""

from __future__ import annotations

from datetime import datetime

import pandas as pd
from dash.development.base_component import Component

from ...core.stages import label
from ..components import card, chart, switch
from ..figures.heat import heat_figure
from ..figures.marks import Alert, rough
from ..figures.over_time import COLUMNS, over_time_figure
from ..figures.parts import Figure, stages_of
from ..format import count, duration, needed, span, whole
from .page import Context
from .rows import records
from .scope_filter import concerns

# Value in the address to label and quantile; the first is the default.
OVER_TIME = {"99": ("p99", 0.99), "95": ("p95", 0.95), "50": ("p50", 0.5), "mean": ("Mean", None)}
_HEAT_QUANTILES = (0.5, 0.99)
_EXEMPLARS = 24
# Events that may explain a change; what people note about advice does not.
_MARKED = ("deploy", "config")
_MAX_MARKS = 4
_MAX_MARK_CHARS = 24


def hidden_in(context: Context) -> frozenset[str]:
    """Return the stages that the address leaves out of the charts."""
    return frozenset(each for each in (context.view.text("hide") or "").split(",") if each)


def over_time_card(context: Context, size: str = "c6") -> Component:
    """Return the breakdown over time."""
    figure = over_time_chart(context)
    frame, chosen = _over_time(context), context.view.choice("t", *OVER_TIME)
    # On screen from the mean to the tail; the tail is the default.
    options = {value: OVER_TIME[value][0] for value in reversed(OVER_TIME)}
    tools = switch("Percentile", "t", options, chosen, chart_name="over", default="99")
    drawn = chart("over", figure, _spoken(frame, figure["subtitle"]), 290, frame=over_time_table(frame))
    return card("Breakdown over time", drawn, sub=figure["subtitle"], tools=tools, size=size)


def over_time_chart(context: Context) -> Figure:
    """Return the figure of `over_time_card`; its subtitle says which requests it is about."""
    frame = _over_time(context)
    axis = context.axis_of(frame)
    name, quantile = OVER_TIME[context.view.choice("t", *OVER_TIME)]
    figure = over_time_figure(
        frame,
        axis,
        quantile=quantile,
        versions=context.releases,
        told=_told(context),
        alerts=_alerts(context),
        threshold_seconds=context.threshold_seconds,
        hidden=hidden_in(context),
    )
    figure["subtitle"] = _step_note(frame, name, quantile, span(axis.step))
    return figure


def over_time_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the breakdown over time under names for people."""
    names = {"at": "time", "n": "requests", "value_seconds": "latency (s)"}
    stages = {each: f"{label(each)} (s)" for each in stages_of(frame, COLUMNS)}
    return frame[[*names, *stages]].rename(columns=names | stages)


def heat_card(context: Context, size: str = "c6") -> Component:
    """Return every request over time."""
    by = context.view.choice("by", "stage", "count")
    figure, cells = heat_chart(context), _cells(context)
    tools = switch("Tint", "by", {"stage": "Stage", "count": "Count"}, by, chart_name="heat", default="stage")
    drawn = chart("heat", figure, _spoken_heat(cells), 290, frame=heat_table(cells))
    return card("Every request", drawn, sub=figure["subtitle"], tools=tools, size=size)


def heat_chart(context: Context) -> Figure:
    """Return the figure of `heat_card`."""
    source, selection = context.source, context.selection
    cells = _cells(context)
    quantiles = source.ask(source.read.quantiles_over_time, selection, _HEAT_QUANTILES, context.axis.step)
    by_stage = context.view.choice("by", "stage", "count") == "stage"
    kept = records(source.ask(source.read.exemplars, selection, limit=_EXEMPLARS))
    figure = heat_figure(
        cells,
        quantiles,
        context.axis_of(cells),
        by_stage=by_stage,
        exemplars=[{**each, "at": pd.Timestamp(each["at"]).to_pydatetime(warn=False)} for each in kept],
        versions=context.releases,
        told=_told(context),
        threshold_seconds=context.threshold_seconds,
        hidden=hidden_in(context),
    )
    figure["subtitle"] = "tint = largest stage" if by_stage else "depth = how many"
    return figure


def heat_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the heatmap under names for people."""
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
    made = cells[list(names)].rename(columns=names)
    return made.assign(
        **{name: [label(str(each)) if each else "" for each in made[name]] for name in ("mostly", "then")}
    )


def _over_time(context: Context) -> pd.DataFrame:
    quantile = OVER_TIME[context.view.choice("t", *OVER_TIME)][1]
    return context.source.ask(context.source.read.breakdown_over_time, context.selection, quantile, context.axis.step)


def _cells(context: Context) -> pd.DataFrame:
    return context.source.ask(context.source.read.heat, context.selection, context.axis.step)


def _alerts(context: Context) -> list[Alert]:
    """Return the incidents about any of what is shown that reach into the shown time, oldest first."""
    own = [
        each
        for each in context.source.incidents()
        if each.service == context.service and concerns(each.where, context.selection)
    ]
    inside = [
        each
        for each in own
        if each.opened_at < context.axis.end and (each.resolved_at or context.axis.end) > context.axis.start
    ]
    return [Alert(each.opened_at, each.resolved_at, each.name, each.severity == "page") for each in reversed(inside)]


def _told(context: Context) -> dict[datetime, str]:
    """Return the deploys and changed settings that somebody wrote down in the shown time, to what they are about."""
    axis, source = context.axis, context.source
    frame = source.ask(source.read.events, axis.start, axis.end, service=context.service)
    marked = frame[frame["kind"].isin(_MARKED)]
    # Where there is no room for all, deploys stay.
    shown = marked.iloc[(marked["kind"] != "deploy").argsort(kind="stable")].head(_MAX_MARKS)
    return {
        pd.Timestamp(at).to_pydatetime(warn=False): (str(key) or str(text))[:_MAX_MARK_CHARS]
        for at, key, text in zip(shown["at"], shown["key"], shown["text"], strict=True)
    }


def _step_note(frame: pd.DataFrame, name: str, quantile: float | None, step: str) -> str:
    text = f"{name.lower() if quantile is None else name} of each {step}"
    unsure = rough(frame, quantile)
    if quantile is None or not unsure.any():
        return text
    if unsure.all():
        return f"{text} · rough: {count(float(frame['n'].median()))} of {whole(needed(quantile))} requests a step"
    return f"{text} · grey: fewer than {whole(needed(quantile))} requests"


def _spoken(frame: pd.DataFrame, subtitle: str) -> str:
    if not len(frame):
        return f"Stages of the latency over time, {subtitle}; no data."
    worst = frame.iloc[int(frame["value_seconds"].to_numpy().argmax())]
    last = float(frame["value_seconds"].iloc[-1])
    return (
        f"Stages of the latency over time, {subtitle}: {duration(last)} at last, "
        f"{duration(float(worst['value_seconds']))} at most, at {pd.Timestamp(worst['at']):%H:%M} UTC."
    )


def _spoken_heat(cells: pd.DataFrame) -> str:
    dominated = cells.groupby("dominant")["n"].sum().sort_values(ascending=False)
    stages = ", ".join(f"{label(str(stage))} {count(float(n))}" for stage, n in dominated.items())
    return f"Every request by time and latency, tinted by the stage that dominates; requests by it: {stages}."
