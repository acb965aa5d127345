"""Audit log page: who changed what in the window, from where, and with which outcome; for admins."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...store.audit import AuditEntry
from ..ui.components import Node, card, empty, link, pill, table
from ..ui.format import several
from ..view import incident_page
from .page import Context, Page, panel

PLACE = "/audit"
# Maximum number of entries; a shorter window shows the others.
MAX_ENTRIES = 1000
_SHAPES = {"done": "good", "refused": "warn", "failed": "bad"}
_ORIGINS = {
    "dashboard": "Dashboard",
    "api": "API",
    "slack": "Slack",
    "pagerduty": "PagerDuty",
    "command line": "Command line",
}
_HEAD: Sequence[tuple[Node, str]] = (
    ("Time", ""),
    ("Who", ""),
    ("Action", ""),
    ("About", "hide"),
    ("Service", "hide"),
    ("Environment", "hide"),
    ("From", "hide"),
    ("Outcome", "r"),
)


def audit_entries(context: Context) -> list[AuditEntry]:
    """Return the newest entries in the window, at most `MAX_ENTRIES`; uncached, because entries are no data of a service."""
    view = context.view
    return context.source.read.audit(view.start, view.happened_before, MAX_ENTRIES)


def render(context: Context) -> Page:
    found = audit_entries(context)
    parts = [several(len(found), "action"), context.view.window_label[0].lower() + context.view.window_label[1:]]
    title = html.Div([html.H1("Audit log"), html.P(" · ".join(parts), className="sub")])
    body: list[Node] = [html.Div(title, className="phead"), panel("Audit log", lambda: _list(context, found))]
    return Page("Audit log · Stagelens", [("Audit log", None)], body, PLACE)


def _list(context: Context, found: Sequence[AuditEntry]) -> Component:
    if not found:
        longer = link("Last 30 days", href=context.view.here(from_="now-30d", to=None), className="btn")
        text = "Sign-ins and all actions that change something appear here, and are retained for 395 days."
        return card(None, empty("No action in this window", text, actions=[longer]))
    rows = [_row(context, each) for each in found]
    foot = "Older actions are not shown: choose a shorter window." if len(found) == MAX_ENTRIES else None
    return card("Audit log", table(_HEAD, rows, "Audit log"), foot=foot, flush=True)


def _row(context: Context, found: AuditEntry) -> Component:
    at = found.at.astimezone(context.view.zone)
    about: Node = found.subject
    is_incident = found.subject.startswith("sl-")
    if is_incident:
        about = link(found.subject, href=context.view.link(incident_page(found.subject)), className="mono")
    what: list[Node] = [about]
    if found.reason:
        what.append(html.Div(found.reason, className="s wrap"))
    cells = [
        html.Td(f"{at:%-d %b %H:%M:%S}", className="muted", title=f"{at:%-d %b %Y %H:%M:%S %Z}"),
        html.Td(found.person, className="n"),
        html.Td(found.action),
        html.Td(what, className="fits hide"),
        html.Td(found.service, className="hide"),
        html.Td(found.environment, className="hide"),
        html.Td(_ORIGINS.get(found.origin, found.origin), className="hide"),
        html.Td(pill(found.outcome.capitalize(), _SHAPES.get(found.outcome, "out")), className="r"),
    ]
    return html.Tr(cells)
