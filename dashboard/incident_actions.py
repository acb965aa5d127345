"""Actions on incidents, stored for all alert evaluators: acknowledge, accept, silence, end a silence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import NoReturn

from ..alerts.delivery.chart import draw_chart, is_chart_signature
from ..alerts.delivery.message import Finding
from ..alerts.incidents import lifecycle, silences
from ..alerts.incidents.journal import IncidentError, acknowledge, add_note
from ..alerts.incidents.notification_rules import group_lead
from ..alerts.incidents.silences import ANY, Silence
from ..alerts.objectives.slo_file import LiveSloFile
from ..alerts.reader import AlertsReader, Incident
from ..alerts.regression.acceptance import accept_regression
from ..store import Store
from .access import ForbiddenError, Role

# Maximum number of incidents of a list; more open ones are one outage.
MAX_OPEN = 1000
# Number of earlier incidents like one.
_SIMILAR = 5
# Number of entries of the audit log around the end of a silence.
_MAX_ENTRIES = 200
_GROUPED = "grouped with another incident"
# Start of the reason of an incident that a silence mutes, see `Silence.in_words`.
_SILENCED = "silenced by "
# Number of grouped incidents at the end of a headline, see `message_text.headline`; some may be of other environments.
_OTHERS = re.compile(r", and \d+ more$")
# Raises `access.ForbiddenError` unless the reader has the role for a service ("" for all) in an environment ("" for all).
Require = Callable[[str, str, Role], None]
# Returns whether the reader may see what is about a service in an environment; "" as above.
Shows = Callable[[str, str], bool]


class IncidentActions:
    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._reader = AlertsReader(store, LiveSloFile(None, {}))
        # None if the reader may see all incidents.
        self._shown: Shows | None = None
        self._require: Require = lambda _service, _environment, _role: None

    def of_reader(self, shows: Shows | None, require: Require) -> IncidentActions:
        actions = copy(self)
        actions._shown, actions._require = shows, require  # noqa: SLF001 - of the copy
        return actions

    def visible(self, incidents: Sequence[Incident]) -> list[Incident]:
        if self._shown is None:
            return list(incidents)
        shown = [incident for incident in incidents if self._shows(incident.service, _environment_of(incident))]
        first: dict[str, str] = {}
        for incident in sorted(shown, key=lambda incident: incident.opened_at):
            first.setdefault(incident.story, incident.id)
        return [self._without_others(incident, first[incident.story]) for incident in shown]

    def incidents(self, *, open_only: bool = False) -> list[Incident]:
        """Return the newest 50 incidents, newest first; with *open_only* those that are open, up to `MAX_OPEN`."""
        incidents = self._reader.incidents(MAX_OPEN, open_only=True) if open_only else self._reader.incidents()
        return self.visible(incidents)

    def between(
        self, start: datetime, end: datetime | None = None, cause: str = "", *, history: bool = False
    ) -> list[Incident]:
        return self.visible(self._reader.between(start, end, MAX_OPEN, cause, history=history))

    def outside(self, start: datetime, end: datetime | None = None) -> tuple[int, int]:
        counts = [row for row in self._reader.outside(start, end) if self._shows(*row[:2])]
        return sum(row[3] for row in counts), sum(row[3] for row in counts if row[2])

    def incident(self, name: str) -> Incident | None:
        incident = self._reader.incident(name)
        return None if incident is None else next(iter(self.visible([incident])), None)

    def similar(self, about: Incident) -> list[Incident]:
        """Return earlier incidents like *about* that the reader may see, see `AlertsReader.similar`."""
        alike = (
            incident
            for incident in self._reader.similar(about)
            if self._shows(incident.service, _environment_of(incident))
        )
        return self.visible([*islice(alike, _SIMILAR)])

    def signed_finding(self, name: str, signature: str) -> Finding | None:
        with self._store.engine.connect() as connection:
            is_valid = is_chart_signature(connection, name, signature)
            record = lifecycle.get_incident(connection, name) if is_valid else None
        return record and record.finding

    def chart(self, name: str) -> bytes | None:
        with self._store.engine.connect() as connection:
            record = lifecycle.get_incident(connection, name) if self.incident(name) else None
        return record and draw_chart(record.finding)

    def silences(self) -> list[Silence]:
        return [silence for silence in self._reader.silences(self._now()) if self._shows(*silenced(silence.matchers))]

    def silence_named(self, name: str) -> Silence | None:
        """Return the silence with the id *name*, also a past one; None if there is none."""
        all_silences = self._reader.silences(self._now(), over=True)
        silence = next((silence for silence in all_silences if silence.id == name), None)
        return silence if silence is not None and self._shows(*silenced(silence.matchers)) else None

    def may_act(self, service: str, environment: str) -> bool:
        try:
            self._require(service, environment, "responder")
        except ForbiddenError:
            return False
        return True

    def silences_of(self, about: Incident) -> list[tuple[Silence, str]]:
        """Return the silences that muted *about*, also past ones, each with the person who ended it early; "" for none."""
        where = _dimensions(about)
        end = about.resolved_at or self._now()
        all_silences = self._reader.silences(self._now(), over=True)
        matching = [
            silence
            for silence in all_silences
            if silence.fits(where) and silence.starts_at <= end and silence.ends_at >= about.since
        ]
        return [(silence, self._ended_by(silence)) for silence in matching if self._shows(*silenced(silence.matchers))]

    def _ended_by(self, silence: Silence) -> str:
        around = timedelta(minutes=1)
        entries = self._store.read.audit(silence.ends_at - around, silence.ends_at + around, _MAX_ENTRIES)
        ended = ("end silence", silence.id, "done")
        return next((entry.person for entry in entries if (entry.action, entry.subject, entry.outcome) == ended), "")

    def acknowledge(self, name: str, by: str, *, undo: bool = False) -> Incident:
        self._require_for(name)
        acknowledge(self._store, name, by, self._now(), undo=undo)
        return self._require_for(name)

    def add_note(self, name: str, by: str, text: str) -> None:
        """Add the note *text* of *by* to the history of the incident *name*; errors as of `acknowledge`."""
        self._require_for(name)
        add_note(self._store, name, by, text, self._now())

    def accept(self, name: str, by: str, why: str = "") -> str:
        """Accept the latency of the incident *name* as new baseline, and return the name of the person who accepted it.

        This is the first person if the latency was accepted before.
        """
        self._require_for(name)
        return accept_regression(self._store, name, by, self._now(), why).acked_by

    def silence(self, matchers: Mapping[str, str], length: timedelta, *, by: str, comment: str) -> Silence:
        self._require(*silenced(matchers), "responder")
        now = self._now()
        with self._store.transaction() as connection:
            return silences.create_silence(
                connection, matchers, starts_at=now, ends_at=now + length, author=by, comment=comment
            )

    def silence_of(self, incident: Incident) -> Silence | None:
        return self._longest_silence(_dimensions(incident))

    def silence_of_service(self, service: str, environment: str) -> Silence | None:
        return self._longest_silence({"service": service, "environment": environment})

    def _longest_silence(self, about: Mapping[str, str]) -> Silence | None:
        fitting = [silence for silence in self.silences() if silence.holds(self._now()) and silence.fits(about)]
        return max(fitting, key=lambda silence: silence.ends_at, default=None)

    def unsilence(self, name: str) -> None:
        silence = self.silence_named(name)
        if silence is None:
            _raise_unknown(f"there is no silence {name!r}")
        self._require(*silenced(silence.matchers), "responder")
        with self._store.transaction() as connection:
            silences.end_silence(connection, name, self._now())

    def _without_others(self, incident: Incident, first: str) -> Incident:
        """Return *incident*, with the visible incident *first* of its group, without the names of others that the reader may not see."""
        leads = {group_lead(transition.note) for transition in incident.transitions} | {
            incident.notified_with,
            incident.story,
        } - {incident.id}
        hidden = {lead for lead in leads if lead and not self._shows_incident(lead)}
        happened = tuple(
            replace(
                transition,
                headline=_OTHERS.sub("", transition.headline),
                note=_GROUPED if group_lead(transition.note) in hidden else self._visible_reason(transition.note),
            )
            for transition in incident.transitions
        )
        is_led = incident.notified_with in hidden
        return replace(
            incident,
            muted=_GROUPED if is_led else self._visible_reason(incident.muted),
            notified_with="" if is_led else incident.notified_with,
            story=first if incident.story in hidden else incident.story,
            transitions=happened,
        )

    def _visible_reason(self, text: str) -> str:
        """Return the reason *text* for muting, without author and comment of a silence that the reader may not see."""
        who, _, rest = text.partition(" until ")
        if not who.startswith(_SILENCED):
            return text
        visible = [
            silence
            for silence in self._reader.silences(self._now(), over=True)
            if self._shows(*silenced(silence.matchers))
        ]
        words = {(_SILENCED + silence.author, silence.comment) for silence in visible}
        return text if (who, rest.partition(": ")[2]) in words else "silenced"

    def _shows(self, service: str, environment: str) -> bool:
        return self._shown is None or self._shown(service, environment)

    def _shows_incident(self, name: str) -> bool:
        incident = self._reader.incident(name)
        return incident is not None and self._shows(incident.service, _environment_of(incident))

    def _require_for(self, name: str) -> Incident:
        incident = self.incident(name)
        if incident is None:
            _raise_unknown(f"there is no incident {name!r}")
        self._require(incident.service, _environment_of(incident), "responder")
        return incident


def silenced(matchers: Mapping[str, str]) -> tuple[str, str]:
    service, environment = (matchers.get(key, "").strip() for key in ("service", "environment"))
    return "" if service == ANY else service, "" if environment == ANY else environment


def _dimensions(incident: Incident) -> dict[str, str]:
    about = {"service": incident.service, "slo": incident.name, "severity": incident.severity}
    return about | {"version": incident.version, **incident.where}


def _environment_of(incident: Incident) -> str:
    return incident.where.get("environment", "")


def _raise_unknown(what: str) -> NoReturn:
    msg = f"{what}; the page of incidents lists all that you may see"
    raise IncidentError(msg)
