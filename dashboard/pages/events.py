"""What happened: releases, incidents, and what people and pipelines told; newest first, day by day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import groupby

from dash import html
from dash.development.base_component import Component

from ..components import Node, attributes, card, empty, link, link_tabs, pill, table
from ..format import count, several
from .page import Context, Page, panel
from .timeline import KINDS, Happening, happenings

_PLACE = "/events"
# More than anybody reads; a shorter window or a filter shows the rest.
_MOST = 500
_TELL = 'stagelens event "v1.2 is out" --service shop --kind deploy --key v1.2'


def render(context: Context) -> Page:
    """Return what happened in the window, of the kind and the service that the address names."""
    view, every = context.view, happenings(context)
    kind = view.choice("kind", "", *KINDS)
    shown = [each for each in every if kind in ("", each.kind)]
    trail: list[tuple[str, str | None]] = [("Events", view.link(_PLACE) if context.service else None)]
    if context.service:
        trail.append((context.service, None))
    body: list[Node] = [_head(context, every), panel("Events", lambda: _days(context, shown))]
    return Page("Events · Stagelens", trail, body, _PLACE)


def _head(context: Context, every: Sequence[Happening]) -> Component:
    view = context.view
    counts = Counter(each.kind for each in every)
    said = [several(len(every), "event"), view.window_label[0].lower() + view.window_label[1:]]
    if context.service:
        said.append(f"of {context.service}")
    options = {"": ("All", view.here(kind=None))}
    options |= {
        kind: (f"{name} {count(counts[kind])}" if counts[kind] else name, view.here(kind=kind))
        for kind, name in KINDS.items()
    }
    title = html.Div([html.H1("Events"), html.P(" · ".join(said), className="sub")])
    tabs = link_tabs("Kind", options, view.choice("kind", "", *KINDS))
    every_service = link("All services", href=view.here(svc=None), className="btn") if context.service else None
    return html.Div([title, html.Span(className="grow"), every_service, tabs], className="phead")


def _days(context: Context, shown: Sequence[Happening]) -> Component:
    if not shown:
        return card(None, _nothing(context))
    zone = context.view.zone
    days = groupby(shown[:_MOST], key=lambda each: each.at.astimezone(zone).date())
    cards = [_day(context, day, list(found)) for day, found in days]
    if len(shown) > _MOST:
        cards.append(
            html.P(
                f"{several(len(shown) - _MOST, 'older event')} left out: choose a shorter window.", className="muted"
            )
        )
    return html.Div(cards, className="stack")


def _nothing(context: Context) -> Component:
    view = context.view
    filtered = view.text("kind") or context.service
    actions = (
        [link("All kinds and services", href=view.here(kind=None, svc=None), className="btn pri")] if filtered else []
    )
    longer = link("Last 30 days", href=view.here(from_="now-30d", to=None), className="btn")
    return empty(
        "Nothing happened in this window",
        "New versions and alerts show here by themselves. Pipelines tell of the rest:",
        html.Pre(_TELL, className="code mono", tabIndex=0),
        actions=[*actions, longer],
    )


def _day(context: Context, day: date, found: Sequence[Happening]) -> Component:
    head = (("Time", ""), ("Kind", ""), ("Service", "hide"), ("What", ""))
    name = f"{day:%A, %-d %B %Y}"
    rows = [_row(context, each) for each in found]
    return card(
        name, table(head, rows, f"Events of {name}", css="events"), sub=several(len(found), "event"), flush=True
    )


def _row(context: Context, found: Happening) -> Component:
    view, at = context.view, found.at.astimezone(context.view.zone)
    service: Node = html.Span("all", className="muted")
    if found.service:
        service = link(found.service, href=view.here(svc=found.service), title="Only this service")
    what: list[Node] = [link(found.title, href=found.href, className="n")]
    if found.text:
        what.append(html.Div(found.text, className="s"))
    if found.source:
        elsewhere = attributes({"target": "_blank", "rel": "noreferrer"})
        what.append(html.Div(html.A("Source", href=found.source, className="link", **elsewhere), className="s"))
    cells = [
        html.Td(f"{at:%H:%M}", className="muted nowrap", title=f"{at:%-d %b %Y %H:%M:%S}"),
        html.Td(pill(found.badge, found.shape)),
        html.Td(service, className="hide"),
        html.Td(html.Div(what)),
    ]
    return html.Tr(cells, **attributes({"data-href": found.href}))
