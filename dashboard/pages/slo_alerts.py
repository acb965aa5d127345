"""The alert rules of an objective as they stand, and the history of what was told to whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import CALM_BEFORE
from ...alerts.evaluation.slo_status import RuleStatus, SloState, SloStatus
from ...alerts.reader import Delivery, Incident
from ...core.stages import label
from ..components import Node, attributes, card, link, status, swatch, table
from ..format import percent, span, times
from ..view import PART, View, incident_page, service_path
from .page import Context

_MAX_INCIDENTS = 20
# What rules of an objective say that is not judged: word, shape, why.
_UNJUDGED: dict[SloState, tuple[str, str, str]] = {
    "no_data": ("No data", "none", "No request came in the last hour"),
    "stale": ("Not judged", "stale", "The collector does not work; these are the last burn rates that are known"),
    "maintenance": ("Paused", "paused", "Nobody is told during planned work, whose requests do not count"),
}
# How an incident ended that did not simply go away: word, why.
_ENDINGS = {
    "removed": ("Closed", "It is not watched any more"),
    "no_data": ("Closed", "No data came any more"),
    "accepted": ("Accepted", "Somebody accepted it as the new normal"),
}
_SENDING = {"waiting": "waits", "sending": "is being sent", "dead": "given up", "superseded": "overtaken"}


def rules_card(found: SloStatus) -> Component:
    """Return each rule with both of its burn rates now, and whether it fires."""
    head: Sequence[tuple[Node, str]] = (
        ("State", ""),
        ("Rule", ""),
        ("Long", "r"),
        ("Short", "r"),
        ("Budget spent", "r hide"),
    )
    rows = [_rule(each, found) for each in found.rules]
    now = html.Span([status(found.state)], className="muted")
    foot = "A rule fires when both windows burn at its threshold or faster."
    return card("Multi-window alerts", table(head, rows, "Alert rules"), tools=now, foot=foot, flush=True)


def history_card(context: Context, found: SloStatus) -> Component:
    """Return the incidents, newest first: of this objective, then of the others."""
    incidents = sorted(context.source.incidents()[:_MAX_INCIDENTS], key=lambda each: each.name != found.slo.name)
    if not incidents:
        return card("Alert history", html.P("No incident so far.", className="muted"))
    head = (("State", ""), ("What", ""), ("Stage", "hide"), ("Told", "hide"), ("Since", "r"), ("For", "r hide"))
    rows = [_incident(context, each) for each in incidents]
    every = link("All incidents and silences", href=context.view.link("/incidents"), className="link")
    return card("Alert history", table(head, rows, "Alert history"), tools=every, flush=True)


def incident_path(view: View, found: Incident) -> str:
    """Return the address of the service's page at the time of *found*, with the calm before it, about what it was about."""
    start = found.since - CALM_BEFORE
    end = None if found.resolved_at is None else str(int(found.resolved_at.timestamp() * 1000))
    keys = {**PART, "env": "environment"}
    about = {key: found.where[name] for key, name in keys.items() if name in found.where}
    return view.link(service_path(found.service), from_=str(int(start.timestamp() * 1000)), to=end, p="99", **about)


def _rule(found: RuleStatus, slo: SloStatus) -> Component:
    tier = found.tier
    spent = percent(tier.burn * (tier.long / slo.slo.window))
    cells = [
        html.Td(_rule_state(found, slo.state)),
        html.Td([f"{tier.severity.capitalize()} at ", html.B(times(tier.burn))], className="nowrap"),
        html.Td(_burn(found.long_burn, tier.burn, tier.long), className="r"),
        html.Td(_burn(found.short_burn, tier.burn, tier.short), className="r"),
        html.Td(spent, className="r muted hide", title="Of the budget, within the long window"),
    ]
    return html.Tr(cells)


def _rule_state(found: RuleStatus, slo_state: SloState) -> Component:
    """Return the state as shape and word: what both windows say, where they say anything."""
    if slo_state in _UNJUDGED:
        return _state(*_UNJUDGED[slo_state])
    burning = [burn >= found.tier.burn for burn in (found.long_burn, found.short_burn)]
    if found.fires:
        return _state("Firing", "bad" if found.tier.severity == "page" else "warn")
    if all(burning):
        return _state("Too few", "none", "Both windows burn, but too few requests were bad, or it is too young to tell")
    if burning[1]:
        return _state("Pending", "warn", "The short window burns, the long one does not yet")
    if burning[0]:
        return _state("Calming", "none", "The long window still remembers; the short one is calm")
    return _state("Quiet", "good")


def _burn(burn: float, threshold: float, window: timedelta) -> list[Node]:
    return [html.Span(times(burn), className="b" if burn >= threshold else ""), f" in {span(window)}"]


def _incident(context: Context, found: Incident) -> Component:
    view = context.view
    end = found.resolved_at or context.source.now()
    since = found.since.astimezone(view.zone)
    href = incident_path(view, found)
    stage = found.stages[0].stage if found.stages else None
    whole = view.link(incident_page(found.id))
    what = [
        link(found.name, href=whole, className="n", title="Its history"),
        html.Div(found.headline, className="s wrap"),
    ]
    cells = [
        html.Td(_incident_state(found)),
        html.Td(html.Div(what), className="fits"),
        html.Td(html.Span([swatch(stage), label(stage)], className="dom") if stage else None, className="hide"),
        html.Td(_told(view, found), className="hide"),
        html.Td(f"{since:%-d %b %H:%M}", className="r muted nowrap", title=f"{found.severity}, {found.id}"),
        html.Td(span(end - found.since), className="r hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _incident_state(found: Incident) -> Component:
    if found.state == "open":
        return _state("Open", "bad" if found.severity == "page" else "warn", found.severity)
    word, why = _ENDINGS.get(found.ending, ("Resolved", found.severity))
    return _state(word, "none" if found.ending in _ENDINGS else "good", why)


def _told(view: View, found: Incident) -> Node:
    """Return what was sent to each channel, and what went wrong with it."""
    if not found.deliveries:
        return html.Span("nobody", className="muted", title=found.muted or "The SLO file names no channel for it")
    return html.Div([_delivery(view, each) for each in found.deliveries], className="told")


def _delivery(view: View, found: Delivery) -> Component:
    at = f"{found.at.astimezone(view.zone):%H:%M}"
    if found.state == "sent":
        return html.Div([html.B(found.channel), f" {found.transition} {at}"], className="s")
    words = (
        f" {found.transition}: {_SENDING[found.state]} after {found.attempts} tries"
        if found.attempts
        else (f" {found.transition}: {_SENDING[found.state]}")
    )
    kind = "bad" if found.state == "dead" else "muted"
    return html.Div([html.B(found.channel), html.Span(words, className=kind)], className="s", title=found.error or None)


def _state(word: str, shape: str, said: str = "") -> Component:
    mark = html.I(className=f"dot {shape}")
    return html.Span([mark, word], className=f"pill {shape}", title=said or None)
