"""Questions to the store about which services there are, and what they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import pandas as pd

from ..selection import Selection, moment
from . import fleet, hardware, loads, minutes, services
from .base import Questions
from .minutes import Group, MinuteCounts

# A replica that is alive sends every ten seconds; longer ago nobody asks when it was.
_HEARD_SECONDS = 600


class ServiceQuestions(Questions):
    """Which services, versions and environments there are, and all services at once."""

    def services(self, start: datetime, end: datetime, *, environment: str | None = None) -> pd.DataFrame:
        """Return the services that have requests in `[start, end)`, in one environment or in all of them.

        Returns:
            Columns service, versions (list, latest seen first), newest (the version first seen last), model and environment
            (of the series seen last), requests, errors (counts in the window), first_seen, last_seen (UTC, buckets within
            the window); sorted by service.
        """
        with self._snapshot() as snapshot:
            return services.services(snapshot, Selection(start, end, environment=environment))

    def fleet(
        self, start: datetime, end: datetime, percentiles: Sequence[float], *, environment: str | None = None
    ) -> pd.DataFrame:
        """Return where the time goes at each percentile in every service: one question instead of one a service.

        Args:
            start: Of the window.
            end: Of the window.
            percentiles: [0..1]
            environment: Only its requests; None for all.

        Returns:
            The rows of `breakdown` of each service, the same numbers, by the index `service`, sorted by service; one column
            of seconds for each stage that any of them has.
        """
        with self._snapshot() as snapshot:
            return fleet.fleet(snapshot, Selection(start, end, environment=environment), percentiles)

    def fleet_over_time(
        self, start: datetime, end: datetime, step: timedelta, *, environment: str | None = None
    ) -> pd.DataFrame:
        """Return how many requests each service has in each step, where it has any.

        Returns:
            Columns service, at (UTC, start of the step), n; sorted by both.
        """
        with self._snapshot() as snapshot:
            return fleet.fleet_over_time(snapshot, Selection(start, end, environment=environment), step)

    def hardware(self, selection: Selection, step: timedelta) -> pd.DataFrame:
        """Return what the machines of *selection*'s service did in each step, where anything is known.

        It is that of whole processes: by which model or route requests are selected does not matter.

        Returns:
            Columns at (UTC, start of the step), measure (a key of `core.hardware.MEASURES`), place (`core.hardware.place`), mean
            and most (of what was told in the step, the latter at most 2.2 % too large; in the measure's unit, of a rate
            per second); sorted by time, measure and place. `attrs["step_seconds"]` is how wide the steps are.
        """
        with self._snapshot() as snapshot:
            return hardware.hardware(snapshot, selection, step)

    def groups(self, since: datetime) -> dict[Group, datetime]:
        """Return every service with requests after *since*, and its routes, models and versions where it has several.

        A service that is deployed in several environments is one group in each of them.

        Returns:
            Each with when it was first seen, of all that is kept.
        """
        with self._snapshot() as snapshot:
            found = minutes.groups(snapshot, math.ceil(since.timestamp()))
        return {group: moment(first) for group, first in found.items()}

    def all_minutes(self, start: datetime, end: datetime) -> dict[Group, MinuteCounts]:
        """Return the requests of every group of `groups`, minute by minute: one question for all of them.

        The window is counted in whole minutes. What is kept in buckets wider than a minute, or was counted in histograms
        coarser than ours, is left out; so is a group without requests.
        """
        with self._snapshot() as snapshot:
            return minutes.all_minutes(snapshot, Selection(start, end))

    def versions(self, selection: Selection) -> pd.DataFrame:
        """Return the versions of a selection over its whole history.

        Returns:
            Columns version, first_seen, last_seen (UTC, of all that is kept, exact to 10 s), requests (in the window, 0 if
            none); sorted by first_seen.
        """
        with self._snapshot() as snapshot:
            return services.versions(snapshot, selection)

    def environments(self) -> list[str]:
        """Return the environments that anything came from, by name; requests without one name none."""
        with self._snapshot() as snapshot:
            return services.environments(snapshot)

    def releases(self, environment: str | None = None) -> pd.DataFrame:
        """Return the versions of every service over the whole history: one cheap question for all of them.

        Returns:
            Columns service, version, first_seen, last_seen (UTC, of all that is kept, exact to 10 s); sorted by service, then
            first_seen.
        """
        with self._snapshot() as snapshot:
            return services.releases(snapshot, environment)

    def loads(self, service: str, environment: str | None = None) -> pd.DataFrame:
        """Return the phases of the cold starts of the replicas of *service*, newest first, over the whole history.

        Returns:
            Columns instance, place (its host and process), version, environment, phase (a key of `core.stages.LOAD_PHASES`), model, shape, started, ended (UTC),
            seconds (spent in no other phase), heard (UTC: when the replica was last heard of; NaT if not in ten minutes).
        """
        with self._snapshot() as snapshot:
            return loads.loads(snapshot, service, environment, int(self._clock()) - _HEARD_SECONDS)

    def dimensions(self, selection: Selection) -> dict[str, dict[str, int]]:
        """Return which values each dimension (service, version, model, route, device, …) has in the requests of *selection*.

        Returns:
            The dimension to its values with how many requests had each, most first; what is unknown is left out.
        """
        with self._snapshot() as snapshot:
            return services.dimensions(snapshot, selection)
