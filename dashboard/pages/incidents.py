"""Incidents: which are open, who looks after them, what nobody is told of; and each of them whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dash import html
from dash.development.base_component import Component

from ...alerts.incidents.silences import Silence
from ...alerts.reader import Delivery, Incident, Transition
from ..components import Node, attributes, card, empty, link, pill, table
from ..format import several, span
from ..view import incident_page
from .bad_requests import requests_path
from .incident_care import accept_button, acknowledge_button, end_button, silence_buttons
from .page import Context, Page, nothing, panel
from .slo_alerts import incident_path

_PLACE = "/incidents"
_TITLE = "Incidents · Stagelens"
_SHAPES = {"sent": "good", "dead": "bad", "superseded": "out", "waiting": "warn", "sending": "warn"}
_WORDS = {
    "sent": "Accepted",
    "dead": "Given up",
    "superseded": "Overtaken",
    "waiting": "Waits",
    "sending": "Being sent",
}
# How an incident ended that did not simply go away.
_ENDINGS = {"accepted": ("Accepted", "out"), "removed": ("Closed", "out"), "no_data": ("Closed", "out")}


def render(context: Context, name: str | None = None) -> Page:
    """Return the page of the incident *name*, or of all of them."""
    view = context.view
    if name is None:
        return Page(_TITLE, [("Incidents", None)], _all(context), _PLACE)
    found = context.source.care.incident(name)
    trail: list[tuple[str, str | None]] = [("Incidents", view.link(_PLACE))]
    trail.append((name if found is None else found.name, None))
    if found is None:
        back = link("All incidents", href=view.link(_PLACE), className="btn pri")
        unknown = nothing("No such incident", "What is over for more than a year is forgotten.", actions=[back])
        return Page(_TITLE, trail, [unknown], _PLACE)
    return Page(f"{found.service}: {found.name} · {_TITLE}", trail, _one(context, found), _PLACE)


def _all(context: Context) -> list[Node]:
    every, silent = context.source.care.incidents(), context.source.care.silences()
    still = [each for each in every if each.state == "open"]
    muted = sum(bool(each.muted) and not each.told_with for each in still)
    said = [f"{several(len(still), 'incident')} open"] + ([f"{muted} told to nobody"] if muted else [])
    title = html.Div([html.H1("Incidents"), html.P(" · ".join(said), className="sub")])
    return [
        html.Div([title], className="phead"),
        panel("Incidents", lambda: _list(context, every)),
        panel("Silences", lambda: _silences(context, silent)),
    ]


def _list(context: Context, every: Sequence[Incident]) -> Component:
    if not every:
        return card(
            "Incidents",
            empty("No incident so far", "When an objective burns, it shows here with all that was told about it."),
        )
    head = (("State", ""), ("What", ""), ("Looked after by", "hide"), ("Since", "r hide"), ("For", "r"))
    ordered = sorted(every, key=lambda each: each.state != "open")
    rows = [_row(context, each) for each in ordered]
    return card("Incidents", table(head, rows, "Incidents"), flush=True)


def _row(context: Context, found: Incident) -> Component:
    href = context.view.link(incident_page(found.id))
    end = found.resolved_at or context.source.now()
    what = [
        link(f"{found.service}: {found.name}", href=href, className="n"),
        html.Div(found.headline, className="s wrap"),
    ]
    if found.muted:
        what.append(html.Div(_why(context, found), className="s wrap"))
    cells = [
        html.Td(_state(found)),
        html.Td(html.Div(what), className="fits"),
        html.Td(_looked_after(found), className="hide"),
        html.Td(_when(context, found.since), className="r muted nowrap hide"),
        html.Td(span(end - found.since), className="r nowrap"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _silences(context: Context, found: Sequence[Silence]) -> Component:
    if not found:
        text = "Nothing is silenced. An incident has a button for it; so has `stagelens alerts silence`."
        return card("Silences", html.P(text, className="muted"))
    head = (("What", ""), ("By", "hide"), ("Until", "r hide"), ("", "r"))
    rows = [
        html.Tr(
            [
                html.Td(
                    [html.Span(_matchers(each), className="n"), html.Div(each.comment, className="s wrap")],
                    className="fits",
                ),
                html.Td(each.author, className="hide"),
                html.Td(_when(context, each.ends_at), className="r muted nowrap hide"),
                html.Td(end_button(each, _matchers(each)), className="r"),
            ]
        )
        for each in found
    ]
    return card("Silences", table(head, rows, "Silences"), sub=several(len(found), "silence"), flush=True)


def _one(context: Context, found: Incident) -> list[Node]:
    return [
        _head(context, found),
        html.P(found.impact, className="says"),
        panel("What happened", lambda: _history(context, found.transitions)),
        panel("What was sent", lambda: _deliveries(context, found.deliveries)),
    ]


def _head(context: Context, found: Incident) -> Component:
    view, now = context.view, context.source.now()
    lasted = span((found.resolved_at or now) - found.since)
    said = [
        f"since {_when(context, found.since)}",
        f"{'for' if found.resolved_at else 'open for'} {lasted}",
        _care(found),
    ]
    silence = context.source.care.silence_of(found) if found.resolved_at is None else None
    title = html.Div(
        [
            html.H1([_state(found), found.headline]),
            html.P(" · ".join(each for each in said if each), className="sub"),
            html.P(_silenced(context, silence), className="sub") if silence else None,
            html.P(_why(context, found), className="sub") if found.muted else None,
        ],
        className="say",
    )
    slo = next((each.slo for each in context.slos if each.slo.name == found.name), None)
    path = requests_path(view, slo, found.since, found.resolved_at) if slo else incident_path(view, found)
    look = link("See the requests", href=path, className="btn")
    quiet = [end_button(silence, _matchers(silence))] if silence else silence_buttons(found)
    done = [] if found.resolved_at else [acknowledge_button(found), accept_button(found), *quiet]
    return html.Div([title, html.Div([*done, look], className="acts")], className="phead")


def _silenced(context: Context, silence: Silence) -> str:
    """Say until when notifications are silenced: at once, although the evaluator applies it only with its next evaluation."""
    return f"Silenced until {_when(context, silence.ends_at)} by {silence.author}"


def _history(context: Context, happened: Sequence[Transition]) -> Component:
    head = (("Time", ""), ("What", ""), ("Told", ""), ("As it was then", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(_when(context, each.at), className="muted nowrap"),
                html.Td(pill(each.event.capitalize(), "out")),
                html.Td(_told(each)),
                html.Td(each.headline, className="hide wrap"),
            ]
        )
        for each in happened
    ]
    return card("What happened", table(head, rows, "What happened"), flush=True)


def _deliveries(context: Context, sent: Sequence[Delivery]) -> Component:
    if not sent:
        return card("What was sent", html.P("Nothing was sent to anybody.", className="muted"))
    head = (("Channel", ""), ("Message", ""), ("State", ""), ("Tries", "r hide"), ("Time", "r"), ("Answer", "hide"))
    rows = [
        html.Tr(
            [
                html.Td(each.channel, className="n"),
                html.Td(each.transition),
                html.Td(pill(_WORDS[each.state], _SHAPES[each.state])),
                html.Td(str(each.attempts), className="r hide"),
                html.Td(_when(context, each.at), className="r muted nowrap"),
                html.Td(each.error, className="hide wrap"),
            ]
        )
        for each in sent
    ]
    return card("What was sent", table(head, rows, "What was sent"), flush=True)


def _why(context: Context, found: Incident) -> list[Node]:
    """Say why nobody is told, with a link to the incident that is told instead."""
    lead = context.source.care.incident(found.told_with) if found.told_with else None
    if lead is None:
        return [f"Nobody is told: {found.muted}"]
    href = context.view.link(incident_page(lead.id))
    return ["Told with ", link(f"{lead.service}: {lead.name}", href=href, className="link")]


def _state(found: Incident) -> Component:
    if found.resolved_at is not None:
        return pill(*_ENDINGS.get(found.ending, ("Resolved", "good")))
    return pill(found.severity.capitalize(), "bad" if found.severity == "page" else "warn")


def _looked_after(found: Incident) -> Node:
    if found.acked_by:
        return found.acked_by
    return html.Span("nobody" if found.resolved_at is None else "", className="muted")


def _care(found: Incident) -> str:
    if found.ending == "accepted":
        return f"{found.acked_by} accepted it as the new normal"
    if found.acked_by:
        return f"{found.acked_by} looks after it"
    return "nobody looks after it" if found.resolved_at is None else ""


def _told(each: Transition) -> str:
    if each.event in ("acknowledged", "accepted"):
        return f"by {each.note}"
    return each.note or (several(each.told, "channel") if each.told else "nobody")


def _matchers(silence: Silence) -> str:
    return ", ".join(f"{key} {value}" for key, value in silence.matchers.items())


def _when(context: Context, at: datetime) -> str:
    return f"{at.astimezone(context.view.zone):%-d %b %H:%M}"
