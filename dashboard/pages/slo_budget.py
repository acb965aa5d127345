"""The error budget of one objective over its window, and how fast it burns."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.burn_rate import FAST, RECENT
from ...alerts.evaluation.measurement import counted_from, tally_over_time
from ...alerts.evaluation.slo_status import SloStatus
from ..components import card, chart, empty, link_tabs
from ..figures.budget import BurnLine, budget_figure, budget_left, burn_figure, burn_rates, left_parts
from ..figures.time_axis import STEPS, TimeAxis, step_for
from ..format import TIMES, axis_duration, span, times
from ..view import View
from .page import Context
from .slo_objectives import runs_out

# The values of `w`, the default first: how much of the budget's window is shown.
WINDOWS = {"30d": timedelta(days=30), "7d": timedelta(days=7), "1d": timedelta(days=1)}
_MAX_MARKERS = 6


def window_links(view: View, found: SloStatus) -> Component:
    """Return the links that show the whole window of the budget, or the last days of it."""
    whole = found.slo.window
    lengths = {value: length for value, length in WINDOWS.items() if length < whole}
    options = {"30d": (span(whole), view.here(w=None))}
    options |= {value: (span(length), view.here(w=value)) for value, length in lengths.items() if value != "30d"}
    chosen = view.choice("w", *WINDOWS)
    return link_tabs("Shown part of the budget", options, chosen if chosen in options else "30d")


def budget_card(context: Context, found: SloStatus) -> Component:
    """Return how the budget was spent, with the pace that just lasts and where the present one leads.

    Args:
        context: Of the service the objective is about.
        found: The objective.
    """
    slo, view = found.slo, context.view
    title = f"{slo.service}: error budget"
    since = counted_from(slo, max(view.end - slo.window, context.first_data or view.end - slo.window), view.end)
    axis, series = _series(context, found, since)
    if not len(series):
        return card(title, _no_requests(found), sub=_what(found))
    # A budget is one of requests, also where their time is what is counted.
    series = series.assign(bad=series["bad"] * (series["requests"].sum() / series["total"].sum()))
    allowed = found.bad + found.bad_left
    before = max(found.bad - float(series["bad"].sum()), 0.0) if axis.start > since else 0.0
    figure = budget_figure(
        series,
        axis,
        allowed_bad=allowed,
        window=slo.window,
        since=since,
        bad_before=before,
        exhausted_in=runs_out(found),
        versions=_seen(context, found, axis),
        told=_told(context, axis),
    )
    spoken = f"Of the error budget of {slo.name}, {' is '.join(left_parts(found.budget_left))}."
    frame = pd.DataFrame(
        {
            "time (UTC)": series["at"],
            "requests": series["requests"],
            "bad requests": series["bad"],
            "budget left (%)": 100 * budget_left(series, allowed, before),
        }
    )
    history = view.end - since
    whole = span(slo.window) if history >= slo.window else f"history of {span(history)}, of {span(slo.window)}"
    shown = whole if axis.start <= since else f"last {span(axis.end - axis.start)} of {whole}"
    drawn = chart("budget", figure, spoken, 300, frame=frame)
    return card(title, drawn, sub=_what(found), tools=html.Span(shown, className="muted"))


def burn_card(context: Context, found: SloStatus) -> Component:
    """Return the burn rate over the page's window, against what the alert rules allow."""
    slo, axis = found.slo, context.axis
    # Five minutes must be whole steps, or their line would count six.
    step = max(each for each in STEPS if each <= axis.step and not FAST % each)
    series = context.source.ask(tally_over_time, context.source.read, slo, axis.start - RECENT, axis.end, step)
    title, sub = "Burn rate", f"{span(RECENT)} (ink) and {span(FAST)} (grey)"
    if not len(series):
        return card(title, empty("No request in this window"), sub=sub)
    figure = burn_figure(
        series,
        replace(axis, step=_step(series, axis)),
        objective=slo.objective,
        lines=_lines(found),
        long=RECENT,
        short=FAST,
        versions=context.releases,
        told=context.events,
    )
    spoken = (
        f"Burn rate of {slo.name}: {times(found.burn_1h)} over the last hour, {times(found.burn_5m)} over five minutes."
    )
    frame = pd.DataFrame(
        {"time (UTC)": series["at"]}
        | {f"burn rate over {span(each)}": burn_rates(series, each, slo.objective) for each in (RECENT, FAST)}
    )
    inside = frame[frame["time (UTC)"] >= axis.start].reset_index(drop=True)
    return card(title, chart("burn", figure, spoken, 220, frame=inside), sub=sub)


def _series(context: Context, found: SloStatus, since: datetime) -> tuple[TimeAxis, pd.DataFrame]:
    """Return the shown part of the budget's window and its good and bad requests."""
    view, slo = context.view, found.slo
    start = max(since, view.end - WINDOWS[view.choice("w", *WINDOWS)]) if view.choice("w", *WINDOWS) != "30d" else since
    axis = TimeAxis(start, view.end, step_for(view.end - start), view.zone)
    series = context.source.ask(tally_over_time, context.source.read, slo, start, view.end, axis.step)
    return replace(axis, step=_step(series, axis)), series


def _step(frame: pd.DataFrame, axis: TimeAxis) -> timedelta:
    seconds = frame.attrs.get("step_seconds")
    return timedelta(seconds=float(seconds)) if seconds else axis.step


def _what(found: SloStatus) -> str:
    counted = found.slo.indicator
    limit = "" if counted.threshold_seconds is None else axis_duration(counted.threshold_seconds)
    return {
        "latency": f"requests over {limit} or failed",
        "availability": "failed requests",
        "ttft": f"requests whose first token took over {limit}",
        "tpot": f"requests that took over {limit} a token",
        "stage": f"requests that spent over {limit} in {counted.key}",
        "coverage": "time of requests that no stage explains",
        "freshness": f"minutes with data older than {limit}",
    }[counted.kind]


def _no_requests(found: SloStatus) -> Component:
    return empty(
        f"No request of {found.slo.service} in {span(found.slo.window)}",
        "The objective is judged from the first request on. Does a service send under this name?",
    )


def _seen(context: Context, found: SloStatus, axis: TimeAxis) -> dict[datetime, str]:
    """Return the newest releases in the shown time, and when somebody was alerted, as far as there is room."""
    rows = context.versions.iloc[1:]
    seen = {at.to_pydatetime(): str(name) for at, name in zip(rows["first_seen"], rows["version"], strict=True)}
    alerted = {each.opened_at: "incident" for each in context.source.incidents() if each.name == found.slo.name}
    shown = [
        (at, name)
        for kind in (seen, alerted)
        for at, name in sorted(kind.items(), reverse=True)
        if axis.start < at < axis.end
    ]
    return dict(shown[:_MAX_MARKERS])


def _told(context: Context, axis: TimeAxis) -> dict[datetime, str]:
    wider = replace(context.view, query={**context.view.query, "from": str(int(axis.start.timestamp() * 1000))})
    return Context(wider, context.source, context.service).events


def _lines(found: SloStatus) -> tuple[BurnLine, ...]:
    """Return the sustainable pace and the fastest burn rate that each severity is told of."""
    lines = [BurnLine(1.0, f"1{TIMES} sustainable", "$faint")]
    for severity, colour in (("ticket", "$warn"), ("page", "$bad")):
        burns = [each.tier.burn for each in found.rules if each.tier.severity == severity]
        if burns and max(burns) > 1:
            lines.append(BurnLine(max(burns), f"{times(max(burns))} {severity}", colour))
    return tuple(lines)
