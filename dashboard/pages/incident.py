"""Incident page: what is known of one incident, what happened, what was tried before, and the actions on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.delivery.message_text import exemplars_title, of_the_excess, shared_text, stage_name
from ...alerts.evaluation.evidence import CALM_BEFORE, bad_requests, no_exemplar_text
from ...alerts.reader import Delivery, Incident, Transition
from ...core.names import STATUS_ERROR
from ...questions.changed import explain_violations
from ...store import Selection
from ..figures.budget import trend_figure
from ..figures.time_axis import TimeAxis
from ..ui.components import Node, attributes, card, chart, link, pill, table
from ..ui.format import axis_duration, duration, percent, several, span, times
from ..view import INCIDENTS_API, incident_page
from . import incidents
from .page import Context, Page, empty_page_card, panel, records, traces_table
from .service_code import source_link, time_bar
from .slo_spent import requests_path

_SHAPES = {"sent": "good", "dead": "bad", "superseded": "out", "waiting": "warn", "sending": "warn"}
_DELIVERY_STATES = {
    "sent": "Accepted",
    "dead": "Dropped",
    "superseded": "Superseded",
    "waiting": "Pending",
    "sending": "Sending",
}
# Number of slow requests, and of events that are named in the chart.
_SLOW_REQUESTS, _MARKS = 6, 4
_MAX_EVENTS, _TRIED = 50, 2
# Minimum share of the excess for a stage to be evidence. [ratio]
_MIN_SHARE = 0.01


def render(context: Context, name: str) -> Page:
    view = context.view
    found = context.source.incident_actions.incident(name)
    trail: list[tuple[str, str | None]] = [("Incidents", view.link(incidents.PLACE))]
    trail.append((name if found is None else found.name, None))
    if found is None:
        back = link("All incidents", href=view.link(incidents.PLACE), className="btn pri")
        unknown = empty_page_card(
            "No such incident", "Incidents are deleted one year after they ended.", actions=[back]
        )
        return Page(incidents.TITLE, trail, [unknown], incidents.PLACE)
    body: list[Node] = [
        _head(context, found),
        html.P(found.impact, className="says"),
        html.Div(
            [
                panel("Chart", lambda: _chart(context, found), "c7"),
                panel("Evidence", lambda: _evidence(context, found), "c5"),
            ],
            className="grid",
        ),
        panel("Slow requests", lambda: _slow_requests(context, found)),
        panel("Functions that grew", lambda: _functions(context, found)) if found.functions else None,
        panel("Timeline", lambda: _timeline(context, found)),
        _note_field(context, found),
        panel("Similar incidents", lambda: _similar(context, found)),
        panel("Deliveries", lambda: _deliveries(context, found.deliveries)),
    ]
    return Page(f"{found.service}: {found.name} · {incidents.TITLE}", trail, body, incidents.PLACE)


@dataclass(frozen=True, slots=True)
class _Moment:
    at: datetime
    kind: str
    text: str
    mark: str = ""
    notified: str = ""
    href: str = ""


def _end(context: Context, found: Incident) -> datetime:
    return found.resolved_at or context.source.now()


def _moments(context: Context, found: Incident) -> list[_Moment]:
    start, end = found.since - CALM_BEFORE, _end(context, found)
    happened = [*_releases(context, found, start, end), *_events(context, found.service, start, end)]
    happened.append(_Moment(found.since, "Onset", _onset_text(context, found)))
    happened += (
        _Moment(each.at, each.event.capitalize(), each.headline, notified=_notified_channels(each))
        for each in found.transitions
    )
    happened += _silence_moments(context, found)
    return sorted(happened, key=lambda each: each.at)


def _silence_moments(context: Context, found: Incident) -> Iterator[_Moment]:
    now = context.source.now()
    for silence, ended_by in context.source.incident_actions.silences_of(found):
        why = f": {silence.comment}" if silence.comment else ""
        until = f" until {incidents.when(context, silence.ends_at)}" if silence.ends_at > now or not ended_by else ""
        yield _Moment(
            silence.starts_at,
            "Silenced",
            f"{incidents.matchers_text(silence)}{until}{why}",
            notified=f"by {silence.author}",
        )
        if silence.ends_at <= now:
            what = (
                f"The silence of {silence.author} ended early"
                if ended_by
                else f"The silence of {silence.author} expired"
            )
            by = f"by {ended_by}" if ended_by else ""
            yield _Moment(silence.ends_at, "Silence ended" if ended_by else "Silence expired", what, notified=by)


def _onset_text(context: Context, found: Incident) -> str:
    if found.between is None:
        return "The problem started"
    low, high = (f"{each.astimezone(context.view.zone):%H:%M}" for each in found.between)
    return f"The problem started between {low} and {high}"


def _releases(context: Context, found: Incident, start: datetime, end: datetime) -> Iterator[_Moment]:
    versions = context.source.versions(found.service, found.where.get("environment"), start, end)
    for row in records(versions)[1:]:
        at = pd.Timestamp(row["first_seen"]).to_pydatetime(warn=False)
        if start <= at <= end:
            version = str(row["version"])
            yield _Moment(at, "Release", f"First request of version {version}", mark=version)


def _events(context: Context, service: str, start: datetime, end: datetime) -> list[_Moment]:
    frame = context.source.cached(context.source.read.events, start, end, service=service).head(_MAX_EVENTS)
    return [
        _Moment(
            pd.Timestamp(row["at"]).to_pydatetime(warn=False),
            str(row["kind"]).capitalize(),
            str(row["text"]),
            mark=str(row["key"]) or str(row["text"])[:20],
            href=str(row["link"]),
        )
        for row in records(frame)
    ]


def _chart(context: Context, found: Incident) -> Component:
    trend, is_burn = found.course, found.kind != "tail"
    what = "Burn rate" if is_burn else "Latency"
    if trend is None or trend.highest is None:
        return card(what, html.P("There were no requests to show.", className="muted"), size="c7")
    step = timedelta(seconds=trend.step_seconds)
    start, end = (datetime.fromtimestamp(each, UTC) for each in (trend.start, trend.end))
    marked = {each.at: each.mark for each in _moments(context, found) if each.mark and start < each.at < end}
    figure = trend_figure(
        trend,
        TimeAxis(start, end, step, context.view.zone),
        is_burn_rate=is_burn,
        limit=found.limit,
        onset=found.between or (found.since, found.since),
        marks=dict(list(marked.items())[:_MARKS]),
    )
    highest = (times if is_burn else axis_duration)(trend.highest)
    times_of_steps = pd.to_datetime(
        [trend.start + trend.step_seconds * place for place in range(len(trend.values))], unit="s", utc=True
    )
    frame = pd.DataFrame({"time (UTC)": times_of_steps, "burn rate" if is_burn else "latency (s)": list(trend.values)})
    spoken = f"{what} of each {span(step)} since {incidents.when(context, start)}, at most {highest}; the problem started at {incidents.when(context, found.since)}."
    return card(
        what, chart("trend", figure, spoken, 220, frame=frame), sub=f"steps of {span(step)}; red: the onset", size="c7"
    )


def _evidence(context: Context, found: Incident) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(kind, className="muted nowrap"),
                html.Td(link(text, href=href, className="link"), className="wraps"),
            ]
        )
        for kind, text, href in _evidence_rows(context, found)
    ]
    if not rows:
        text = "No failure, stage, release, function, replica or attribute stands out."
        return card("Evidence", html.P(text, className="muted"), size="c5")
    return card("Evidence", table((("Kind", ""), ("Evidence", "")), rows, "Evidence"), size="c5", flush=True)


def _evidence_rows(context: Context, found: Incident) -> Iterator[tuple[str, str, str]]:
    view, path = context.view, incidents.incident_path(context.view, found)
    if found.cause_kind in ("no_data", "failures"):
        yield (
            incidents.CAUSES[found.cause_kind],
            found.cause[:1].upper() + found.cause[1:],
            incidents.incident_path(view, found, "traces"),
        )
    if found.version:
        yield "Release", f"It started with version {found.version}", view.link("/compare", svc=found.service)
    for grown in (each for each in found.stages[:2] if each.share >= _MIN_SHARE):
        amount, name = duration(grown.seconds, sign=True), stage_name(grown.stage)
        text = f"Slow requests spend {amount} in {name}, compared with good ones, {of_the_excess(grown)}"
        if found.kind == "tail":
            text = f"{name[0].upper()}{name[1:]} grew {amount}, {of_the_excess(grown)}"
        yield "Stage", text, path
    if found.called:
        yield "Called", found.called, path
    if found.replica:
        yield "Replica", found.replica, incidents.incident_path(view, found, "replicas")
    for each in found.functions[:1]:
        yield "Code", f"{each.title}: {each.amount_words}", path
    for each in found.shared:
        yield "Attribute", shared_text(each)[0].upper() + shared_text(each)[1:], path
    for each in found.overruns[:1]:
        text = f"{stage_name(each.stage)} took {duration(each.seconds)} of its {duration(each.budget_seconds)}"
        yield "Budget", text[0].upper() + text[1:], path


def _slow_requests(context: Context, found: Incident) -> Component:
    cached, read = context.source.cached, context.source.read
    about = Selection(found.since, _end(context, found), service=found.service, **found.where)
    slo = next((each.slo for each in context.source.slos() if each.slo.name == found.name), None)
    above = found.limit or 0.0 if found.kind == "tail" else 0.0
    if found.kind == "no_data" or (slo is None and not above):
        known = (
            "There were no requests."
            if found.kind == "no_data"
            else "Its SLO was removed, so its threshold is unknown."
        )
        return card("Slow requests", html.P(known, className="muted"))
    violated = slo.indicator if slo and not above else None
    frame = cached(
        bad_requests, read, about, violated, cause=found.cause_kind, limit=_SLOW_REQUESTS, above_seconds=above
    )
    title = exemplars_title((frame["status"] == STATUS_ERROR).tolist())
    if not len(frame):
        why = (
            no_exemplar_text(violated, cached(explain_violations, read, about, violated))
            if violated
            else found.no_exemplars
        )
        return card(title, html.P(why or "No request slower than usual is retained.", className="muted"))
    more = link("All traces →", href=incidents.incident_path(context.view, found, "traces"), className="link")
    than = f"slower than the usual {axis_duration(above)}" if above else "that violated the objective"
    rows = traces_table(frame, context.view, title)
    return card(title, rows, sub=f"{than}, the slowest of each longest stage first", tools=more, flush=True)


def _timeline(context: Context, found: Incident) -> Component:
    head = (("Time", ""), ("Event", ""), ("What", ""), ("Notified, or by", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(incidents.when(context, each.at), className="muted nowrap"),
                html.Td(pill(each.kind, "out")),
                html.Td(
                    link(each.text, href=each.href, className="link") if each.href else each.text, className="wraps"
                ),
                html.Td(each.notified, className="hide"),
            ]
        )
        for each in _moments(context, found)
    ]
    return card("Timeline", table(head, rows, "Timeline"), flush=True)


def _similar(context: Context, found: Incident) -> Component:
    alike = context.source.incident_actions.similar(found)
    if not alike:
        return card("Similar incidents", html.P("This service had no similar incident before.", className="muted"))
    head = (("When", ""), ("What", ""), ("Done meanwhile", "hide"), ("For", "r hide"), ("Ended", "r"))
    rows = [
        html.Tr(
            [
                html.Td(incidents.when(context, each.since), className="muted nowrap"),
                html.Td(
                    link(each.headline, href=context.view.link(incident_page(each.id)), className="link"),
                    className="wraps",
                ),
                html.Td(_done(context, each), className="hide wraps"),
                html.Td(span(_end(context, each) - each.since), className="r nowrap hide"),
                html.Td(incidents.incident_pill(each), className="r"),
            ]
        )
        for each in alike
    ]
    return card("Similar incidents", table(head, rows, "Similar incidents"), flush=True)


def _done(context: Context, found: Incident) -> str:
    events = _events(context, found.service, found.since, _end(context, found))
    done = [
        *([f"acknowledged by {found.acked_by}"] if found.acked_by else []),
        *(each.text for each in events[:_TRIED]),
    ]
    return "; ".join(done) or "none recorded"


def _head(context: Context, found: Incident) -> Component:
    view, now = context.view, context.source.now()
    lasted = span((found.resolved_at or now) - found.since)
    facts = [
        f"since {incidents.when(context, found.since)}",
        f"{'for' if found.resolved_at else 'open for'} {lasted}",
        _acknowledgement(context, found),
    ]
    silence = context.source.incident_actions.silence_of(found) if found.resolved_at is None else None
    kept = incidents.kept_acknowledgement(context.source, found)
    title = html.Div(
        [
            html.H1([incidents.severity_pill(found), found.headline]),
            html.P([incidents.incident_pill(found), " ", " · ".join(each for each in facts if each)], className="sub"),
            html.P(kept, className="sub") if kept else None,
            html.P(incidents.silence_note(context, silence), className="sub") if silence else None,
            html.P(incidents.mute_reason(context, found), className="sub") if found.muted else None,
        ],
        className="say",
    )
    slo = next((each.slo for each in context.slos if each.slo.name == found.name), None)
    failed = found.cause_kind == "failures"
    path = (
        requests_path(view, slo, found.since, found.resolved_at, failed=failed)
        if slo
        else incidents.incident_path(view, found)
    )
    links = [link("Show the requests", href=path, className="btn")]
    links += [link("Runbook", href=found.runbook, className="btn")] if found.runbook else []
    quiet = [incidents.end_button(context, silence)] if silence else incidents.silence_buttons(found)
    may_act = context.source.incident_actions.may_act(found.service, found.where.get("environment", ""))
    is_open = found.resolved_at is None
    done = [incidents.acknowledge_button(found), incidents.accept_button(found), *quiet] if is_open and may_act else []
    return html.Div([title, html.Div([*done, *links], className="acts")], className="phead")


def _functions(context: Context, found: Incident) -> Component:
    widest = max(max(each.before_ms, each.after_ms) for each in found.functions)
    head = (("Function", ""), ("Before", "hide"), ("Incident", ""), ("More", "r"), ("Of the growth", "r hide"))
    rows = [
        html.Tr(
            [
                html.Td(
                    source_link(context, each, each.title, service=found.service, version=found.version),
                    className="mono wraps",
                ),
                html.Td(time_bar(each.before_ms, widest), className="hide"),
                html.Td(time_bar(each.after_ms, widest)),
                html.Td(duration(each.growth_ms / 1e3, sign=True), className="r nowrap b"),
                html.Td(percent(each.share), className="r muted hide"),
            ]
        )
        for each in found.functions
    ]
    return card(
        f"Functions that grew in {stage_name(found.functions[0].stage)}",
        table(head, rows, "Functions that grew", css="codes"),
        sub=f"{found.functions[0].stage_words} since the onset, compared with before; estimated from samples",
        tools=link("Your code →", href=incidents.incident_path(context.view, found), className="link"),
        flush=True,
    )


def _deliveries(context: Context, sent: Sequence[Delivery]) -> Component:
    if not sent:
        return card("Deliveries", html.P("No notification was sent.", className="muted"))
    head = (("Channel", ""), ("Message", ""), ("State", ""), ("Tries", "r hide"), ("Time", "r"), ("Response", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(each.channel, className="n"),
                html.Td(each.transition),
                html.Td(pill(_DELIVERY_STATES[each.state], _SHAPES[each.state])),
                html.Td(str(each.attempts), className="r hide"),
                html.Td(incidents.when(context, each.at), className="r muted nowrap"),
                html.Td(each.error, className="hide wraps"),
            ]
        )
        for each in sent
    ]
    return card("Deliveries", table(head, rows, "Deliveries"), flush=True)


def _note_field(context: Context, found: Incident) -> Component | None:
    """Return the place of the field for a note, which `assets/write_actions.js` builds; None if the reader may not add one."""
    if not context.source.incident_actions.may_act(found.service, found.where.get("environment", "")):
        return None
    data = {"data-field": "note", "data-to": f"{INCIDENTS_API}/{quote(found.id, safe='')}/notes"}
    return html.Div(className="note", **attributes(data))


def _acknowledgement(context: Context, found: Incident) -> str:
    if found.ending == "accepted":
        return f"{found.acked_by} accepted it as the new baseline"
    if found.acked_by:
        at = f" at {incidents.when(context, found.acked_at)}" if found.acked_at else ""
        return f"{found.acked_by} acknowledged it{at}"
    return "unacknowledged" if found.resolved_at is None else ""


def _notified_channels(each: Transition) -> str:
    if each.event in ("acknowledged", "unacknowledged", "accepted", "note"):
        return f"by {each.note}"
    return each.note or (several(each.notified, "channel") if each.notified else "none")
