"""Events page: releases, incidents and reported events of all sources, newest first, grouped by day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import CALM_BEFORE
from ...alerts.reader import Incident
from ..ui.components import Node, attributes, card, code_block, empty, link, link_tabs, pill, table
from ..ui.format import count, several, span
from ..view import View, incident_page, service_path, slo_path
from .page import Context, Page, panel, records

# Values of `kind`, in the order of their links.
KINDS = {
    "release": "Releases",
    "incident": "Incidents",
    "deploy": "Deploys",
    "config": "Config",
    "advice": "Advice",
    "note": "Notes",
}
# End states other than resolved: title, badge, symbol.
_ENDINGS = {
    "removed": ("SLO removed", "Closed", "out"),
    "no_data": ("no more data", "Closed", "out"),
    "accepted": ("accepted as new baseline", "Accepted", "out"),
}
_PLACE = "/events"
# Maximum number of events in the list; a shorter window or a filter shows the others.
_MOST = 500
_EXAMPLE_COMMAND = 'stagelens event "v1.2 is out" --service shop --kind deploy --key v1.2'


def render(context: Context) -> Page:
    view, every = context.view, timeline_events(context)
    kind = view.choice("kind", "", *KINDS)
    shown = [event for event in every if kind in ("", event.kind)]
    trail: list[tuple[str, str | None]] = [("Events", view.link(_PLACE) if context.service else None)]
    if context.service:
        trail.append((context.service, None))
    body: list[Node] = [_head(context, every), panel("Events", lambda: _days(context, shown))]
    return Page("Events · Stagelens", trail, body, _PLACE)


def _head(context: Context, every: Sequence[TimelineEvent]) -> Component:
    view = context.view
    counts = Counter(event.kind for event in every)
    parts = [several(len(every), "event"), view.window_label[0].lower() + view.window_label[1:]]
    if context.service:
        parts.append(f"of {context.service}")
    options = {"": ("All", view.here(kind=None))}
    options |= {
        kind: (f"{name} {count(counts[kind])}" if counts[kind] else name, view.here(kind=kind))
        for kind, name in KINDS.items()
    }
    title = html.Div([html.H1("Events"), html.P(" · ".join(parts), className="sub")])
    tabs = link_tabs("Kind", options, view.choice("kind", "", *KINDS))
    every_service = link("All services", href=view.here(svc=None), className="btn") if context.service else None
    return html.Div([title, html.Span(className="grow"), every_service, tabs], className="phead")


def _days(context: Context, shown: Sequence[TimelineEvent]) -> Component:
    if not shown:
        return card(None, _no_events(context))
    zone = context.view.zone
    days = groupby(shown[:_MOST], key=lambda event: event.at.astimezone(zone).date())
    cards = [_day(context, day, list(events)) for day, events in days]
    if len(shown) > _MOST:
        cards.append(
            html.P(
                f"{several(len(shown) - _MOST, 'older event')} not shown: choose a shorter window.", className="muted"
            )
        )
    return html.Div(cards, className="stack")


def _no_events(context: Context) -> Component:
    view = context.view
    filtered = view.text("kind") or context.service
    actions = (
        [link("All kinds and services", href=view.here(kind=None, svc=None), className="btn pri")] if filtered else []
    )
    longer = link("Last 30 days", href=view.here(from_="now-30d", to=None), className="btn")
    return empty(
        "No event in this window",
        "New versions and alerts appear automatically. Report other events from your pipelines:",
        code_block(_EXAMPLE_COMMAND),
        actions=[*actions, longer],
    )


def _day(context: Context, day: date, events: Sequence[TimelineEvent]) -> Component:
    head = (("Time", ""), ("Kind", ""), ("Service", "hide"), ("What", ""))
    name = f"{day:%A, %-d %B %Y}"
    rows = [_row(context, event) for event in events]
    return card(
        name, table(head, rows, f"Events of {name}", css="events"), sub=several(len(events), "event"), flush=True
    )


def _row(context: Context, event: TimelineEvent) -> Component:
    view, at = context.view, event.at.astimezone(context.view.zone)
    service: Node = html.Span("all", className="muted")
    if event.service:
        service = link(event.service, href=view.here(svc=event.service), title="Only this service")
    what: list[Node] = [link(event.title, href=event.href, className="n")]
    if event.text:
        what.append(html.Div(event.text, className="s"))
    if event.source:
        elsewhere = attributes({"target": "_blank", "rel": "noreferrer"})
        what.append(html.Div(html.A("Source", href=event.source, className="link", **elsewhere), className="s"))
    cells = [
        html.Td(f"{at:%H:%M}", className="muted nowrap", title=f"{at:%-d %b %Y %H:%M:%S}"),
        html.Td(pill(event.badge, event.shape)),
        html.Td(service, className="hide"),
        html.Td(html.Div(what)),
    ]
    return html.Tr(cells, **attributes({"data-href": event.href}))


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    at: datetime
    kind: str
    service: str
    title: str
    text: str
    badge: str
    shape: str
    href: str
    source: str = ""


def timeline_events(context: Context) -> list[TimelineEvent]:
    view = context.view
    events = [*_releases(context), *_incidents(context), *_reported(context)]
    wanted = (
        event
        for event in events
        if view.start <= event.at < view.happened_before
        and (context.service is None or event.service in ("", context.service))
    )
    return sorted(wanted, key=lambda event: event.at, reverse=True)


def _releases(context: Context) -> Iterator[TimelineEvent]:
    view = context.view
    releases = context.source.cached(context.source.read.releases, view.text("env"))
    # The first version of a service is not a release, but the start of the history.
    before = releases.groupby("service")["version"].shift()
    for row, last in zip(records(releases), before, strict=True):
        if pd.isna(last):
            continue
        name, version = str(row["service"]), str(row["version"])
        href = view.link("/compare", svc=name, a=str(last), b=version)
        at = row["first_seen"].to_pydatetime()
        yield TimelineEvent(at, "release", name, f"{version} first seen", f"after {last}", "Release", "out", href)


def _incidents(context: Context) -> Iterator[TimelineEvent]:
    for incident in context.source.incidents_between(context.view.start, context.view.happened_before):
        # Regressions and silences have no objective, and a removed objective is unknown.
        of_slo = incident.kind not in ("tail", "no_data") and incident.ending != "removed"
        href = _window(context.view, slo_path(incident.name) if of_slo else incident_page(incident.id), incident)
        shape = "bad" if incident.severity == "page" else "warn"
        opened = incident.headline if incident.resolved_at is None else f"{incident.name} {incident.worst}"
        yield TimelineEvent(
            incident.opened_at, "incident", incident.service, f"{incident.name}: alert", opened, "Opened", shape, href
        )
        for at, transition in _updates(incident):
            title = f"{incident.name}: {transition}"
            yield TimelineEvent(at, "incident", incident.service, title, "", transition.capitalize(), shape, href)
        if incident.resolved_at is not None:
            text = f"{incident.headline}, {span(incident.resolved_at - incident.opened_at)} after the alert"
            over, badge, end = _ENDINGS.get(incident.ending, ("over", "Resolved", "good"))
            title = f"{incident.name}: {over}"
            yield TimelineEvent(incident.resolved_at, "incident", incident.service, title, text, badge, end, href)


def _updates(incident: Incident) -> Iterator[tuple[datetime, str]]:
    updates: dict[tuple[str, int], datetime] = {}
    number = 0
    for delivery in incident.deliveries:
        if delivery.transition in ("updated", "reopened"):
            number += delivery.channel == incident.deliveries[0].channel
            key = delivery.transition, number
            updates[key] = min(delivery.at, updates.get(key, delivery.at))
    yield from ((at, transition) for (transition, _), at in updates.items())


def _reported(context: Context) -> Iterator[TimelineEvent]:
    view, read = context.view, context.source.read
    for row in records(context.source.cached(read.events, view.start, view.happened_before, service=context.service)):
        at, service = row["at"].to_pydatetime(), str(row["service"])
        kind, key, link = (str(row[name]) for name in ("kind", "key", "link"))
        text = str(row["text"])
        title = f"{key}: {text}" if key and key not in text else text
        page, elsewhere = (link, "") if link.startswith("/") else (_page_around(view, service, at), link)
        yield TimelineEvent(at, kind, service, title, "", kind.capitalize(), "out", page, elsewhere)


def _window(view: View, path: str, incident: Incident) -> str:
    end = None if incident.resolved_at is None else _milliseconds(incident.resolved_at)
    return view.link(path, from_=_milliseconds(incident.since - CALM_BEFORE), to=end)


def _page_around(view: View, service: str, at: datetime) -> str:
    half = (view.end - view.start) / 2
    end = min(at + half, view.end)
    moments = {
        "from_": _milliseconds(end - 2 * half),
        "to": None if end == view.end and view.live else _milliseconds(end),
    }
    return view.link(service_path(service) if service else "/", **moments)


def _milliseconds(at: datetime) -> str:
    return str(int(at.timestamp() * 1000))
