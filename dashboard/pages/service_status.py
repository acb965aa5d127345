"""How a service stands: the worst of its objectives, its open incidents, its burn rules and its newest release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import URGENCY, SloState, SloStatus
from ...alerts.reader import Incident
from ..components import WORDS, link, pill, status
from ..view import View, incident_page, slo_path
from .compare_words import short_name
from .page import Context
from .regressions import Release, regressions
from .slo_status_text import moment, note


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How a service stands.

    Args:
        state: The state, "" where nothing is known.
        word: What it is called.
        note: Why, or since when; may be empty.
        href: Where that is explained; "" where nothing is known.
    """

    state: SloState | Literal[""]
    word: str
    note: str = ""
    href: str = ""

    @property
    def badge(self) -> Component:
        """The state as shape and word, the note below."""
        return html.Div([self._pill, html.Div(self.note, className="s why") if self.note else None])

    @property
    def link(self) -> Component:
        """The state as shape and word, a link to where it is explained; the note is its title."""
        return link(self._pill, href=self.href, title=f"{self.word} {self.note}".rstrip()) if self.href else self._pill

    @property
    def _pill(self) -> Component:
        return status(self.state, self.word) if self.state else pill(self.word)


def service_status(
    view: View, slos: tuple[SloStatus, ...], incidents: tuple[Incident, ...], release: Release | None
) -> ServiceStatus:
    """Return how a service stands.

    Args:
        view: The address.
        slos: Its objectives.
        incidents: Its open incidents.
        release: Its newest version where that is clearly slower than the one before.
    """
    slo = min(slos, key=urgency_of, default=None)
    # No action is needed during a maintenance window.
    planned = {each.slo.name for each in slos if each.state == "maintenance"}
    acted_on = (each for each in incidents if each.name not in planned)
    incident = min(acted_on, key=lambda each: each.severity != "page", default=None)
    pending = next((each for each in slos if any(rule.pending for rule in each.rules)), None)
    if slo is not None and slo.state == "burning":
        return _of_slo(view, slo)
    if incident is not None and (incident.severity == "page" or slo is None or slo.state != "at_risk"):
        return _of_incident(view, incident)
    if slo is not None and slo.state in ("at_risk", "maintenance"):
        return _of_slo(view, slo)
    if pending is not None:
        return ServiceStatus("at_risk", WORDS["at_risk"], "alert pending", view.link(slo_path(pending.slo.name)))
    if release is not None:
        return ServiceStatus("at_risk", "Slower", f"with {short_name(release.comparison.pair.b_name)}", release.href)
    return ServiceStatus("", "No SLO") if slo is None else _of_slo(view, slo)


def status_of(context: Context) -> ServiceStatus:
    """Return how the service of *context* stands."""
    service = context.service or ""
    release = next((each for each in context.once(regressions) if each.service == service and each.is_clear), None)
    return service_status(context.view, slos_of(context, service), incidents_of(context, service), release)


def slos_of(context: Context, service: str) -> tuple[SloStatus, ...]:
    """Return the objectives of *service* that have a part in the environment of the address."""
    environment = context.view.text("env")
    return tuple(
        each
        for each in context.slos
        if each.slo.service == service and (not environment or each.slo.environment in (None, environment))
    )


def incidents_of(context: Context, service: str) -> tuple[Incident, ...]:
    """Return the open incidents of *service* that have a part in the environment of the address."""
    environment = context.view.text("env")
    return tuple(
        each
        for each in context.open_incidents
        if each.service == service and (not environment or each.where.get("environment") in (None, environment))
    )


def urgency_of(found: SloStatus) -> tuple[int, bool, float]:
    """Return what sorts objectives: the most urgent first, of equals those about latency, then those that burn faster."""
    return URGENCY[found.state], found.slo.threshold_seconds is None, -found.burn_1h


def _of_slo(view: View, found: SloStatus) -> ServiceStatus:
    return ServiceStatus(found.state, WORDS[found.state], note(found, view), view.link(slo_path(found.slo.name)))


def _of_incident(view: View, found: Incident) -> ServiceStatus:
    state = "burning" if found.severity == "page" else "at_risk"
    return ServiceStatus(state, "Incident", f"since {moment(found.since, view)}", view.link(incident_page(found.id)))
