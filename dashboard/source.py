"""Data source of the pages: store queries and alert states, cached per revision of the data.

Tiles, charts, tables and the side bar of a page run the same queries. A result stays cached until new data arrives for
the services it covers, so that all parts of a page agree and a query runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, Protocol, TypeVar

import pandas as pd

from ..alerts.delivery.channels import ChannelEntry
from ..alerts.evaluation.slo_status import SloStatus
from ..alerts.objectives.slo import Slo
from ..alerts.objectives.slo_file import Definitions, LiveSloFile
from ..alerts.reader import Incident
from ..alerts.regression.record import AlertRecord, read_record
from ..analysis.costs import Costs
from ..analysis.regression.policy import default_watch_policy
from ..analysis.slo_status import URGENCY
from ..store import Reader, Selection, Store, StoreState
from ..store.events import Event
from ..store.queries.windows import WindowQuery, WindowTable
from ..store.query_cache import QueryCache
from ..store.schema import storable_name as stored
from .access import EVERYTHING, ReaderAccess, Role
from .config import DashboardConfig
from .incident_actions import IncidentActions
from .view import BUCKET_SECONDS, View

P = ParamSpec("P")
T = TypeVar("T")
# Windows advance by one bucket every 10 s, so most cached results are never requested again.
_MAX_BYTES = 64_000_000
# Queries of Grafana, which may all differ, have a cache of their own.
_MAX_WINDOW_BYTES = 16_000_000
_HISTORY = timedelta(days=3650)
# Cache time of results about past times. [seconds]
_PAST_SECONDS = 3600


class AlertsSource(Protocol):
    """Alert data that the dashboard reads: objectives and incidents."""

    def slos(self, now: datetime | None = None) -> Sequence[SloStatus]: ...

    def incidents(self) -> Sequence[Incident]: ...

    def problems(self) -> Sequence[str]: ...


class Source:
    """Data source of the pages; *clock*: function that returns the current time [Unix seconds]."""

    def __init__(
        self,
        store: Store,
        alerts: AlertsSource | None,
        clock: Callable[[], float],
        *,
        tracer: str | None = None,
        config: DashboardConfig | None = None,
    ) -> None:
        self.read: Reader = store.read
        self.store = store
        self._alerts = alerts
        self.clock = clock
        self.costs = Costs(config.prices, self.now) if config and config.prices else None
        self.tracer = tracer
        self.config = config
        self.incident_actions = IncidentActions(store, self.now)
        self.access = EVERYTHING
        self._whole = self
        self._results = QueryCache(_MAX_BYTES)
        self._windows = QueryCache(_MAX_WINDOW_BYTES)

    def of_reader(self, access: ReaderAccess) -> Source:
        """Return this source as a reader with the rights *access* sees it, for pages, the API and actions."""
        source = copy(self._whole)
        source.access = access
        shows = None if access.environments is None else source.shows
        source.incident_actions = self._whole.incident_actions.of_reader(shows, source.require)
        if access.environments is not None:
            source.read = self._whole.read.within(access.environments)
            source.costs = self._whole.costs and self._whole.costs.of_reader(source.shows)
        return source

    @property
    def is_restricted(self) -> bool:
        return self.access.environments is not None

    def shows(self, service: str, environment: str) -> bool:
        """Return whether the reader may see what is about *service* in *environment*; "" for all."""
        return self.access.allows(self._environments_of(service, environment))

    def require(self, service: str, environment: str, role: Role) -> None:
        """Raise an error unless the reader has *role* for *service* in *environment*; "" for all."""
        environments_of_service, seen = self._environments_of(service, environment), self.access.environments
        # The error names no environment that the reader may not see.
        is_named = environment or environments_of_service is None or seen is None or environments_of_service <= seen
        self.access.require(environments_of_service if is_named else None, role)

    def writing_environment(self, chosen: str | None) -> str:
        """Return the environment of what a reader writes about a service: the chosen or only one; "" for all."""
        if self.access.environments is None:
            return ""
        return chosen or (next(iter(self.access.environments)) if len(self.access.environments) == 1 else "")

    def _environments_of(self, service: str, environment: str) -> frozenset[str] | None:
        """Return the environments of something about *service*; None for all environments, also of an unknown service."""
        if environment:
            return frozenset({environment})
        whole = self._whole
        return whole.cached(whole.read.service_environments).get(service) if service else None

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    def add_event(self, event: Event) -> None:
        self.require(event.service, event.environment, "responder")
        self.store.add_event(event)

    def revision(self, service: str | None = None) -> int:
        """Return the revision of the data of *service*, or of all services; the number grows when data arrives."""
        return self.read.revision(service)

    def state(self) -> StoreState:
        """Return the state of the store and the agents, uncached; a restricted reader gets no counts of all environments."""
        state = self.read.state()
        if not self.is_restricted:
            return state
        return replace(state, last_received=None, instances=0, dropped=0, size_bytes=0, shortened={})

    def cached(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *query*, cached until new data arrives.

        A result about selected services is valid until one of them has new data; any other result until any service has.
        The arguments must be hashable, and callers must not modify a result.
        """
        return self._results.get(*self._entry(query, args, kwargs), lambda: query(*args, **kwargs))

    def cached_windows(self, about: Selection, query: WindowQuery) -> WindowTable:
        return self._windows.get(
            *self._entry(self.read.windows, (about, query), {}), lambda: self.read.windows(about, query)
        )

    def cached_hour(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *query* about a past time, cached for up to an hour even if data arrives.

        Use it for queries about many services at every refresh, which late data hardly changes.
        """
        return self._results.get(*self._past_entry(query, args, kwargs), lambda: query(*args, **kwargs))

    def read_ahead(
        self, query: Callable[[Selection], T], together: Callable[[list[Selection]], list[T]], past: list[Selection]
    ) -> None:
        """Cache the results of *query* for the selections *past*, as `cached_hour` does, with one call of *together*."""
        entries = {side: self._past_entry(query, (side,), {}) for side in past}
        missing = [side for side, entry in entries.items() if self._results.known(*entry) is None]
        for selection, result in zip(missing, together(missing) if missing else (), strict=True):
            self._results.get(*entries[selection], lambda result=result: result)

    def _entry(
        self, query: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[Hashable, Hashable]:
        key = (self.access.environments, query.__qualname__, args, tuple(sorted(kwargs.items())))
        return key, self._revision_of((*args, *kwargs.values()))

    def _past_entry(
        self, query: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[Hashable, Hashable]:
        key = ("past", self.access.environments, query.__qualname__, args, tuple(sorted(kwargs.items())))
        # The hour of each query starts at a different time, so that not all results expire together.
        return key, (self.clock() + hash(key) % _PAST_SECONDS) // _PAST_SECONDS

    def _revision_of(self, arguments: Iterable[object]) -> tuple[int, ...]:
        """Return the revisions of the services that *arguments* select; the revision of the store without a service."""
        asked = [argument.service for argument in arguments if isinstance(argument, Selection)]
        services = {service for service in asked if service is not None}
        alone = asked and None not in asked
        return tuple(self.revision(service) for service in sorted(services)) if alone else (self.revision(),)

    def whole(self, view: View) -> View:
        window = self.whole_window(view.start, view.end)
        return view if window == (view.start, view.end) else replace(view, fixed_window=window)

    def whole_window(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """Return `[start, end)` in whole buckets of the store."""
        return self.cached(self.read.whole, start, end)

    def services(self, start: datetime, end: datetime) -> pd.DataFrame:
        return self.cached(self.read.services, start, end)

    def all_services(self, environment: str | None = None) -> pd.DataFrame:
        end = datetime.fromtimestamp(self.clock() // 60 * 60 + 3600, UTC)
        return self.cached(self.read.services, end - _HISTORY, end, environment=environment)

    def versions(self, service: str, environment: str | None, start: datetime, end: datetime) -> pd.DataFrame:
        return self.cached(self.read.versions, Selection(start, end, service=service, environment=environment))

    def slos(self, at: datetime | None = None) -> list[SloStatus]:
        """Return the status of every objective now or *at*, most urgent first; none without alerts."""
        if self._alerts is None:
            return []
        # The time is rounded to steps: without new data, an objective changes only because the data is missing.
        now = datetime.fromtimestamp(self.clock() // BUCKET_SECONDS * BUCKET_SECONDS, UTC)
        statuses: list[SloStatus] = list(self._whole.cached(self._alerts.slos, at or now))
        if self.is_restricted:
            statuses = [status for status in statuses if self.shows(status.slo.service, status.slo.environment or "")]
        return sorted(statuses, key=lambda status: (URGENCY[status.state], -(status.burn_1h or 0.0), status.slo.name))

    def slo_of(self, about: Selection, at: datetime | None = None) -> SloStatus | None:
        """Return the objective that best matches the requests *about*, now or *at*; None without objectives.

        Order of preference: overlapping scope, latency objective, narrowest scope, more severe state, complete coverage.
        """
        statuses = [status for status in self.slos(at) if status.slo.service == about.service]
        return min(statuses, key=lambda status: _match_rank(status, about), default=None)

    def covering_slo(self, about: Selection, at: datetime | None = None) -> SloStatus | None:
        """Return the latency objective that covers every request *about*, now or *at*; None without one."""
        statuses = [status for status in self.slos(at) if status.slo.service == about.service]
        able = [
            status for status in statuses if status.slo.threshold_seconds is not None and _covers(status.slo, about)
        ]
        return min(able, key=lambda status: _match_rank(status, about), default=None)

    def incidents(self) -> list[Incident]:
        return [] if self._alerts is None else self.incident_actions.visible(self._alerts.incidents())

    def incidents_between(self, start: datetime, end: datetime | None = None, cause: str = "") -> list[Incident]:
        """Return the incidents that were open at any time in `[start, end)`, see `IncidentActions.between`; none without alerts."""
        return [] if self._alerts is None else self.incident_actions.between(start, end, cause, history=True)

    def regression_record(self) -> AlertRecord | None:
        """Return the record of the regression alerts, also those that the reader may not see; None without the search."""
        file = self.slo_file
        settings = file.current.regressions if file is not None and file.current is not None else None
        if settings is None:
            return None
        now = datetime.fromtimestamp(self.clock() // 60 * 60, UTC)
        return self._whole.cached(read_record, self.store, default_watch_policy().record, settings, now)

    def signing_channels(self, kind: str) -> list[ChannelEntry]:
        definitions = self.definitions()
        return [
            channel
            for channel in (definitions.channels if definitions else ())
            if channel.kind == kind and channel.signing_secret
        ]

    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of the services of which the reader sees data."""
        definitions = self.definitions()
        all_labels = definitions.labels if definitions else {}
        visible = self.cached(self.read.service_environments) if self.is_restricted else all_labels
        return {service: labels for service, labels in all_labels.items() if service in visible}

    def definitions(self) -> Definitions | None:
        """Return the current content of the SLO file; None without a valid one."""
        file = self.slo_file
        if file is None:
            return None
        file.refresh(self.now())
        return file.current

    @property
    def slo_file(self) -> LiveSloFile | None:
        file = getattr(self._alerts, "file", None)
        return file if isinstance(file, LiveSloFile) and file.path is not None else None

    def slo_problems(self) -> tuple[str, ...]:
        """Return the problems of the current SLO file, one line each; none without alerts, or for a restricted reader."""
        return () if self._alerts is None or self.is_restricted else tuple(self._alerts.problems())

    @property
    def has_alerts(self) -> bool:
        return self._alerts is not None


def _match_rank(status: SloStatus, about: Selection) -> tuple[bool, bool, int, int, bool]:
    """Return the sort key by which an objective matches the selection *about*, most important criterion first."""
    pairs = _parts(status.slo, about)
    others = any(None not in pair and pair[0] != pair[1] for pair in pairs)
    wider = sum(promised is None and chosen is not None for promised, chosen in pairs)
    return others, status.slo.threshold_seconds is None, wider, URGENCY[status.state], not _covers(status.slo, about)


def _covers(slo: Slo, about: Selection) -> bool:
    """Return whether *slo* covers every request of *about*; for a view of all environments, those of *slo*."""
    return all(promised in (None, chosen) for promised, chosen in _parts(slo, about))


def _parts(slo: Slo, about: Selection) -> list[tuple[str | None, str | None]]:
    """Return pairs of the values of the objective and of the selection, by dimension; None means all."""
    promised = [value if value is None else stored(value) for value in (slo.version, slo.model, slo.route)]
    pairs = list(zip(promised, (about.version, about.model, about.route), strict=True))
    # A view of all environments also shows objectives of a single environment.
    return [*pairs, (slo.environment, about.environment or slo.environment)]
