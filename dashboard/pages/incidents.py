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
    environment, elsewhere, found = view.text("env"), list[Incident](), list[Incident]()
    for each in context.source.incident_actions.between(view.start, view.past_end):
        is_here = not environment or each.where.get("environment") in (None, environment)
        (found if is_here else elsewhere).append(each)
    still = [each for each in found if each.state == "open"]
    muted = sum(bool(each.muted) and not each.notified_with for each in still)
    counts = [f"{several(len(still), 'incident')} open"] + ([f"{muted} without notification"] if muted else [])
    title = html.Div([html.H1("Incidents"), html.P(" · ".join([*counts, view.window_phrase]), className="sub")])
    return [
        html.Div([title], className="phead"),
        panel("Incidents", lambda: _list(context, found, elsewhere)),
        panel("Silences", lambda: _silences(context, context.source.incident_actions.silences())),
    ]


def _list(context: Context, found: Sequence[Incident], elsewhere: Sequence[Incident]) -> Component:
    foot, title = _outside(context, elsewhere), "Incidents"
    if not found:
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
    groups = group_incidents(found)
    rows = [_row(context, each) for each in groups[:_MAX_ROWS]]
    cut = f"{len(groups) - _MAX_ROWS} more rows; choose a shorter window. " if len(groups) > _MAX_ROWS else None
    sub = several(len(found), "incident") + (f" in {several(len(groups), 'row')}" if len(groups) < len(found) else "")
    return card(
        title, table(head, rows, title, css="incs"), sub=sub, foot=[cut, foot] if cut or foot else None, flush=True
    )


def _outside(context: Context, elsewhere: Sequence[Incident]) -> Component | None:
    view = context.view
    number, still = context.source.incident_actions.outside(view.start, view.past_end)
    number, still = number + len(elsewhere), still + sum(each.state == "open" for each in elsewhere)
    if not number:
        return None
    limits = "this window and environment" if view.text("env") else "this window"
    text = f"{several(number, 'more incident')} outside of {limits}, {still or 'none'} of them open. "
    return html.Span([text, link("Show all", href=view.here(from_=_ALL, to=None, env=None), className="link")])


