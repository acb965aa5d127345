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
    incident = context.source.incident_actions.incident(name)
    trail: list[tuple[str, str | None]] = [("Incidents", view.link(incidents.PLACE))]
    trail.append((name if incident is None else incident.name, None))
    if incident is None:
        back = link("All incidents", href=view.link(incidents.PLACE), className="btn pri")
        unknown = empty_page_card(
            "No such incident", "Incidents are deleted one year after they ended.", actions=[back]
        )
        return Page(incidents.TITLE, trail, [unknown], incidents.PLACE)
    body: list[Node] = [
        _head(context, incident),
        html.P(incident.impact, className="says"),
        html.Div(
            [
                panel("Chart", lambda: _chart(context, incident), "c7"),
                panel("Evidence", lambda: _evidence(context, incident), "c5"),
            ],
            className="grid",
        ),
        panel("Slow requests", lambda: _slow_requests(context, incident)),
        panel("Functions that grew", lambda: _functions(context, incident)) if incident.functions else None,
        panel("Timeline", lambda: _timeline(context, incident)),
        _note_field(context, incident),
        panel("Similar incidents", lambda: _similar(context, incident)),
        panel("Deliveries", lambda: _deliveries(context, incident.deliveries)),
    ]
    return Page(f"{incident.service}: {incident.name} · {incidents.TITLE}", trail, body, incidents.PLACE)


@dataclass(frozen=True, slots=True)
class _Moment:
    at: datetime
    kind: str
    text: str
    mark: str = ""
    notified: str = ""
    href: str = ""


def _end(context: Context, incident: Incident) -> datetime:
    return incident.resolved_at or context.source.now()


def _moments(context: Context, incident: Incident) -> list[_Moment]:
    start, end = incident.since - CALM_BEFORE, _end(context, incident)
    happened = [*_releases(context, incident, start, end), *_events(context, incident.service, start, end)]
    happened.append(_Moment(incident.since, "Onset", _onset_text(context, incident)))
    happened += (
        _Moment(
            transition.at, transition.event.capitalize(), transition.headline, notified=_notified_channels(transition)
        )
        for transition in incident.transitions
    )
    happened += _silence_moments(context, incident)
    return sorted(happened, key=lambda moment: moment.at)


def _silence_moments(context: Context, incident: Incident) -> Iterator[_Moment]:
    now = context.source.now()
    for silence, ended_by in context.source.incident_actions.silences_of(incident):
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


def _onset_text(context: Context, incident: Incident) -> str:
    if incident.between is None:
        return "The problem started"
    low, high = (f"{moment.astimezone(context.view.zone):%H:%M}" for moment in incident.between)
    return f"The problem started between {low} and {high}"


def _releases(context: Context, incident: Incident, start: datetime, end: datetime) -> Iterator[_Moment]:
    versions = context.source.versions(incident.service, incident.where.get("environment"), start, end)
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


def _chart(context: Context, incident: Incident) -> Component:
    trend, is_burn = incident.course, incident.kind != "tail"
    what = "Burn rate" if is_burn else "Latency"
    if trend is None or trend.highest is None:
        return card(what, html.P("There were no requests to show.", className="muted"), size="c7")
    step = timedelta(seconds=trend.step_seconds)
    start, end = (datetime.fromtimestamp(seconds, UTC) for seconds in (trend.start, trend.end))
    marked = {
        moment.at: moment.mark for moment in _moments(context, incident) if moment.mark and start < moment.at < end
    }
    figure = trend_figure(
        trend,
        TimeAxis(start, end, step, context.view.zone),
        is_burn_rate=is_burn,
        limit=incident.limit,
        onset=incident.between or (incident.since, incident.since),
        marks=dict(list(marked.items())[:_MARKS]),
    )
    highest = (times if is_burn else axis_duration)(trend.highest)
    times_of_steps = pd.to_datetime(
        [trend.start + trend.step_seconds * index for index in range(len(trend.values))], unit="s", utc=True
    )
    frame = pd.DataFrame({"time (UTC)": times_of_steps, "burn rate" if is_burn else "latency (s)": list(trend.values)})
    spoken = f"{what} of each {span(step)} since {incidents.when(context, start)}, at most {highest}; the problem started at {incidents.when(context, incident.since)}."
    return card(
        what, chart("trend", figure, spoken, 220, frame=frame), sub=f"steps of {span(step)}; red: the onset", size="c7"
    )


def _evidence(context: Context, incident: Incident) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(kind, className="muted nowrap"),
                html.Td(link(text, href=href, className="link"), className="wraps"),
            ]
        )
        for kind, text, href in _evidence_rows(context, incident)
    ]
    if not rows:
        text = "No failure, stage, release, function, replica or attribute stands out."
        return card("Evidence", html.P(text, className="muted"), size="c5")
    return card("Evidence", table((("Kind", ""), ("Evidence", "")), rows, "Evidence"), size="c5", flush=True)


