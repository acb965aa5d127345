"""Incidents page: the list of incidents and silences, and the actions on incidents.

The module also has the cards of the SLO page for alert rules and alert history. Action buttons contain the request that
`write_actions.js` sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import CALM_BEFORE
from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.incidents.lifecycle import IncidentStatus
from ...alerts.incidents.silences import Silence
from ...alerts.reader import Delivery, Incident, IncidentGroup, group_incidents
from ...alerts.regression.record import AlertCounts, AlertRecord, count_alerts
from ...analysis.slo_status import RuleState, RuleStatus, SloState
from ...core.stages import label
from ...questions.changed import CauseKind
from ..incident_actions import silenced
from ..source import Source
from ..ui.components import Node, Nodes, attributes, card, empty, link, pill, status, swatch, table, with_code
from ..ui.format import percent, several, signed_change, span, times, whole
from ..view import INCIDENTS_API, SCOPE, SILENCES_API, View, incident_page, service_path
from .page import Context, Page, panel

_MAX_INCIDENTS = 20
# Factor on the required evidence from which a service counts as stricter than usual.
_STRICTER = 1.005
# Rule states of an objective that is not evaluated: word, symbol, reason.
_UNJUDGED: dict[SloState, tuple[str, str, str]] = {
    "stale": ("Not evaluated", "stale", "The collector is failing; these are the last known burn rates"),
    "maintenance": ("Paused", "paused", "Notifications are paused during maintenance; its requests do not count"),
}
# States of other rules: word, symbol, reason; a firing rule has the symbol of its severity.
_RULE_STATES: dict[RuleState, tuple[str, str, str]] = {
    "too_few": ("Too few", "none", "Both windows exceed it, but bad requests are too few, or the data is too recent"),
    "short_only": ("Pending", "warn", "Only the short window is above its threshold"),
    "long_only": ("Recovering", "none", "Only the long window is above its threshold"),
    "quiet": ("Quiet", "good", ""),
    "no_data": ("No data", "none", "No request in its short window"),
}
# Causes other than a stage.
CAUSES: dict[CauseKind, str] = {"no_data": "No data", "failures": "Failures", "latency": "Latency", "none": ""}
# Reasons of end states other than resolved.
_ENDINGS = {"removed": "Its SLO was removed", "no_data": "No more data", "accepted": "Accepted as new baseline"}
_DELIVERY_WORDS = {"waiting": "pending", "sending": "sending", "dead": "dropped", "superseded": "superseded"}
# Durations of the silence buttons.
_DAY = "24h"
_LENGTHS = ("1h", "8h", _DAY)
PLACE = "/incidents"
TITLE = "Incidents · Stagelens"
# States: word, badge kind; an open incident has the badge of its severity.
_STATUS_PILLS: dict[IncidentStatus, tuple[str, str]] = {
    "open": ("Open", ""),
    "acknowledged": ("Acknowledged", ""),
    "recovering": ("Recovering", ""),
    "no_data": ("No data", "stale"),
    "resolved": ("Resolved", "good"),
    "accepted": ("Accepted", "out"),
    "closed": ("Closed", "out"),
}
_SEVERITY_PILLS = {"page": "bad", "ticket": "warn"}
# Maximum number of rows, and the start of the list of all incidents, which are retained for 395 days.
_MAX_ROWS, _ALL = 200, "now-395d"


def render(context: Context) -> Page:
    return Page(TITLE, [("Incidents", None)], _body(context), PLACE)


def _body(context: Context) -> list[Node]:
    view = context.view
    environment, elsewhere, incidents = view.text("env"), list[Incident](), list[Incident]()
    for incident in context.source.incident_actions.between(view.start, view.past_end):
        is_here = not environment or incident.where.get("environment") in (None, environment)
        (incidents if is_here else elsewhere).append(incident)
    still = [incident for incident in incidents if incident.state == "open"]
    muted = sum(bool(incident.muted) and not incident.notified_with for incident in still)
    counts = [f"{several(len(still), 'incident')} open"] + ([f"{muted} without notification"] if muted else [])
    title = html.Div([html.H1("Incidents"), html.P(" · ".join([*counts, view.window_phrase]), className="sub")])
    return [
        html.Div([title], className="phead"),
        panel("Incidents", lambda: _list(context, incidents, elsewhere)),
        panel("Silences", lambda: _silences(context, context.source.incident_actions.silences())),
    ]


def _list(context: Context, incidents: Sequence[Incident], elsewhere: Sequence[Incident]) -> Component:
    foot, title = _outside(context, elsewhere), "Incidents"
    if not incidents:
        if foot is None:
            return card(title, empty("No incident so far", "Incidents and their notifications appear here."))
        return card(title, empty(f"No incident was open {context.view.window_phrase}", foot))
    head = (
        ("State", ""),
        ("Severity", ""),
        ("What", ""),
        ("Acknowledged by", "hide"),
        ("Since", "r hide"),
        ("For", "r"),
    )
    groups = group_incidents(incidents)
    rows = [_row(context, group) for group in groups[:_MAX_ROWS]]
    cut = f"{len(groups) - _MAX_ROWS} more rows; choose a shorter window. " if len(groups) > _MAX_ROWS else None
    sub = several(len(incidents), "incident") + (
        f" in {several(len(groups), 'row')}" if len(groups) < len(incidents) else ""
    )
    return card(
        title, table(head, rows, title, css="incs"), sub=sub, foot=[cut, foot] if cut or foot else None, flush=True
    )


def _outside(context: Context, elsewhere: Sequence[Incident]) -> Component | None:
    view = context.view
    number, still = context.source.incident_actions.outside(view.start, view.past_end)
    number, still = number + len(elsewhere), still + sum(incident.state == "open" for incident in elsewhere)
    if not number:
        return None
    limits = "this window and environment" if view.text("env") else "this window"
    text = f"{several(number, 'more incident')} outside of {limits}, {still or 'none'} of them open. "
    return html.Span([text, link("Show all", href=view.here(from_=_ALL, to=None, env=None), className="link")])


def _row(context: Context, group: IncidentGroup) -> Component:
    incident, href = group.lead, context.view.link(incident_page(group.lead.id))
    what: list[Node] = [
        link(f"{incident.service}: {incident.name}", href=href, className="n"),
        html.Div(incident.headline, className="s wrap"),
        html.Div(mute_reason(context, incident), className="s wrap") if incident.muted else None,
        _members(context, group) if group.others else None,
    ]
    cells = [
        html.Td(incident_pill(incident)),
        html.Td(severity_pill(incident)),
        html.Td(html.Div(what), className="fits"),
        html.Td(_acknowledged_by(incident), className="hide"),
        html.Td(when(context, incident.since), className="r muted nowrap hide"),
        html.Td(_length(context, incident), className="r nowrap"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _members(context: Context, group: IncidentGroup) -> Component:
    others = group.others
    still = sum(incident.state == "open" for incident in others)
    services = len({incident.service for incident in others})
    counts = [f"{several(len(others), 'more incident')} in {several(services, 'service')}", f"{still or 'none'} open"]
    items = [
        html.Li(
            [
                incident_pill(incident),
                severity_pill(incident),
                link(
                    f"{incident.service}: {incident.name}",
                    href=context.view.link(incident_page(incident.id)),
                    className="link",
                ),
                html.Span(
                    f"since {when(context, incident.since)}, for {_length(context, incident)}", className="muted"
                ),
                html.Span(mute_reason(context, incident), className="muted")
                if incident.muted and not incident.notified_with
                else None,
            ]
        )
        for incident in others
    ]
    summary = html.Summary(f"Notified together with {', '.join(counts)}", className="link")
    return html.Details([summary, html.Ul(items)], className="members")


def _length(context: Context, incident: Incident) -> str:
    return span((incident.resolved_at or context.source.now()) - incident.since)


def _silences(context: Context, silences: Sequence[Silence]) -> Component:
    if not silences:
        text = "No silences. Add one with the button of an incident or with `stagelens alerts silence`."
        return card("Silences", html.P(with_code(text), className="muted"))
    head = (("What", ""), ("By", "hide"), ("Until", "r hide"), ("", "r"))
    rows = [
        html.Tr(
            [
                html.Td(
                    [html.Span(matchers_text(silence), className="n"), html.Div(silence.comment, className="s wrap")],
                    className="fits",
                ),
                html.Td(silence.author, className="hide"),
                html.Td(when(context, silence.ends_at), className="r muted nowrap hide"),
                html.Td(end_button(context, silence), className="r"),
            ]
        )
        for silence in silences
    ]
    return card("Silences", table(head, rows, "Silences"), sub=several(len(silences), "silence"), flush=True)


def mute_reason(context: Context, incident: Incident) -> list[Node]:
    """Return the reason why notifications are muted, with a link to the incident that is notified instead."""
    lead = context.source.incident_actions.incident(incident.notified_with) if incident.notified_with else None
    if lead is None:
        return [f"No notification: {incident.muted}"]
    href = context.view.link(incident_page(lead.id))
    return ["Notified together with ", link(f"{lead.service}: {lead.name}", href=href, className="link")]


def incident_pill(incident: Incident) -> Component:
    word, kind = _STATUS_PILLS[incident.status]
    return html.Span(
        pill(word, _SEVERITY_PILLS[incident.severity] if incident.status == "open" else kind),
        title=_ENDINGS.get(incident.ending),
    )


def severity_pill(incident: Incident) -> Component:
    return pill(
        incident.severity.capitalize(), _SEVERITY_PILLS[incident.severity] if incident.state == "open" else "out"
    )


def pagerduty_note(source: Source, incident: Incident) -> str:
    acts = [
        transition.event
        for transition in incident.transitions
        if transition.event in ("acknowledged", "unacknowledged")
    ]
    definitions = source.definitions()
    kinds = {channel.name: channel.kind for channel in definitions.channels} if definitions else {}
    is_there = any(kinds.get(delivery.channel) == "pagerduty" for delivery in incident.deliveries)
    if incident.state != "open" or acts[-1:] != ["unacknowledged"] or not is_there:
        return ""
    return "PagerDuty stays acknowledged, because its API cannot undo this: reassign the incident there"


def _acknowledged_by(incident: Incident) -> Node:
    if incident.acked_by:
        return incident.acked_by
    return html.Span("nobody" if incident.resolved_at is None else "", className="muted")


def matchers_text(silence: Silence) -> str:
    return ", ".join(f"{key} {value}" for key, value in silence.matchers.items())


def when(context: Context, at: datetime) -> str:
    return f"{at.astimezone(context.view.zone):%-d %b %H:%M}"


def rules_card(slo_status: SloStatus) -> Component:
    head: Sequence[tuple[Node, str]] = (
        ("State", ""),
        ("Rule", ""),
        ("Long", "r"),
        ("Short", "r"),
        ("Budget spent", "r hide"),
    )
    rows = [_rule(rule, slo_status) for rule in slo_status.rules]
    now = html.Span([status(slo_status.state)], className="muted")
    foot = "A rule fires when both windows burn at its threshold or faster."
    return card("Multi-window alerts", table(head, rows, "Alert rules"), tools=now, foot=foot, flush=True)


def history_card(context: Context, slo_status: SloStatus) -> Component:
    incidents = sorted(
        objective_incidents(context, slo_status.slo.name),
        key=lambda incident: (incident.state != "open", -incident.since.timestamp()),
    )
    every = link("All incidents and silences", href=context.view.link("/incidents"), className="link")
    title, none = "Alert history", f"No incident of {slo_status.slo.name} in the last 395 days."
    if not incidents:
        return card(title, html.P(none, className="muted"), tools=every)
    head = (
        *(("State", ""), ("Severity", "hide"), ("What", ""), ("Cause", "hide"), ("Notified", "hide")),
        *(("Since", "r"), ("For", "r hide")),
    )
    rows = [_history_row(context, incident) for incident in incidents[:_MAX_INCIDENTS]]
    sub = several(len(incidents), "incident") + (
        f", the newest {_MAX_INCIDENTS} here" if len(incidents) > _MAX_INCIDENTS else ""
    )
    return card(title, table(head, rows, title), sub=sub, tools=every, flush=True)


def objective_incidents(context: Context, name: str) -> list[Incident]:
    """Return all incidents of the objective *name*, also of one that was removed from the SLO file."""
    return context.source.incidents_between(datetime.fromtimestamp(0, UTC), cause=f"slo:{name}")


def record_card(context: Context, record: AlertRecord) -> Component:
    title, policy = "Regression alerts", record.policy
    shown = [deployment for deployment in record.by_service if context.source.shows(*deployment)]
    period = f"last {policy.over // timedelta(weeks=1)} weeks"
    if not shown:
        return card(title, html.P("No alert so far.", className="muted"), sub=period)
    shown.sort(
        key=lambda deployment: (-record.strictness(*deployment), -len(record.by_service[deployment]), deployment)
    )
    rows = [_record_row(context, record, deployment) for deployment in shown[:_MAX_INCIDENTS]]
    if len(record.by_service) > 1 and not context.source.is_restricted:
        rows.append(_record_cells("All services", count_alerts(record.alerts), ""))
    head = (
        ("Service", ""),
        ("Alerts", "r"),
        ("Accepted", "r hide"),
        ("Right", "r hide"),
        ("Wrong", "r hide"),
        ("Precision", "r"),
        ("Evidence needed", "r"),
    )
    foot = (
        f"Wrong: a user silenced the rule of the open incident, or the incident recovered within {span(policy.lasting)} "
        "without an acknowledgement. Open incidents have no outcome."
    )
    return card(title, table(head, rows, title), sub=period, foot=foot, flush=True)


def _record_row(context: Context, record: AlertRecord, where: tuple[str, str]) -> Component:
    (service, environment), alerts = where, record.by_service[where]
    strictness = record.strictness(*where)
    since = (context.source.now() - record.policy.budget.service).timestamp()
    recent = count_alerts(alert for alert in alerts if alert.at >= since).wrong
    weeks = record.policy.budget.service // timedelta(weeks=1)
    why = f"{recent} wrong in {weeks} weeks" if recent else "wrong alerts of other services"
    stricter = [html.Div(signed_change(strictness - 1), className="b"), html.Div(why, className="s hide")]
    evidence = stricter if strictness > _STRICTER else "usual"
    href = context.view.link(service_path(service), env=environment or None)
    name = [link(service, href=href, className="n"), html.Div(environment, className="s") if environment else None]
    return _record_cells(name, count_alerts(alerts), evidence, href)


def _record_cells(name: Nodes, counts: AlertCounts, evidence: Nodes, href: str = "") -> Component:
    cells = [
        html.Td(name, className="fits"),
        html.Td(whole(counts.alerts), className="r"),
        html.Td(whole(counts.accepted), className="r hide"),
        html.Td(whole(counts.right), className="r hide"),
        html.Td(whole(counts.wrong), className="r hide"),
        html.Td(percent(counts.precision), className="r b"),
        html.Td(evidence, className="r"),
    ]
    return html.Tr(cells, **attributes({"data-href": href} if href else {}))


def incident_path(view: View, incident: Incident, tab: str = "") -> str:
    """Return the address of the service's page, or of its *tab*, at the time of *incident*, starting shortly before it."""
    start = incident.since - CALM_BEFORE
    end = None if incident.resolved_at is None else str(int(incident.resolved_at.timestamp() * 1000))
    keys = {**SCOPE, "env": "environment"}
    about = {key: incident.where[name] for key, name in keys.items() if name in incident.where}
    return view.link(
        service_path(incident.service, tab), from_=str(int(start.timestamp() * 1000)), to=end, p="99", **about
    )