def _row(context: Context, group: IncidentGroup) -> Component:
    found, href = group.lead, context.view.link(incident_page(group.lead.id))
    what: list[Node] = [
        link(f"{found.service}: {found.name}", href=href, className="n"),
        html.Div(found.headline, className="s wrap"),
        html.Div(mute_reason(context, found), className="s wrap") if found.muted else None,
        _members(context, group) if group.others else None,
    ]
    cells = [
        html.Td(incident_pill(found)),
        html.Td(severity_pill(found)),
        html.Td(html.Div(what), className="fits"),
        html.Td(_acknowledged_by(found), className="hide"),
        html.Td(when(context, found.since), className="r muted nowrap hide"),
        html.Td(_length(context, found), className="r nowrap"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _members(context: Context, group: IncidentGroup) -> Component:
    others = group.others
    still = sum(each.state == "open" for each in others)
    services = len({each.service for each in others})
    counts = [f"{several(len(others), 'more incident')} in {several(services, 'service')}", f"{still or 'none'} open"]
    items = [
        html.Li(
            [
                incident_pill(each),
                severity_pill(each),
                link(f"{each.service}: {each.name}", href=context.view.link(incident_page(each.id)), className="link"),
                html.Span(f"since {when(context, each.since)}, for {_length(context, each)}", className="muted"),
                html.Span(mute_reason(context, each), className="muted")
                if each.muted and not each.notified_with
                else None,
            ]
        )
        for each in others
    ]
    summary = html.Summary(f"Notified together with {', '.join(counts)}", className="link")
    return html.Details([summary, html.Ul(items)], className="members")


def _length(context: Context, found: Incident) -> str:
    return span((found.resolved_at or context.source.now()) - found.since)


def _silences(context: Context, found: Sequence[Silence]) -> Component:
    if not found:
        text = "No silences. Add one with the button of an incident or with `stagelens alerts silence`."
        return card("Silences", html.P(with_code(text), className="muted"))
    head = (("What", ""), ("By", "hide"), ("Until", "r hide"), ("", "r"))
    rows = [
        html.Tr(
            [
                html.Td(
                    [html.Span(matchers_text(each), className="n"), html.Div(each.comment, className="s wrap")],
                    className="fits",
                ),
                html.Td(each.author, className="hide"),
                html.Td(when(context, each.ends_at), className="r muted nowrap hide"),
                html.Td(end_button(context, each), className="r"),
            ]
        )
        for each in found
    ]
    return card("Silences", table(head, rows, "Silences"), sub=several(len(found), "silence"), flush=True)


def mute_reason(context: Context, found: Incident) -> list[Node]:
    """Return the reason why notifications are muted, with a link to the incident that is notified instead."""
    lead = context.source.incident_actions.incident(found.notified_with) if found.notified_with else None
    if lead is None:
        return [f"No notification: {found.muted}"]
    href = context.view.link(incident_page(lead.id))
    return ["Notified together with ", link(f"{lead.service}: {lead.name}", href=href, className="link")]


def incident_pill(found: Incident) -> Component:
    word, kind = _STATUS_PILLS[found.status]
    return html.Span(
        pill(word, _SEVERITY_PILLS[found.severity] if found.status == "open" else kind),
        title=_ENDINGS.get(found.ending),
    )


def severity_pill(found: Incident) -> Component:
    return pill(found.severity.capitalize(), _SEVERITY_PILLS[found.severity] if found.state == "open" else "out")


def kept_acknowledgement(source: Source, found: Incident) -> str:
    acts = [each.event for each in found.transitions if each.event in ("acknowledged", "unacknowledged")]
    definitions = source.definitions()
    kinds = {each.name: each.kind for each in definitions.channels} if definitions else {}
    is_there = any(kinds.get(each.channel) == "pagerduty" for each in found.deliveries)
    if found.state != "open" or acts[-1:] != ["unacknowledged"] or not is_there:
        return ""
    return "PagerDuty stays acknowledged, because its API cannot undo this: reassign the incident there"


def _acknowledged_by(found: Incident) -> Node:
    if found.acked_by:
        return found.acked_by
    return html.Span("nobody" if found.resolved_at is None else "", className="muted")


def matchers_text(silence: Silence) -> str:
    return ", ".join(f"{key} {value}" for key, value in silence.matchers.items())


def when(context: Context, at: datetime) -> str:
    return f"{at.astimezone(context.view.zone):%-d %b %H:%M}"


def rules_card(found: SloStatus) -> Component:
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
    known = sorted(
        objective_incidents(context, found.slo.name), key=lambda each: (each.state != "open", -each.since.timestamp())
    )
    every = link("All incidents and silences", href=context.view.link("/incidents"), className="link")
    title, none = "Alert history", f"No incident of {found.slo.name} in the last 395 days."
    if not known:
        return card(title, html.P(none, className="muted"), tools=every)
    head = (
        *(("State", ""), ("Severity", "hide"), ("What", ""), ("Cause", "hide"), ("Notified", "hide")),
        *(("Since", "r"), ("For", "r hide")),
    )
    rows = [_history_row(context, each) for each in known[:_MAX_INCIDENTS]]
    sub = several(len(known), "incident") + (
        f", the newest {_MAX_INCIDENTS} here" if len(known) > _MAX_INCIDENTS else ""
    )
    return card(title, table(head, rows, title), sub=sub, tools=every, flush=True)


def objective_incidents(context: Context, name: str) -> list[Incident]:
    """Return all incidents of the objective *name*, also of one that was removed from the SLO file."""
    return context.source.incidents_between(datetime.fromtimestamp(0, UTC), cause=f"slo:{name}")


def record_card(context: Context, record: AlertRecord) -> Component:
    title, policy = "Regression alerts", record.policy
    shown = [each for each in record.by_service if context.source.shows(*each)]
    period = f"last {policy.over // timedelta(weeks=1)} weeks"
    if not shown:
        return card(title, html.P("No alert so far.", className="muted"), sub=period)
    shown.sort(key=lambda each: (-record.strictness(*each), -len(record.by_service[each]), each))
    rows = [_record_row(context, record, each) for each in shown[:_MAX_INCIDENTS]]
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
    recent = count_alerts(each for each in alerts if each.at >= since).wrong
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


def incident_path(view: View, found: Incident, tab: str = "") -> str:
    """Return the address of the service's page, or of its *tab*, at the time of *found*, starting shortly before it."""
    start = found.since - CALM_BEFORE
    end = None if found.resolved_at is None else str(int(found.resolved_at.timestamp() * 1000))
    keys = {**SCOPE, "env": "environment"}
    about = {key: found.where[name] for key, name in keys.items() if name in found.where}
    return view.link(
        service_path(found.service, tab), from_=str(int(start.timestamp() * 1000)), to=end, p="99", **about
    )


def _rule(found: RuleStatus, slo: SloStatus) -> Component:
    tier = found.tier
    spent = percent(tier.burn * (tier.long / slo.slo.window))
    cells = [
        html.Td(_rule_state(found, slo.state)),
        html.Td([f"{tier.severity.capitalize()} at ", html.B(times(tier.burn))], className="nowrap"),
        html.Td(_burn(found.long_burn, tier.burn, tier.long), className="r"),
        html.Td(_burn(found.short_burn, tier.burn, tier.short), className="r"),
        html.Td(spent, className="r muted hide", title="Share of the budget, in the long window"),
    ]
    return html.Tr(cells)


def _rule_state(found: RuleStatus, slo_state: SloState) -> Component:
    if slo_state in _UNJUDGED:
        return _state_pill(*_UNJUDGED[slo_state])
    if found.state == "firing":
        return _state_pill("Firing", "bad" if found.tier.severity == "page" else "warn")
    return _state_pill(*_RULE_STATES[found.state])


def _burn(burn: float | None, threshold: float, window: timedelta) -> list[Node]:
    return [html.Span(times(burn), className="b" if (burn or 0) >= threshold else ""), f" in {span(window)}"]


def _history_row(context: Context, found: Incident) -> Component:
    view = context.view
    href, stage = view.link(incident_page(found.id)), found.blamed and found.blamed.stage
    cause = html.Span([swatch(stage), label(stage)], className="dom") if stage else CAUSES[found.cause_kind]
    cells = [
        html.Td(incident_pill(found)),
        html.Td(severity_pill(found), className="hide"),
        html.Td(link(found.headline, href=href, className="n wrap"), className="fits"),
        html.Td(cause, className="hide"),
        html.Td(_delivery_list(view, found), className="hide"),
        html.Td(when(context, found.since), className="r muted nowrap"),
        html.Td(_length(context, found), className="r hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _delivery_list(view: View, found: Incident) -> Node:
    if not found.deliveries:
        return html.Span("none", className="muted", title=found.muted or "No channel in the SLO file")
    return html.Div([_delivery(view, each) for each in found.deliveries], className="deliveries")


def _delivery(view: View, found: Delivery) -> Component:
    at = f"{found.at.astimezone(view.zone):%H:%M}"
    if found.state == "sent":
        return html.Div([html.B(found.channel), f" {found.transition} {at}"], className="s")
    words = (
        f" {found.transition}: {_DELIVERY_WORDS[found.state]} after {found.attempts} tries"
        if found.attempts
        else (f" {found.transition}: {_DELIVERY_WORDS[found.state]}")
    )
    kind = "bad" if found.state == "dead" else "muted"
    return html.Div([html.B(found.channel), html.Span(words, className=kind)], className="s", title=found.error or None)


def _state_pill(word: str, shape: str, hint: str = "") -> Component:
    mark = html.I(className=f"dot {shape}")
    return html.Span([mark, word], className=f"pill {shape}", title=hint or None)


def acknowledge_button(found: Incident) -> Component:
    to = f"{INCIDENTS_API}/{quote(found.id, safe='')}"
    if found.acked_by:
        return _button("Undo acknowledgement", f"{to}/unacknowledge", {})
    return _button("Acknowledge", f"{to}/acknowledge", {}, css="btn pri")


def accept_button(found: Incident) -> Component | None:
    if found.kind != "tail":
        return None
    what = "Notify again only if latency rises further"
    return _button("Accept as baseline", f"{INCIDENTS_API}/{quote(found.id, safe='')}/accept", {}, title=what)


def silence_buttons(found: Incident) -> list[Component]:
    about = {"service": found.service, "slo": found.name, "comment": f"from {found.id}"}
    about |= {key: name for key, name in found.where.items() if key == "environment"}
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
