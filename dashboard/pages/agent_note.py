"""What it costs to be recorded; and, where agents record less to keep within their budget, what is missing and since when.

A number that is missing for that reason must not look like nothing: every page of a service says so.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ...core.histogram import Histogram
from ...core.names import AGENT_BACKGROUND, AGENT_COST, AGENT_LEVELS
from ...core.stages import UNTIMED, label
from ...store import Selection
from ..format import count, duration, percent
from .page import Context
from .slo_status_text import moment

_ALL, *_LESS = AGENT_LEVELS
_MISSING = {
    "no_traces": "none of them is kept as a trace",
    "no_facts": "none of them is kept as a trace, and their tokens, batch sizes and failed calls are not counted",
    "requests_only": f"their stages are not recorded and show as {label(UNTIMED)}, and none of them is kept as a trace",
}


def agent_cost(context: Context) -> Component | None:
    """Return what being recorded costs a request, in a line; None where no agent has said."""
    costs = _told(context, AGENT_COST)
    counted = [costs[level] for level in costs if level != AGENT_LEVELS[-1]]
    requests = sum(each.count for each in counted)
    if not requests:
        return None
    whole = context.source.ask(context.source.read.latency, _whoever(context))
    spent = sum(each.sum for each in counted) / requests
    share = f" ({percent(spent * whole.count / whole.sum, 2)} of it)" if whole.sum else ""
    behind = sum(each.sum for each in _told(context, AGENT_BACKGROUND).values()) / requests
    text = f"Being recorded costs a request {duration(spent)}{share}, and the agent's own threads {duration(behind)} for each."
    return html.P(text, className="sub")


def agent_note(context: Context) -> Component | None:
    """Say what is missing of the window since agents were over their budget; None where nothing is."""
    costs = _told(context, AGENT_COST)
    lines = [_line(context, level, costs) for level in _LESS if level in costs]
    if not lines:
        return None
    full = costs.get(_ALL)
    why = f" With all recorded, a request costs {duration(_mean(full))}." if full else ""
    head = html.Span([html.B("Agents keep to their budget:"), f" less than usual is recorded.{why}"])
    return html.Div([head, *lines], className="quiet stack")


def _line(context: Context, level: str, costs: dict[str, Histogram]) -> Component:
    found = costs[level]
    if level == AGENT_LEVELS[-1]:
        return html.Span(
            f"{_when(context, level)}, at least one process recorded nothing: its requests are in no number here."
        )
    requests = sum(each.count for name, each in costs.items() if name != AGENT_LEVELS[-1])
    return html.Span(
        f"{_when(context, level)}: of {count(found.count)} of {count(requests)} requests, {_MISSING[level]}. "
        f"They cost {duration(_mean(found))} each."
    )


def _when(context: Context, level: str) -> str:
    """Return from when until when there are requests of *level*, in words."""
    view, step = context.view, context.axis.step
    course = context.source.ask(context.source.read.streams_over_time, _whoever(context), AGENT_COST, level, (), step)
    begun, ended = course["at"].min().to_pydatetime(), course["at"].max().to_pydatetime() + step
    if ended + max(step, timedelta(seconds=30)) >= min(view.end, context.source.now()):
        return f"Since {moment(begun, view)}"
    first, last = moment(begun, view), moment(ended, view)
    return f"From {first} to {last}" if first != last else f"At {first}"


def _told(context: Context, metric: str) -> dict[str, Histogram]:
    return context.source.ask(context.source.read.streams, _whoever(context), metric)


def _whoever(context: Context) -> Selection:
    """Return what is asked for whatever its model: of requests without stages it is seldom known."""
    return replace(context.selection, model=None)


def _mean(histogram: Histogram) -> float:
    return histogram.sum / histogram.count
