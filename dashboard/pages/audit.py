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
    entries = audit_entries(context)
    parts = [several(len(entries), "action"), context.view.window_label[0].lower() + context.view.window_label[1:]]
    title = html.Div([html.H1("Audit log"), html.P(" · ".join(parts), className="sub")])
    body: list[Node] = [html.Div(title, className="phead"), panel("Audit log", lambda: _list(context, entries))]
    return Page("Audit log · Stagelens", [("Audit log", None)], body, PLACE)


def _list(context: Context, entries: Sequence[AuditEntry]) -> Component:
    if not entries:
        longer = link("Last 30 days", href=context.view.here(from_="now-30d", to=None), className="btn")
        text = "Sign-ins and all actions that change something appear here, and are retained for 395 days."
        return card(None, empty("No action in this window", text, actions=[longer]))
    rows = [_row(context, entry) for entry in entries]
    foot = "Older actions are not shown: choose a shorter window." if len(entries) == MAX_ENTRIES else None
    return card("Audit log", table(_HEAD, rows, "Audit log"), foot=foot, flush=True)


def _row(context: Context, entry: AuditEntry) -> Component:
    at = entry.at.astimezone(context.view.zone)
    about: Node = entry.subject
    is_incident = entry.subject.startswith("sl-")
    if is_incident:
        about = link(entry.subject, href=context.view.link(incident_page(entry.subject)), className="mono")
    what: list[Node] = [about]
    if entry.reason:
        what.append(html.Div(entry.reason, className="s wrap"))
    cells = [
        html.Td(f"{at:%-d %b %H:%M:%S}", className="muted", title=f"{at:%-d %b %Y %H:%M:%S %Z}"),
        html.Td(entry.person, className="n"),
        html.Td(entry.action),
        html.Td(what, className="fits hide"),
        html.Td(entry.service, className="hide"),
        html.Td(entry.environment, className="hide"),
        html.Td(_ORIGINS.get(entry.origin, entry.origin), className="hide"),
        html.Td(pill(entry.outcome.capitalize(), _SHAPES.get(entry.outcome, "out")), className="r"),
    ]
    return html.Tr(cells)
