"""Actions on incidents, stored for all alert evaluators: acknowledge, accept, silence, end a silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from ..alerts.delivery import chart
from ..alerts.delivery import chart as chart_address
from ..alerts.incidents import lifecycle, silences
from ..alerts.incidents.journal import acknowledge
from ..alerts.incidents.silences import Silence
from ..alerts.objectives.slo_file import LiveSloFile
from ..alerts.reader import AlertsReader, Incident
from ..alerts.regression.acceptance import accept_regression
from ..store import Store


class IncidentActions:
    """Reads incidents, and applies the actions of users to incidents and silences.

    Args:
        store: Store of the incidents.
        now: Function that returns the current time.
    """

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._reader = AlertsReader(store, LiveSloFile(None, {}))

    def incidents(self) -> list[Incident]:
        """Return the incidents, newest first."""
        return self._reader.incidents()

    def incident(self, name: str) -> Incident | None:
        """Return the incident with the id *name*; None if there is none."""
        return self._reader.incident(name)

    def similar(self, about: Incident) -> list[Incident]:
        """Return earlier incidents like *about*, see `AlertsReader.similar`."""
        return self._reader.similar(about)

    def chart(self, name: str, signature: str) -> bytes | None:
        """Return the chart of the incident *name* as PNG; None for an invalid signature or without data."""
        with self._store.engine.connect() as connection:
            if not chart_address.is_chart_signature(connection, name, signature):
                return None
            found = lifecycle.get_incident(connection, name)
        return None if found is None else chart.draw_chart(found.finding)

    def silences(self) -> list[Silence]:
        """Return active and future silences."""
        return self._reader.silences(self._now())

    def acknowledge(self, name: str, by: str) -> None:
        """Record that *by* acknowledged the incident *name*.

        Raises:
            IncidentError: The incident does not exist or is resolved.
            StoreError: The store cannot be written.
        """
        acknowledge(self._store, name, by, self._now())

    def accept(self, name: str, by: str, why: str = "") -> str:
        """Accept the latency of the incident *name* as new baseline, and return the name of the person who accepted it.

        This is the first person if the latency was accepted before.

        Raises:
            IncidentError: The incident does not exist, is resolved, or is no latency regression.
            StoreError: The store cannot be written.
        """
        return accept_regression(self._store, name, by, self._now(), why).acked_by

    def silence(self, matchers: Mapping[str, str], length: timedelta, *, by: str, comment: str) -> Silence:
        """Silence notifications that match *matchers* for the duration *length*, starting now.

        Raises:
            IncidentError: The silence has no comment or no matcher.
            StoreError: The store cannot be written.
        """
        now = self._now()
        with self._store.transaction() as connection:
            return silences.create_silence(
                connection, matchers, starts_at=now, ends_at=now + length, author=by, comment=comment
            )

    def silence_of(self, incident: Incident) -> Silence | None:
        """Return the active silence that matches *incident*, the longest if there are several; None without one."""
        about = {"service": incident.service, "slo": incident.name, "severity": incident.severity}
        about |= {"version": incident.version, **incident.where}
        fitting = [each for each in self.silences() if each.holds(self._now()) and each.fits(about)]
        return max(fitting, key=lambda each: each.ends_at, default=None)

    def unsilence(self, name: str) -> None:
        """End the silence *name* now.

        Raises:
            IncidentError: The silence does not exist or has ended.
            StoreError: The store cannot be written.
        """
        with self._store.transaction() as connection:
            silences.end_silence(connection, name, self._now())
