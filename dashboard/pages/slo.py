"""Objectives: how much of each budget is left, how fast it burns, what spent it, and what was told to whom."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...alerts.burn import Tier, reachable, tiers
from ...alerts.policy_file import default_policy
from ...alerts.reader import Incident, SloStatus
from ...core.stages import label
from ..components import (
    Node,
    attributes,
    card,
    chart,
    dot,
    empty,
    gauge,
    link,
    pill,
    status,
    swatch,
    table,
    tile,
    tiles,
)
from ..figures.budget import BurnLine, budget_figure, burn_figure, left_parts
from ..figures.time_axis import TimeAxis, step_for
from ..format import TIMES, attained, axis_duration, count, duration, percent, span, target, times
from ..tokens import hue
from ..view import service_path, slo_path
from .page import Context, Page, nothing, panel
from .rows import records

_EXAMPLE = """slos:
  - name: checkout-latency
    service: checkout
    objective: 0.99
    threshold: 250ms
    window: 30d"""
_LONG, _SHORT = timedelta(hours=1), timedelta(minutes=5)
_MAX_INCIDENTS = 20


def render(context: Context, name: str | None) -> Page:
    """Return the page of the objective called *name*, the most urgent one where the address names none."""
    view, found = context.view, context.source.slos()
    trail: list[tuple[str, str | None]] = [("SLOs", view.link("/slo") if name else None)]
    if not found:
        return Page("SLOs · Stagelens", trail, [_head(found), _no_objectives(context)], "/slo")
    chosen = next((each for each in found if each.slo.name == name), None if name else found[0])
    if name:
        trail.append((name, None))
    if chosen is None:
        back = link("All objectives", href=view.link("/slo"), className="btn pri")
        return Page(
            "SLOs · Stagelens",
            trail,
            [nothing(f"No objective called {name}", "The SLO file may have changed.", actions=[back])],
            "/slo",
        )
    service = Context(view, context.source, chosen.slo.service)
    right = [_tiles(chosen), panel("Error budget", lambda: _budget(service, chosen))]
    body: list[Node] = [
        _head(found),
        html.Div(
            [
                panel("Objectives", lambda: _objectives(context, found, chosen), "c4"),
                html.Div(right, className="stack c8"),
            ],
            className="grid",
        ),
        html.Div(
            [
                panel("What spent the budget", lambda: _spent(service, chosen), "c6"),
                panel("Burn rate", lambda: _burn(service, chosen), "c6"),
                panel("Alerts", lambda: _rules(chosen), "c6"),
                panel("Alert history", lambda: _history(context), "c6"),
            ],
            className="grid",
        ),
    ]
    return Page(f"{chosen.slo.name} · SLOs · Stagelens", trail, body, "/slo")


def _head(found: list[SloStatus]) -> Component:
    burning = sum(each.state == "burning" for each in found)
    at_risk = sum(each.state == "at_risk" for each in found)
    text = (
        f"{len(found)} objective{'s' * (len(found) != 1)} · {burning} burning · {at_risk} at risk"
        if found
        else "None yet"
    )
    return html.Div(html.Div([html.H1("Service level objectives"), html.P(text, className="sub")]), className="phead")


def _no_objectives(context: Context) -> Component:
    if not context.source.has_alerts:
        return nothing(
            "Alerts do not run beside this dashboard",
            "Start them with it (stagelens up), and their objectives show here.",
        )
    return nothing(
        "No objective yet",
        "Write one into slo.yaml and check it with: stagelens check slo.yaml",
        html.Pre(_EXAMPLE, className="code mono", tabIndex=0),
    )


def _objectives(context: Context, found: list[SloStatus], chosen: SloStatus) -> Component:
    rows = [_objective(context, each, on=each.slo.name == chosen.slo.name) for each in found]
    head = (("Objective", ""), ("Budget left", "r"), ("Burn 1 h", "r"))
    return card("Objectives", table(head, rows, "Objectives"), size="c4", flush=True)


def _objective(context: Context, found: SloStatus, *, on: bool) -> Component:
    slo = found.slo
    href = context.view.link(slo_path(slo.name))
    kind = {"burning": "bad", "at_risk": "warn"}.get(found.state, "")
    left: Node = "–"  # noqa: RUF001 - an en dash stands for unknown
    if found.budget_left is not None:
        left = budget_gauge(found, kind)
    name = html.Div(
        [
            dot(found.state),
            html.Div([link(slo.name, href=href, className="n"), html.Div(_promise(found), className="s")]),
        ],
        className="svc",
    )
    cells = [
        html.Td(name),
        html.Td(left, className="r"),
        html.Td(html.Span(times(found.burn_1h), className=kind), className="r"),
    ]
    return html.Tr(cells, className="on" if on else "", **attributes({"data-href": href}))


def budget_gauge(found: SloStatus, kind: str) -> Component:
    """Return how much of the budget is left as a bar and a number; nothing is left of an overspent one."""
    text, word = left_parts(found.budget_left)
    shown = html.Span(text if word == "left" else f"{text} {word}", className="b")
    return html.Div([gauge(found.budget_left or 0.0, kind), shown], className="gauge")


def _promise(found: SloStatus) -> str:
    slo = found.slo
    speed = f"under {axis_duration(slo.threshold_seconds)}" if slo.threshold_seconds is not None else "succeed"
    return f"{target(found.slo.objective)} {speed} · {span(slo.window)}"


def _tiles(found: SloStatus) -> Component:
    slo = found.slo
    speed = f"< {axis_duration(slo.threshold_seconds)}" if slo.threshold_seconds is not None else "succeed"
    inside = found.attained is not None and found.attained >= slo.objective
    verdict = (
        html.Span("on target" if inside else "below target", className="good" if inside else "bad")
        if found.attained is not None
        else None
    )
    bad = (
        f"{count(max(found.bad_left, 0))} bad requests left"
        if found.bad_left > 0
        else f"{count(found.bad)} bad requests"
    )
    return tiles(
        [
            tile("Objective", target(found.slo.objective), speed, f"{span(slo.window)} rolling"),
            tile("Attained", attained(found.attained), "", verdict),
            tile("Error budget", *left_parts(found.budget_left), bad),
            tile("At this pace", *_pace(found)),
        ]
    )


def _pace(found: SloStatus) -> tuple[str, str, Node]:
    if found.state == "no_data":
        return "–", "", "no request in the last hour"  # noqa: RUF001 - an en dash stands for unknown
    if found.exhausted_in is None:
        return "lasts", "", html.Span("the window out", className="good")
    if found.exhausted_in <= timedelta():
        return (
            "spent",
            "",
            html.Span(f"burning {times(found.burn_1h)}", className="bad" if found.burn_1h > 1 else "muted"),
        )
    return span(found.exhausted_in), "", html.Span("until exhausted", className="bad")


def _budget(context: Context, found: SloStatus) -> Component:
    slo, view = found.slo, context.view
    start = max(view.end - slo.window, context.first_data or view.end - slo.window)
    length = view.end - start
    axis = TimeAxis(start, view.end, step_for(length), view.zone)
    series = context.source.ask(
        context.source.read.slo_series, slo.select(start, view.end), slo.threshold_seconds, axis.step
    )
    releases = {at: name for at, name in _all_releases(context).items() if axis.start < at < axis.end}
    figure = budget_figure(
        series,
        replace(axis, step=_step(series, axis)),
        allowed_bad=found.bad + found.bad_left,
        window=slo.window,
        exhausted_in=found.exhausted_in,
        versions=releases,
    )
    spoken = f"Of the error budget of {slo.name}, {' is '.join(left_parts(found.budget_left))}."
    what = (
        f"requests over {axis_duration(slo.threshold_seconds)} or failed"
        if slo.threshold_seconds is not None
        else "failed requests"
    )
    whole = span(slo.window) if length >= slo.window else f"history of {span(length)}, of {span(slo.window)}"
    return card(
        f"{slo.service}: error budget",
        chart("budget", figure, spoken, 300),
        sub=what,
        tools=html.Span(whole, className="muted"),
    )


def _all_releases(context: Context) -> dict[datetime, str]:
    rows = context.versions.iloc[1:]
    return {at.to_pydatetime(): str(name) for at, name in zip(rows["first_seen"], rows["version"], strict=True)}


def _step(frame: Any, axis: TimeAxis) -> timedelta:
    seconds = frame.attrs.get("step_seconds")
    return timedelta(seconds=float(seconds)) if seconds else axis.step


def _spent(context: Context, found: SloStatus) -> Component:
    """Which stages the bad requests spend more time in than the good ones."""
    slo, axis = found.slo, context.axis
    frame = context.source.ask(
        context.source.read.bad_breakdown, slo.select(axis.start, axis.end), slo.threshold_seconds
    )
    rows = [record for record in records(frame) if float(record["bad_mean_seconds"]) > 0]
    title, sub = (
        "What spent the budget",
        f"a bad request against a good one, {context.view.window_label[0].lower()}{context.view.window_label[1:]}",
    )
    if not rows:
        return card(title, empty("No bad request in this window"), sub=sub, size="c6")
    widest = max(abs(float(each["excess_seconds"])) for each in rows) or 1e-9
    body = table(
        (("Stage", "w1"), ("good", "r w2"), ("bad", "r w2"), ("more in bad ones", "")),
        [_spent_row(each, widest) for each in rows],
        "Mean stage times of good and bad requests",
        css="insp",
    )
    first = rows[0]
    foot = [html.B(label(str(first["stage"]))), " explains ", html.B(percent(float(first["share"]))), " of the excess."]
    return card(title, body, sub=sub, foot=html.Span(foot), size="c6")


def _spent_row(record: dict[str, Any], widest: float) -> Component:
    stage, excess = str(record["stage"]), float(record["excess_seconds"])
    width = max(0.6, abs(excess) / widest * 100)
    bar = html.I(className="less" if excess < 0 else "", style={"width": f"{width:.1f}%"})
    cells = [
        html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
        html.Td(duration(float(record["good_mean_seconds"])), className="r"),
        html.Td(duration(float(record["bad_mean_seconds"])), className="r now"),
        html.Td(html.Span(bar, className=f"dv st-{hue(stage)}", title=duration(excess, sign=True))),
    ]
    return html.Tr(cells, **attributes({"data-stage": stage}))


def _burn(context: Context, found: SloStatus) -> Component:
    slo, axis = found.slo, context.axis
    step = min(axis.step, _SHORT)
    series = context.source.ask(
        context.source.read.slo_series, slo.select(axis.start - _LONG, axis.end), slo.threshold_seconds, step
    )
    title, sub = "Burn rate", f"{span(_LONG)} (ink) and {span(_SHORT)} (grey)"
    if not len(series):
        return card(title, empty("No request in this window"), sub=sub, size="c6")
    figure = burn_figure(
        series,
        replace(axis, step=_step(series, axis)),
        objective=slo.objective,
        lines=_lines(found),
        long=_LONG,
        short=_SHORT,
        versions=context.releases,
    )
    spoken = (
        f"Burn rate of {slo.name}: {times(found.burn_1h)} over the last hour, {times(found.burn_5m)} over five minutes."
    )
    return card(title, chart("burn", figure, spoken, 250), sub=sub, size="c6")


def _lines(found: SloStatus) -> tuple[BurnLine, ...]:
    first = next((each for each in _tiers(found) if each.severity == "page"), None)
    lines = [BurnLine(1.0, f"1{TIMES} sustainable", "$faint")]
    if first is not None:
        lines.append(BurnLine(first.burn, f"{times(first.burn)} page", "$bad"))
    return tuple(lines)


def _tiers(found: SloStatus) -> list[Tier]:
    """Return the rules for this objective; one that no failure could reach is left out."""
    return [each for each in tiers(default_policy(), found.slo.window) if reachable(each, found.slo.objective)]


def _rules(found: SloStatus) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(pill(rule.severity.capitalize(), "bad" if rule.severity == "page" else "warn")),
                html.Td(times(rule.burn), className="r b"),
                html.Td(span(rule.long), className="r"),
                html.Td(span(rule.short), className="r"),
                html.Td(percent(rule.burn * (rule.long / found.slo.window)), className="r muted"),
            ]
        )
        for rule in _tiers(found)
    ]
    head = (("Severity", ""), ("Burn", "r"), ("Long", "r"), ("Short", "r"), ("Budget spent", "r"))
    now = html.Span(
        [status(found.state), f" 1 h {times(found.burn_1h)}, 5 min {times(found.burn_5m)}"], className="muted"
    )
    return card("Multi-window alerts", table(head, rows, "Alert rules"), tools=now, size="c6", flush=True)


def _history(context: Context) -> Component:
    found = context.source.incidents()[:_MAX_INCIDENTS]
    if not found:
        return card("Alert history", html.P("No incident so far.", className="muted"), size="c6")
    head = (("State", ""), ("What", ""), ("Stage", "hide"), ("Since", "r"), ("For", "r hide"))
    return card(
        "Alert history",
        table(head, [_incident(context, each) for each in found], "Alert history"),
        size="c6",
        flush=True,
    )


def _incident(context: Context, found: Incident) -> Component:
    opened = found.state == "open"
    kind = ("bad" if found.severity == "page" else "warn") if opened else ""
    end = found.resolved_at or context.source.now()
    since = found.since.astimezone(context.view.zone)
    stage: Node = (
        html.Span([swatch(found.stages[0].stage), label(found.stages[0].stage)], className="dom")
        if found.stages
        else None
    )
    what = html.Div(
        [html.Div(found.slo, className="n"), html.Div(found.headline, className="s", style={"whiteSpace": "normal"})]
    )
    cells = [
        html.Td(pill("open" if opened else "resolved", kind)),
        html.Td(what),
        html.Td(stage, className="hide"),
        html.Td(f"{since:%-d %b %H:%M}", className="r muted"),
        html.Td(span(end - found.since), className="r hide"),
    ]
    href = context.view.link(service_path(found.service))
    return html.Tr(cells, **attributes({"data-href": href}))
