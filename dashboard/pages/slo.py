"""SLO page: objectives, error budget, burn rate, stage budgets, alert rules and the state without objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus, counted_from, tally_over_time
from ...alerts.objectives.slo import Slo
from ...alerts.objectives.slo_file import EXAMPLE, why_unwatched
from ...analysis.burn_rate import FAST, RECENT
from ...core.stages import label
from ..figures.budget import BurnLine, budget_figure, budget_left, budget_left_words, burn_figure, burn_rates
from ..figures.time_axis import STEPS, TimeAxis, step_for
from ..ui import components
from ..ui.format import TIMES, attained, axis_duration, count, several, span, target, times
from ..view import View, slo_path
from .incidents import history_card, objective_incidents, record_card, rules_card
from .page import Context, Page, empty_page_card, panel
from .service_status import (
    COLOURS,
    attained_words,
    budget_tile_words,
    burn_words,
    maintenance_end,
    silence_words,
    state_counts,
    state_line,
    state_note,
)
from .slo_spent import spent_card, stages_card

# Values of `w`, default first: the shown part of the budget's window.
WINDOWS = {"30d": timedelta(days=30), "7d": timedelta(days=7), "1d": timedelta(days=1)}
_MAX_MARKERS = 6
_NOT_BURNING = ("stale", "maintenance", "no_data")
_UNKNOWN = "–"  # noqa: RUF001 - an en dash means unknown
_TITLE = "SLOs · Stagelens"
_PLACE = "/slo"


def render(context: Context, name: str | None) -> Page:
    view, source = context.view, context.source
    # Links in notifications refer to a past time, and show the objectives at that time.
    statuses = context.slos
    broken = _file_problems(source.slo_problems(), in_force=bool(statuses))
    trail: list[tuple[str, str | None]] = [("SLOs", view.link(_PLACE) if name else None)]
    if not statuses:
        return Page(_TITLE, trail, [_head(statuses), *broken, no_objectives(context)], _PLACE)
    if name:
        trail.append((name, None))
    chosen = next((status for status in statuses if status.slo.name == name), None if name else statuses[0])
    if chosen is None:
        return Page(_TITLE, trail, [*broken, _unknown_objective(context, name or "")], _PLACE)
    title = f"{chosen.slo.name} · {_TITLE}"
    return Page(
        title, trail, [_head(statuses, window_links(view, chosen)), *broken, *_body(context, statuses, chosen)], _PLACE
    )


def _body(context: Context, statuses: Sequence[SloStatus], chosen: SloStatus) -> list[components.Node]:
    service = Context(context.view, context.source, chosen.slo.service)
    right = [slo_tiles(context.view, chosen), panel("Error budget", lambda: budget_card(service, chosen))]
    spent = [panel("What spent the budget", lambda: spent_card(service, chosen))]
    burn = [
        panel("Burn rate", lambda: burn_card(service, chosen)),
        panel("Multi-window alerts", lambda: rules_card(chosen)),
    ]
    slo, record = chosen.slo, context.source.regression_record()
    budgets = slo.kind == "latency" and slo.budgets
    return [
        html.P(slo_sentence(context.view, chosen), className="says"),
        html.Div(
            [
                panel("Objectives", lambda: objectives_card(context, statuses, chosen), "c4"),
                html.Div(right, className="stack c8"),
            ],
            className="grid",
        ),
        panel("Stage budgets", lambda: stages_card(service, slo)) if budgets else None,
        html.Div([html.Div(spent, className="stack c6"), html.Div(burn, className="stack c6")], className="grid"),
        panel("Alert history", lambda: history_card(service, chosen)),
        panel("Regression alerts", lambda: record_card(context, record)) if record is not None else None,
    ]


def slo_sentence(view: View, status: SloStatus) -> str:
    name = status.slo.name
    if status.state == "stale":
        silence = f"the collector has not ingested or aggregated data {state_note(status, view)}"
        return f"{name} is not evaluated: {silence}. {_stale_detail(status)}"
    if status.budget_left is None:
        return f"{name} cannot be evaluated: {status.slo.service} had no request in {span(status.slo.window)}."
    share, word = budget_left_words(status.budget_left)
    budget = {
        "left": f"{name} has {share} of its error budget left",
        "overspent": f"{name} is {share} overspent",
        "spent": f"{name} has spent {share} its error budget",
    }[word]
    if status.is_young and (status.attained or 0.0) < status.slo.objective:
        budget += f" (of {span(status.slo.window)} at this traffic; so far {attained_words(status)})"
    if status.state == "maintenance":
        return f"{budget}. Maintenance window {state_note(status, view)}: its requests do not count, and notifications are paused."
    if status.state == "no_data":
        return f"{budget}; there was {silence_words(status)}, so whether it burns is unknown."
    gone_in = time_to_exhaustion(status)
    pace = f"; at this rate it is spent in {span(gone_in)}" if gone_in else ""
    return f"{budget} and burns at {burn_words(status)}{pace}."


def _stale_detail(status: SloStatus) -> str:
    held = "Until the collector works again, no incident is opened or resolved."
    if status.budget_left is None:
        return held
    share, word = budget_left_words(status.budget_left)
    stood = f"{share} of the error budget left" if word == "left" else f"error budget {word} {share}"
    return f"Last known state: {stood}. {held}"


def _head(statuses: Sequence[SloStatus], windows: Component | None = None) -> Component:
    parts = (
        [several(len(statuses), "objective"), *state_counts([status.state for status in statuses])]
        if statuses
        else ["None yet"]
    )
    title = html.Div([html.H1("Service level objectives"), html.P(" · ".join(parts), className="sub")])
    return html.Div([title, html.Span(className="grow"), windows], className="phead")


def _file_problems(problems: Sequence[str], *, in_force: bool) -> list[components.Node]:
    if not problems:
        return []
    effect = "The previous version stays in effect." if in_force else "None of its objectives is in effect."
    lines = html.Ul([html.Li(problem, className="mono") for problem in problems])
    return [components.banner(html.Div([html.B("The SLO file cannot be read. "), effect, lines]), "bad")]


def _unknown_objective(context: Context, name: str) -> Component:
    first = context.source.slos()[0].slo.name
    actions = [
        components.link("All objectives", href=context.view.link(_PLACE), className="btn pri"),
        components.link(first, href=context.view.link(slo_path(first)), className="btn"),
    ]
    text = "The SLO file does not contain this objective."
    if objective_incidents(context, name):
        text = "This objective was removed from the SLO file. Its incidents remain."
        actions.insert(1, components.link("Incidents", href=context.view.link("/incidents"), className="btn"))
    return empty_page_card(f"No objective called {name}", text, actions=actions)


def window_links(view: View, status: SloStatus) -> Component:
    whole = status.slo.window
    lengths = {value: length for value, length in WINDOWS.items() if length < whole}
    options = {"30d": (span(whole), view.here(w=None))}
    options |= {value: (span(length), view.here(w=value)) for value, length in lengths.items() if value != "30d"}
    chosen = view.choice("w", *WINDOWS)
    return components.link_tabs("Shown part of the budget", options, chosen if chosen in options else "30d")


def budget_card(context: Context, status: SloStatus) -> Component:
    slo, view = status.slo, context.view
    title = f"{slo.service}: error budget"
    since = counted_from(slo, max(view.end - slo.window, context.first_data or view.end - slo.window), view.end)
    axis, series = _budget_series(context, status, since)
    if not len(series):
        return components.card(title, _no_requests(status), sub=_bad_words(status))
    # The unit is requests, also for objectives on time.
    series = series.assign(bad=series["bad"] * (series["requests"].sum() / series["total"].sum()))
    allowed = status.bad + status.bad_left
    before = max(status.bad - float(series["bad"].sum()), 0.0) if axis.start > since else 0.0
    figure = budget_figure(
        series,
        axis,
        allowed_bad=allowed,
        window=slo.window,
        since=since,
        bad_before=before,
        exhausted_in=time_to_exhaustion(status),
        versions=_budget_markers(context, status, axis),
        reported=_shown_events(context, axis),
    )
    spoken = f"Of the error budget of {slo.name}, {' is '.join(budget_left_words(status.budget_left))}."
    frame = pd.DataFrame(
        {
            "time (UTC)": series["at"],
            "requests": series["requests"],
            "bad requests": series["bad"],
            "budget left (%)": 100 * budget_left(series, allowed, before),
        }
    )
    history = view.end - since
    whole = span(slo.window) if history >= slo.window else f"{span(history)} of data, out of {span(slo.window)}"
    shown = whole if axis.start <= since else f"last {span(axis.end - axis.start)} of {whole}"
    drawn = components.chart("budget", figure, spoken, 300, frame=frame)
    return components.card(title, drawn, sub=_bad_words(status), tools=html.Span(shown, className="muted"))


def burn_card(context: Context, status: SloStatus) -> Component:
    slo, axis = status.slo, context.axis
    # The step must divide five minutes; otherwise the line of five minutes would cover six.
    step = max(step for step in STEPS if step <= axis.step and not FAST % step)
    series = context.source.cached(tally_over_time, context.source.read, slo, axis.start - RECENT, axis.end, step)
    black = html.Span("black", className="ink-name")
    title, sub = "Burn rate", [f"{span(RECENT)} (", black, f") and {span(FAST)} (grey)"]
    if not len(series):
        return components.card(title, components.empty("No request in this window"), sub=sub)
    figure = burn_figure(
        series,
        replace(axis, step=_step(series, axis)),
        objective=slo.objective,
        lines=_burn_lines(status),
        long=RECENT,
        short=FAST,
        versions=context.releases,
        reported=context.events,
    )
    spoken = f"Burn rate of {slo.name}: {times(status.burn_1h)} over the last hour, {times(status.burn_5m)} over five minutes."
    frame = pd.DataFrame(
        {"time (UTC)": series["at"]}
        | {f"burn rate over {span(window)}": burn_rates(series, window, slo.objective) for window in (RECENT, FAST)}
    )
    inside = frame[frame["time (UTC)"] >= axis.start].reset_index(drop=True)
    return components.card(title, components.chart("burn", figure, spoken, 220, frame=inside), sub=sub)


def _budget_series(context: Context, status: SloStatus, since: datetime) -> tuple[TimeAxis, pd.DataFrame]:
    view, slo = context.view, status.slo
    start = max(since, view.end - WINDOWS[view.choice("w", *WINDOWS)]) if view.choice("w", *WINDOWS) != "30d" else since
    axis = TimeAxis(start, view.end, step_for(view.end - start), view.zone)
    series = context.source.cached(tally_over_time, context.source.read, slo, start, view.end, axis.step)
    return replace(axis, step=_step(series, axis)), series


def _step(frame: pd.DataFrame, axis: TimeAxis) -> timedelta:
    seconds = frame.attrs.get("step_seconds")
    return timedelta(seconds=float(seconds)) if seconds else axis.step


def _bad_words(status: SloStatus) -> str:
    counted = status.slo.indicator
    limit = "" if counted.threshold_seconds is None else axis_duration(counted.threshold_seconds)
    return {
        "latency": f"requests over {limit} or failed",
        "availability": "failed requests",
        "ttft": f"requests whose first token took over {limit}",
        "tpot": f"requests that took over {limit} per token",
        "stage": f"requests that spent over {limit} in {counted.key}",
        "coverage": "unattributed time of requests",
        "freshness": f"minutes with data older than {limit}",
    }[counted.kind]


def _no_requests(status: SloStatus) -> Component:
    return components.empty(
        f"No request of {status.slo.service} in {span(status.slo.window)}",
        "The objective is evaluated after the first request. Check that a service sends data with this name.",
    )


def _budget_markers(context: Context, status: SloStatus, axis: TimeAxis) -> dict[datetime, str]:
    """Return the newest releases and incidents in the shown time, at most as many as fit into the chart."""
    rows = context.versions.iloc[1:]
    seen = {at.to_pydatetime(): str(name) for at, name in zip(rows["first_seen"], rows["version"], strict=True)}
    alerted = {incident.opened_at: "incident" for incident in objective_incidents(context, status.slo.name)}
    shown = [
        (at, name)
        for kind in (seen, alerted)
        for at, name in sorted(kind.items(), reverse=True)
        if axis.start < at < axis.end
    ]
    return dict(shown[:_MAX_MARKERS])


def _shown_events(context: Context, axis: TimeAxis) -> dict[datetime, str]:
    wider = replace(context.view, query={**context.view.query, "from": str(int(axis.start.timestamp() * 1000))})
    return Context(wider, context.source, context.service).events


def _burn_lines(status: SloStatus) -> tuple[BurnLine, ...]:
    lines = [BurnLine(1.0, f"1{TIMES} sustainable", "$faint")]
    for severity, colour in (("ticket", "$warn"), ("page", "$bad")):
        burns = [rule.tier.burn for rule in status.rules if rule.tier.severity == severity]
        if burns and max(burns) > 1:
            lines.append(BurnLine(max(burns), f"{times(max(burns))} {severity}", colour))
    return tuple(lines)


def unwatched_line(context: Context) -> Component | None:
    source = context.source
    if not source.has_alerts:
        return None
    if source.slos():
        problems = source.slo_problems()
        return _broken_file_line(context, problems) if problems else None
    if source.is_restricted:
        return None
    why, fix = why_unwatched(source.slo_file)
    message = [html.B("No SLO is evaluated"), f": {why}, so no alert would be sent. ", *components.with_code(fix), ". "]
    more = components.link("More", href=context.view.link("/slo"), className="link")
    return html.Div([components.dot("no_data"), html.Span([*message, more])], className="quiet")


def _broken_file_line(context: Context, problems: Sequence[str]) -> Component:
    effect = ". The previous version stays in effect. "
    message = [html.B("The SLO file cannot be read"), ": ", html.Span(problems[0], className="mono"), effect]
    more = components.link("More", href=context.view.link("/slo"), className="link")
    return html.Div([components.dot("at_risk"), html.Span([*message, more])], className="quiet")


def no_objectives(context: Context) -> Component:
    if not context.source.has_alerts:
        return empty_page_card(
            "Alerts do not run with this dashboard", "Start both with `stagelens up` to see objectives here."
        )
    if context.source.is_restricted:
        return empty_page_card("No SLO", "There is no objective for the environments that you may see.")
    why, fix = why_unwatched(context.source.slo_file, example="")
    return empty_page_card(
        f"No SLO is evaluated: {why}",
        html.Span(components.with_code(f"{fix}. For example, to be checked with `stagelens check slo.yaml`:")),
        components.code_block(EXAMPLE.rstrip()),
    )


def objectives_card(context: Context, statuses: Sequence[SloStatus], chosen: SloStatus) -> Component:
    rows = [_objective_row(context, status, on=status.slo.name == chosen.slo.name) for status in statuses]
    head = (("Objective", ""), ("Budget left", ""), ("Burn 1 h", "r"))
    return components.card("Objectives", components.table(head, rows, "Objectives"), size="c4 beside", flush=True)


def objective_words(slo: Slo) -> str:
    return f"{target(slo.objective)} {_condition(slo, 'under')} · {span(slo.window)}"


def time_to_exhaustion(status: SloStatus) -> timedelta | None:
    """Return the time until the budget is exhausted at the current pace.

    None if the budget lasts, because the spent part is restored as the window moves on, and if the pace is unknown: while
    objectives are stale, or requests do not count.
    """
    goes_on = (status.burn_1h or 0) > 1 and status.state not in _NOT_BURNING
    return status.exhausted_in if goes_on or status.exhausted_in == timedelta() else None


def slo_tiles(view: View, status: SloStatus) -> Component:
    slo = status.slo
    return components.tiles(
        [
            components.tile("Objective", target(slo.objective), _condition(slo, "<"), f"{span(slo.window)} rolling"),
            components.tile("Attained", attained(status.attained, slo.objective), "", _attainment_words(status)),
            components.tile("Error budget", *budget_tile_words(status), _requests_left(status)),
            components.tile("At this rate", *_exhaustion_tile(view, status)),
        ]
    )


def _objective_row(context: Context, status: SloStatus, *, on: bool) -> Component:
    slo, kind = status.slo, COLOURS.get(status.state, "")
    href = context.view.link(slo_path(slo.name), w=context.view.text("w"))
    name = html.Div(
        [
            components.dot(status.state),
            html.Div(
                [
                    components.link(slo.name, href=href, className="n"),
                    html.Div(objective_words(slo), className="s"),
                    # For healthy objectives the symbol is sufficient; screen readers get the word.
                    html.Div(
                        state_line(status, context.view), className="sr" if status.state == "healthy" else "s why"
                    ),
                ]
            ),
        ],
        className="svc",
    )
    burn = html.Span(times(status.burn_1h), className=kind) if status.state != "no_data" else _UNKNOWN
    cells = [html.Td(name, className="fits"), html.Td(_budget_left(status, kind)), html.Td(burn, className="r")]
    return html.Tr(cells, className="on" if on else "", **components.attributes({"data-href": href}))


def _budget_left(status: SloStatus, kind: str) -> components.Node:
    if status.budget_left is None:
        return _UNKNOWN
    text, word = budget_left_words(status.budget_left)
    shown = html.Span(text if word == "left" else f"{text} {word}", className="b")
    return html.Div([components.gauge(status.budget_left, kind), shown], className="gauge")


def _condition(slo: Slo, than: str) -> str:
    """Return the condition of the objective as a short text: `< 250 ms`, `Queue < 50 ms`, `succeed`."""
    if slo.threshold is None:
        return "covered by stages" if slo.kind == "coverage" else "succeed"
    about = {"ttft": "TTFT ", "tpot": "TPOT ", "freshness": "data "}.get(slo.kind, "")
    about = f"{label(slo.stage)} " if slo.stage else about
    return f"{about}{than} {axis_duration(slo.threshold.total_seconds())}"


def _attainment_words(status: SloStatus) -> components.Node:
    if status.attained is None:
        return "no request in its window"
    inside = status.attained >= status.slo.objective
    text, kind = ("on target", "good") if inside else ("below target", "bad")
    text += f" in {span(status.covered)}" if status.is_young else ""
    return html.Span(f"was {text}", className="muted") if status.state == "stale" else html.Span(text, className=kind)


def _requests_left(status: SloStatus) -> components.Node:
    if status.budget_left is None:
        return None
    if status.bad_left > 0:
        return f"{count(status.bad_left)} bad requests left"
    return f"{count(status.bad)} bad requests, {count(-status.bad_left)} too many"


def _exhaustion_tile(view: View, status: SloStatus) -> tuple[str, str, components.Node]:
    if status.state == "no_data":
        return _UNKNOWN, "", silence_words(status)
    if status.state == "stale":
        return _UNKNOWN, "", f"not evaluated {state_note(status, view)}"
    if status.state == "maintenance" and status.work is not None:
        return "paused", "", f"maintenance window {maintenance_end(status.work, view)}"
    gone_in = time_to_exhaustion(status)
    if gone_in is None:
        return "lasts", "", html.Span("for the whole window", className="good")
    if gone_in <= timedelta():
        kind = "bad" if (status.burn_1h or 0) > 1 else "muted"
        return "spent", "", html.Span(f"burning {burn_words(status)}", className=kind)
    return span(gone_in), "", html.Span("until exhausted", className="bad")