def _rule(rule: RuleStatus, slo: SloStatus) -> Component:
    tier = rule.tier
    spent = percent(tier.burn * (tier.long / slo.slo.window))
    cells = [
        html.Td(_rule_state(rule, slo.state)),
        html.Td([f"{tier.severity.capitalize()} at ", html.B(times(tier.burn))], className="nowrap"),
        html.Td(_burn(rule.long_burn, tier.burn, tier.long), className="r"),
        html.Td(_burn(rule.short_burn, tier.burn, tier.short), className="r"),
        html.Td(spent, className="r muted hide", title="Share of the budget, in the long window"),
    ]
    return html.Tr(cells)


def _rule_state(rule: RuleStatus, slo_state: SloState) -> Component:
    if slo_state in _UNJUDGED:
        return _state_pill(*_UNJUDGED[slo_state])
    if rule.state == "firing":
        return _state_pill("Firing", "bad" if rule.tier.severity == "page" else "warn")
    return _state_pill(*_RULE_STATES[rule.state])


def _burn(burn: float | None, threshold: float, window: timedelta) -> list[Node]:
    return [html.Span(times(burn), className="b" if (burn or 0) >= threshold else ""), f" in {span(window)}"]


def _history_row(context: Context, incident: Incident) -> Component:
    view = context.view
    href, stage = view.link(incident_page(incident.id)), incident.blamed and incident.blamed.stage
    cause = html.Span([swatch(stage), label(stage)], className="dom") if stage else CAUSES[incident.cause_kind]
    cells = [
        html.Td(incident_pill(incident)),
        html.Td(severity_pill(incident), className="hide"),
        html.Td(link(incident.headline, href=href, className="n wrap"), className="fits"),
        html.Td(cause, className="hide"),
        html.Td(_delivery_list(view, incident), className="hide"),
        html.Td(when(context, incident.since), className="r muted nowrap"),
        html.Td(_length(context, incident), className="r hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _delivery_list(view: View, incident: Incident) -> Node:
    if not incident.deliveries:
        return html.Span("none", className="muted", title=incident.muted or "No channel in the SLO file")
    return html.Div([_delivery(view, delivery) for delivery in incident.deliveries], className="deliveries")


def _delivery(view: View, delivery: Delivery) -> Component:
    at = f"{delivery.at.astimezone(view.zone):%H:%M}"
    if delivery.state == "sent":
        return html.Div([html.B(delivery.channel), f" {delivery.transition} {at}"], className="s")
    words = (
        f" {delivery.transition}: {_DELIVERY_WORDS[delivery.state]} after {delivery.attempts} tries"
        if delivery.attempts
        else (f" {delivery.transition}: {_DELIVERY_WORDS[delivery.state]}")
    )
    kind = "bad" if delivery.state == "dead" else "muted"
    return html.Div(
        [html.B(delivery.channel), html.Span(words, className=kind)], className="s", title=delivery.error or None
    )


def _state_pill(word: str, shape: str, hint: str = "") -> Component:
    mark = html.I(className=f"dot {shape}")
    return html.Span([mark, word], className=f"pill {shape}", title=hint or None)


def acknowledge_button(incident: Incident) -> Component:
    to = f"{INCIDENTS_API}/{quote(incident.id, safe='')}"
    if incident.acked_by:
        return _button("Undo acknowledgement", f"{to}/unacknowledge", {})
    return _button("Acknowledge", f"{to}/acknowledge", {}, css="btn pri")


def accept_button(incident: Incident) -> Component | None:
    if incident.kind != "tail":
        return None
    what = "Notify again only if latency rises further"
    return _button("Accept as baseline", f"{INCIDENTS_API}/{quote(incident.id, safe='')}/accept", {}, title=what)


def silence_buttons(incident: Incident) -> list[Component]:
    about = {"service": incident.service, "slo": incident.name, "comment": f"from {incident.id}"}
    about |= {key: name for key, name in incident.where.items() if key == "environment"}
    return [_button(f"Silence {length}", SILENCES_API, {**about, "for": length}) for length in _LENGTHS]


def service_silence(context: Context, comment: str) -> Component | None:
    """Return the button that silences all notifications of the service of *context* for a day, with *comment* as its reason.

    During such a silence, return its end and the button that ends it. None without alerts, or if the reader may not.
    """
    source, service = context.source, context.service or ""
    environment = context.view.text("env") or source.writing_environment(None)
    if not source.has_alerts or not source.incident_actions.may_act(service, environment):
        return None
    silence = source.incident_actions.silence_of_service(service, environment)
    if silence is not None:
        note = html.Span(silence_note(context, silence), className="muted")
        return html.Div([note, end_button(context, silence)], className="acts")
    about = {"service": service, "comment": comment, "for": _DAY}
    about |= {"environment": environment} if environment else {}
    where = f"{service} in {environment}" if environment else service
    title = f"Mute all notifications of {where} for a day"
    return html.Div(_button(f"Silence {_DAY}", SILENCES_API, about, title=title), className="acts")


def silence_note(context: Context, silence: Silence) -> str:
    return f"Silenced until {when(context, silence.ends_at)} by {silence.author}"


def end_button(context: Context, silence: Silence) -> Component | None:
    if not context.source.incident_actions.may_act(*silenced(silence.matchers)):
        return None
    label_text = f"End silence now: {matchers_text(silence)}"
    return _button("End silence now", f"{SILENCES_API}/{quote(silence.id, safe='')}/end", {}, aria_label=label_text)


def _button(
    words: str, to: str, body: Mapping[str, str], *, css: str = "btn", aria_label: str = "", title: str = ""
) -> Component:
    data = {"data-to": to, "data-post": json.dumps(body)} | ({"aria-label": aria_label} if aria_label else {})
    return html.Button(words, className=css, type="button", title=title or None, **attributes(data))
