"""Status of a service as a component, from objectives, incidents and its newest release; and the words for SLO states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.objectives.maintenance import ActiveMaintenance
from ...alerts.objectives.slo import Slo
from ...alerts.reader import Incident
from ...analysis.slo_status import URGENCY, SloState, service_state
from ..figures.budget import budget_left_words
from ..ui.components import WORDS, Node, link, pill, status
from ..ui.format import THIN, attained, span, target, times
from ..view import View, incident_page, slo_path
from .comparison_text import short_name
from .page import Context, clock_or_date
from .regressions import Release, regressions

# Colours of the states that need action.
COLOURS = {"burning": "bad", "at_risk": "warn"}


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    state: SloState | Literal[""]
    word: str
    note: str = ""
    href: str = ""

    @property
    def badge(self) -> Component:
        return html.Div([self._pill, html.Div(self.note, className="s why") if self.note else None])

    @property
    def link(self) -> Component:
        return link(self._pill, href=self.href, title=f"{self.word} {self.note}".rstrip()) if self.href else self._pill

    @property
    def _pill(self) -> Component:
        return status(self.state, self.word) if self.state else pill(self.word)


def service_status(
    view: View, slos: tuple[SloStatus, ...], incidents: tuple[Incident, ...], release: Release | None
) -> ServiceStatus:
    slo = min(slos, key=lambda slo_status: slo_status.urgency, default=None)
    # No action is needed during a maintenance window.
    maintained = {slo_status.slo.name for slo_status in slos if slo_status.state == "maintenance"}
    acted_on = (incident for incident in incidents if incident.name not in maintained)
    incident = min(acted_on, key=lambda incident: incident.severity != "page", default=None)
    pending = next((slo_status for slo_status in slos if any(rule.pending for rule in slo_status.rules)), None)
    state, reason = service_state(
        slo and slo.state, incident and incident.severity, is_pending=pending is not None, is_slower=release is not None
    )
    if reason == "slo" and slo:
        return ServiceStatus(state, WORDS[state], state_note(slo, view), view.link(slo_path(slo.slo.name)))
    if reason == "incident" and incident:
        silent = incident.silent_since
        note = (
            f"no data since {clock_or_date(silent, view)}" if silent else f"since {clock_or_date(incident.since, view)}"
        )
        return ServiceStatus(state, "Incident", note, view.link(incident_page(incident.id)))
    if reason == "pending" and pending:
        return ServiceStatus(state, WORDS[state], "alert pending", view.link(slo_path(pending.slo.name)))
    if reason == "release" and release:
        return ServiceStatus(state, "Slower", f"with {short_name(release.comparison.pair.b_name)}", release.href)
    return ServiceStatus(state, "No SLO")


def status_of(context: Context) -> ServiceStatus:
    service = context.service or ""
    release = next(
        (release for release in context.once(regressions) if release.service == service and release.is_clear), None
    )
    return service_status(context.view, slos_of(context, service), incidents_of(context, service), release)


def slos_of(context: Context, service: str) -> tuple[SloStatus, ...]:
    environment = context.view.text("env")
    return tuple(
        slo_status
        for slo_status in context.slos
        if slo_status.slo.service == service and (not environment or slo_status.slo.environment in (None, environment))
    )


def incidents_of(context: Context, service: str) -> tuple[Incident, ...]:
    environment = context.view.text("env")
    return tuple(
        incident
        for incident in context.open_incidents
        if incident.service == service and (not environment or incident.where.get("environment") in (None, environment))
    )


def state_note(slo_status: SloStatus, view: View) -> str:
    if slo_status.state == "stale" and slo_status.stale_since is not None:
        return f"since {clock_or_date(slo_status.stale_since, view)}"
    if slo_status.state == "maintenance" and slo_status.work is not None:
        return (
            f"{maintenance_end(slo_status.work, view)} ({slo_status.work.why})"
            if slo_status.work.why
            else maintenance_end(slo_status.work, view)
        )
    return ""


def attained_words(slo_status: SloStatus) -> str:
    over, goal = span(min(slo_status.covered, slo_status.slo.window)), slo_status.slo.objective
    return f"{attained(slo_status.attained, goal)} good requests in {over}, target {target(goal)}"


def budget_tile_words(slo_status: SloStatus) -> tuple[str, str]:
    share, word = budget_left_words(slo_status.budget_left)
    return share, f"{word} of {span(slo_status.slo.window)}" if slo_status.is_young and word == "left" else word


def young_note(slo_status: SloStatus) -> str:
    return f"of {span(slo_status.slo.window)}, {span(slo_status.covered)} of data" if slo_status.is_young else ""


def maintenance_end(work: ActiveMaintenance, view: View) -> str:
    return f"until {clock_or_date(work.until, view)}" if work.until else "for more than a month"


def state_line(slo_status: SloStatus, view: View) -> str:
    """Return the state of *slo_status* with its note: `Stale since 12:03`."""
    return f"{WORDS[slo_status.state]} {state_note(slo_status, view)}".rstrip()


def burn_note(slo_status: SloStatus, view: View) -> list[Node]:
    if slo_status.state in ("stale", "maintenance", "no_data"):
        return [html.Span(state_line(slo_status, view), className="warn" if slo_status.state == "stale" else "muted")]
    return [
        html.Span(f"burning {burn_words(slo_status)}", className="bad" if (slo_status.burn_1h or 0) > 1 else "muted")
    ]


def silence_words(slo_status: SloStatus) -> str:
    return f"no request in the last {'hour' if slo_status.burn_1h is None else '5 min'}"


def burn_words(slo_status: SloStatus) -> str:
    return f"{times(slo_status.burn_1h)} in 1{THIN}h"


def maintenance_note(slo: Slo, start: datetime, end: datetime) -> str:
    """Return the note that requests in a maintenance window are shown although they do not count."""
    if not slo.maintenance.intervals(start, end):
        return ""
    return " Requests during maintenance windows are shown but do not count."


def state_counts(states: Sequence[str]) -> list[str]:
    """Return the number of objectives in each state except healthy, most urgent first.

    >>> state_counts(["healthy", "stale", "burning", "stale"])
    ['1 burning', '2 stale']
    """
    numbers = {state: states.count(state) for state in URGENCY if state != "healthy"}
    return [f"{number} {WORDS[state].lower()}" for state, number in numbers.items() if number]
