"""What pages read from: the store's queries and the alerts, each asked once for every revision of the data.

Tiles, charts, tables and the side bar of a page ask the same questions; the answers are kept until new data arrives, so
that they agree with each other and cost one query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, ParamSpec, Protocol, TypeVar

import pandas as pd

from ..alerts.reader import Incident, SloStatus
from ..collector.store import Reader, Selection, Store, StoreState
from .view import BUCKET_SECONDS

P = ParamSpec("P")
T = TypeVar("T")

# Windows move on by one bucket every 10 s: the oldest answers go first. An overview of 60 services asks 400 questions.
_MAX_ANSWERS = 2000
_HISTORY = timedelta(days=3650)


class AlertsSource(Protocol):
    """What the dashboard asks of the alerts: how the objectives stand, and the incidents."""

    def slos(self, now: datetime | None = None) -> Sequence[SloStatus]:
        """Return every objective as it stands."""
        ...

    def incidents(self) -> Sequence[Incident]:
        """Return the incidents, newest first."""
        ...


class Source:
    """The data behind the pages.

    Args:
        store: Where requests are counted.
        alerts: What is known of objectives and incidents; None where alerts do not run.
        clock: Returns the present in Unix seconds.
    """

    def __init__(self, store: Store, alerts: AlertsSource | None, clock: Callable[[], float]) -> None:
        self.read: Reader = store.read
        self._alerts = alerts
        self._clock = clock
        self._lock = Lock()
        self._answers: dict[tuple[Any, ...], Any] = {}
        self._revision: object = None

    def now(self) -> datetime:
        """Return the present."""
        return datetime.fromtimestamp(self._clock(), UTC)

    def revision(self, service: str | None = None) -> int:
        """Return a number that grows whenever data of *service* arrives, or of any."""
        return self.read.revision(service)

    def state(self) -> StoreState:
        """Return how the store and the agents are, always fresh."""
        return self.read.state()

    def ask(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what *query* answers, from memory while no data arrived since it was asked the same.

        The arguments must be hashable, and nobody may change an answer.
        """
        key = (query.__name__, args, tuple(sorted(kwargs.items())))
        revision = self.revision()
        with self._lock:
            if self._revision != revision:
                self._answers.clear()
                self._revision = revision
            if key in self._answers:
                return self._answers[key]
        answer = query(*args, **kwargs)
        with self._lock:
            if self._revision == revision:
                self._answers[key] = answer
                if len(self._answers) > _MAX_ANSWERS:
                    del self._answers[next(iter(self._answers))]
        return answer

    def services(self, start: datetime, end: datetime) -> pd.DataFrame:
        """Return the services with data in the window, one row each."""
        return self.ask(self.read.services, start, end)

    def all_services(self) -> pd.DataFrame:
        """Return every service that was ever seen and is still kept."""
        end = datetime.fromtimestamp(self._clock() // 60 * 60 + 3600, UTC)
        return self.ask(self.read.services, end - _HISTORY, end)

    def versions(self, service: str, environment: str | None, start: datetime, end: datetime) -> pd.DataFrame:
        """Return the versions of *service* over its whole history, oldest first."""
        return self.ask(self.read.versions, Selection(start, end, service=service, environment=environment))

    def slos(self) -> list[SloStatus]:
        """Return every objective as it stands, the most urgent first; none where alerts do not run."""
        if self._alerts is None:
            return []
        # By the step of the data: an objective changes with time alone when its data stops.
        now = datetime.fromtimestamp(self._clock() // BUCKET_SECONDS * BUCKET_SECONDS, UTC)
        found = list(self.ask(self._alerts.slos, now))
        return sorted(found, key=lambda each: (_URGENCY[each.state], -each.burn_1h, each.slo.name))

    def slo_of(self, service: str) -> SloStatus | None:
        """Return the most urgent objective of *service* that is about latency, or the most urgent one."""
        own = [each for each in self.slos() if each.slo.service == service]
        return next((each for each in own if each.slo.threshold is not None), own[0] if own else None)

    def incidents(self) -> list[Incident]:
        """Return the incidents, newest first; none where alerts do not run."""
        return [] if self._alerts is None else list(self._alerts.incidents())

    @property
    def has_alerts(self) -> bool:
        """Whether alerts run beside the dashboard."""
        return self._alerts is not None


_URGENCY = {"burning": 0, "at_risk": 1, "healthy": 2, "no_data": 3}