def _evidence_rows(context: Context, incident: Incident) -> Iterator[tuple[str, str, str]]:
    view, path = context.view, incidents.incident_path(context.view, incident)
    if incident.cause_kind in ("no_data", "failures"):
        yield (
            incidents.CAUSES[incident.cause_kind],
            incident.cause[:1].upper() + incident.cause[1:],
            incidents.incident_path(view, incident, "traces"),
        )
    if incident.version:
        yield "Release", f"It started with version {incident.version}", view.link("/compare", svc=incident.service)
    for grown in (growth for growth in incident.stages[:2] if growth.share >= _MIN_SHARE):
        amount, name = duration(grown.seconds, sign=True), stage_name(grown.stage)
        text = f"Slow requests spend {amount} in {name}, compared with good ones, {of_the_excess(grown)}"
        if incident.kind == "tail":
            text = f"{name[0].upper()}{name[1:]} grew {amount}, {of_the_excess(grown)}"
        yield "Stage", text, path
    if incident.called:
        yield "Called", incident.called, path
    if incident.replica:
        yield "Replica", incident.replica, incidents.incident_path(view, incident, "replicas")
    for function in incident.functions[:1]:
        yield "Code", f"{function.title}: {function.amount_words}", path
    for cause in incident.shared:
        yield "Attribute", shared_text(cause)[0].upper() + shared_text(cause)[1:], path
    for overrun in incident.overruns[:1]:
        text = f"{stage_name(overrun.stage)} took {duration(overrun.seconds)} of its {duration(overrun.budget_seconds)}"
        yield "Budget", text[0].upper() + text[1:], path


def _slow_requests(context: Context, incident: Incident) -> Component:
    cached, read = context.source.cached, context.source.read
    about = Selection(incident.since, _end(context, incident), service=incident.service, **incident.where)
    slo = next((status.slo for status in context.source.slos() if status.slo.name == incident.name), None)
    above = incident.limit or 0.0 if incident.kind == "tail" else 0.0
    if incident.kind == "no_data" or (slo is None and not above):
        sentence = (
            "There were no requests."
            if incident.kind == "no_data"
            else "Its SLO was removed, so its threshold is unknown."
        )
        return card("Slow requests", html.P(sentence, className="muted"))
    violated = slo.indicator if slo and not above else None
    frame = cached(
        bad_requests, read, about, violated, cause=incident.cause_kind, limit=_SLOW_REQUESTS, above_seconds=above
    )
    title = exemplars_title((frame["status"] == STATUS_ERROR).tolist())
    if not len(frame):
        why = (
            no_exemplar_text(violated, cached(explain_violations, read, about, violated))
            if violated
            else incident.no_exemplars
        )
        return card(title, html.P(why or "No request slower than usual is retained.", className="muted"))
    more = link("All traces →", href=incidents.incident_path(context.view, incident, "traces"), className="link")
    than = f"slower than the usual {axis_duration(above)}" if above else "that violated the objective"
    rows = traces_table(frame, context.view, title)
    return card(title, rows, sub=f"{than}, the slowest of each longest stage first", tools=more, flush=True)


def _timeline(context: Context, incident: Incident) -> Component:
    head = (("Time", ""), ("Event", ""), ("What", ""), ("Notified, or by", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(incidents.when(context, moment.at), className="muted nowrap"),
                html.Td(pill(moment.kind, "out")),
                html.Td(
                    link(moment.text, href=moment.href, className="link") if moment.href else moment.text,
                    className="wraps",
                ),
                html.Td(moment.notified, className="hide"),
            ]
        )
        for moment in _moments(context, incident)
    ]
    return card("Timeline", table(head, rows, "Timeline"), flush=True)


def _similar(context: Context, incident: Incident) -> Component:
    alike = context.source.incident_actions.similar(incident)
    if not alike:
        return card("Similar incidents", html.P("This service had no similar incident before.", className="muted"))
    head = (("When", ""), ("What", ""), ("Done meanwhile", "hide"), ("For", "r hide"), ("Ended", "r"))
    rows = [
        html.Tr(
            [
                html.Td(incidents.when(context, incident.since), className="muted nowrap"),
                html.Td(
                    link(incident.headline, href=context.view.link(incident_page(incident.id)), className="link"),
                    className="wraps",
                ),
                html.Td(_done(context, incident), className="hide wraps"),
                html.Td(span(_end(context, incident) - incident.since), className="r nowrap hide"),
                html.Td(incidents.incident_pill(incident), className="r"),
            ]
        )
        for incident in alike
    ]
    return card("Similar incidents", table(head, rows, "Similar incidents"), flush=True)


def _done(context: Context, incident: Incident) -> str:
    events = _events(context, incident.service, incident.since, _end(context, incident))
    done = [
        *([f"acknowledged by {incident.acked_by}"] if incident.acked_by else []),
        *(moment.text for moment in events[:_TRIED]),
    ]
    return "; ".join(done) or "none recorded"


