"""The fleet over time: the rate of each service, where all of them spend their time, and what happened meanwhile."""

from __future__ import annotations

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import Node, card, chart, empty, legend, link, pill
from ..figures.fleet import busy_seconds, fleet_figure
from ..format import count, percent, span
from .events import Happening, happenings
from .page import Context

_LEGEND = 4
_MOST = 8


def rates_by_service(context: Context) -> dict[str, list[float]]:
    """Return the requests a second of each service in every step of the window, 0 where it has none.

    Without the newest step where the window ends now: agents have not sent all of it yet.
    """
    view, axis = context.view, context.axis
    frame = context.source.ask(
        context.source.read.fleet_over_time, view.start, view.end, axis.step, environment=view.text("env")
    )
    if frame.empty:
        return {}
    steps = frame.pivot_table(index="service", columns="at", values="n", aggfunc="sum", fill_value=0)
    axis = context.axis_of(frame)
    rates = steps.to_numpy(dtype=float) / axis.covered_seconds(steps.columns)
    whole = rates[:, :-1] if context.unfinished(steps.columns, axis) else rates
    return {str(name): values for name, values in zip(steps.index, whole.tolist(), strict=True)}


def course_card(context: Context, size: str) -> Component:
    """Return in which stages the requests of all services are, over time."""
    title, source = "Where the fleet spends its time", context.source
    frame = source.ask(source.read.breakdown_over_time, context.selection, None, context.axis.step)
    axis = context.axis_of(frame)
    busy = busy_seconds(frame.iloc[:-1] if context.unfinished(frame["at"], axis) else frame, axis)
    if not len(busy):
        return card(title, empty("Too early to tell", "The first whole step is not over yet."), size=size)
    spent = {str(stage): float(busy[stage].mean()) for stage in busy.columns.drop("at")}
    heavy = sorted(spent, key=lambda stage: -spent[stage])[:_LEGEND]
    total = sum(spent.values())
    said = ", ".join(f"{label(stage)} {percent(spent[stage] / total)}" for stage in heavy[:3]) if total else "none"
    spoken = f"Time of all services by stage: {count(total)} seconds a second on average; {said}."
    drawn = chart("fleet", fleet_figure(busy, axis), spoken, 230, frame=_told(busy))
    sub = html.Span("busy seconds per second", title=f"{_MEANS} Each {span(axis.step)}.")
    return card(title, drawn, sub=sub, tools=html.Span(legend(heavy), className="hide"), size=size)


_MEANS = "All services together: how many requests are in a stage at a time, on average."


def _told(busy: pd.DataFrame) -> pd.DataFrame:
    return busy.rename(columns={"at": "time (UTC)"} | {name: f"{label(str(name))} (s/s)" for name in busy.columns[1:]})


def happened_card(context: Context, size: str) -> Component:
    """Return releases, incidents and what pipelines told, newest first."""
    # What was done with advice changes no service.
    found = [each for each in happenings(context) if each.kind != "advice"]
    more = link("All events", href=context.view.link("/events"), className="link")
    if not found:
        quiet = empty("Nothing happened", "No release, no incident and no event in this window.")
        return card("Deploys and events", quiet, tools=more, size=size)
    lines = [_line(context, each) for each in found[:_MOST]]
    left = f"and {len(found) - _MOST} more" if len(found) > _MOST else None
    return card("Deploys and events", html.Ul(lines, className="log"), tools=more, foot=left, size=size)


def released(context: Context) -> pd.DataFrame:
    """Return the versions first seen in the window: service, version, first_seen; the first of a service is no release."""
    view = context.view
    known = context.source.ask(context.source.read.releases, view.text("env"))
    later = known[known.duplicated("service")]
    return later[(later["first_seen"] >= view.start) & (later["first_seen"] < view.end)]


def _line(context: Context, told: Happening) -> Component:
    zone = context.view.zone
    at = told.at.astimezone(zone)
    clock = f"{at:%H:%M}" if at.date() == context.view.end.astimezone(zone).date() else f"{at:%-d %b}"
    what: list[Node] = [html.B(told.service, className="b"), " ", told.title] if told.service else [told.title]
    return html.Li(
        [
            html.Time(clock, title=f"{at:%-d %b %Y %H:%M:%S}"),
            link(what, href=told.href, className="t", title=told.text or told.title),
            pill(told.badge, told.shape),
        ]
    )