def _head(context: Context, incident: Incident) -> Component:
    view, now = context.view, context.source.now()
    lasted = span((incident.resolved_at or now) - incident.since)
    facts = [
        f"since {incidents.when(context, incident.since)}",
        f"{'for' if incident.resolved_at else 'open for'} {lasted}",
        _acknowledgement(context, incident),
    ]
    silence = context.source.incident_actions.silence_of(incident) if incident.resolved_at is None else None
    pagerduty_note = incidents.pagerduty_note(context.source, incident)
    title = html.Div(
        [
            html.H1([incidents.severity_pill(incident), incident.headline]),
            html.P(
                [incidents.incident_pill(incident), " ", " · ".join(fact for fact in facts if fact)], className="sub"
            ),
            html.P(pagerduty_note, className="sub") if pagerduty_note else None,
            html.P(incidents.silence_note(context, silence), className="sub") if silence else None,
            html.P(incidents.mute_reason(context, incident), className="sub") if incident.muted else None,
        ],
        className="say",
    )
    slo = next((status.slo for status in context.slos if status.slo.name == incident.name), None)
    failed = incident.cause_kind == "failures"
    path = (
        requests_path(view, slo, incident.since, incident.resolved_at, failed=failed)
        if slo
        else incidents.incident_path(view, incident)
    )
    links = [link("Show the requests", href=path, className="btn")]
    links += [link("Runbook", href=incident.runbook, className="btn")] if incident.runbook else []
    quiet = [incidents.end_button(context, silence)] if silence else incidents.silence_buttons(incident)
    may_act = context.source.incident_actions.may_act(incident.service, incident.where.get("environment", ""))
    is_open = incident.resolved_at is None
    done = (
        [incidents.acknowledge_button(incident), incidents.accept_button(incident), *quiet]
        if is_open and may_act
        else []
    )
    return html.Div([title, html.Div([*done, *links], className="acts")], className="phead")


def _functions(context: Context, incident: Incident) -> Component:
    widest = max(max(function.before_ms, function.after_ms) for function in incident.functions)
    head = (("Function", ""), ("Before", "hide"), ("Incident", ""), ("More", "r"), ("Of the growth", "r hide"))
    rows = [
        html.Tr(
            [
                html.Td(
                    source_link(context, function, function.title, service=incident.service, version=incident.version),
                    className="mono wraps",
                ),
                html.Td(time_bar(function.before_ms, widest), className="hide"),
                html.Td(time_bar(function.after_ms, widest)),
                html.Td(duration(function.growth_ms / 1e3, sign=True), className="r nowrap b"),
                html.Td(percent(function.share), className="r muted hide"),
            ]
        )
        for function in incident.functions
    ]
    return card(
        f"Functions that grew in {stage_name(incident.functions[0].stage)}",
        table(head, rows, "Functions that grew", css="codes"),
        sub=f"{incident.functions[0].stage_words} since the onset, compared with before; estimated from samples",
        tools=link("Your code →", href=incidents.incident_path(context.view, incident), className="link"),
        flush=True,
    )


def _deliveries(context: Context, sent: Sequence[Delivery]) -> Component:
    if not sent:
        return card("Deliveries", html.P("No notification was sent.", className="muted"))
    head = (("Channel", ""), ("Message", ""), ("State", ""), ("Tries", "r hide"), ("Time", "r"), ("Response", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(delivery.channel, className="n"),
                html.Td(delivery.transition),
                html.Td(pill(_DELIVERY_STATES[delivery.state], _SHAPES[delivery.state])),
                html.Td(str(delivery.attempts), className="r hide"),
                html.Td(incidents.when(context, delivery.at), className="r muted nowrap"),
                html.Td(delivery.error, className="hide wraps"),
            ]
        )
        for delivery in sent
    ]
    return card("Deliveries", table(head, rows, "Deliveries"), flush=True)


def _note_field(context: Context, incident: Incident) -> Component | None:
    """Return the place of the field for a note, which `assets/write_actions.js` builds; None if the reader may not add one."""
    if not context.source.incident_actions.may_act(incident.service, incident.where.get("environment", "")):
        return None
    data = {"data-field": "note", "data-to": f"{INCIDENTS_API}/{quote(incident.id, safe='')}/notes"}
    return html.Div(className="note", **attributes(data))


def _acknowledgement(context: Context, incident: Incident) -> str:
    if incident.ending == "accepted":
        return f"{incident.acked_by} accepted it as the new baseline"
    if incident.acked_by:
        at = f" at {incidents.when(context, incident.acked_at)}" if incident.acked_at else ""
        return f"{incident.acked_by} acknowledged it{at}"
    return "unacknowledged" if incident.resolved_at is None else ""


def _notified_channels(transition: Transition) -> str:
    if transition.event in ("acknowledged", "unacknowledged", "accepted", "note"):
        return f"by {transition.note}"
    return transition.note or (several(transition.notified, "channel") if transition.notified else "none")
