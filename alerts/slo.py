"""What a service level objective is: a promise about a share of requests over a window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ..collector.store import Selection
from .words import duration, percent


@dataclass(frozen=True, slots=True)
class Slo:
    """One promise: in any *window*, at least *objective* of the requests are good.

    A request is bad when it failed, or when it took longer than *threshold*.

    Args:
        name: What people call it; unique in its file, and the cause an incident is opened for.
        service: Whose requests count.
        objective: The share of good requests promised. [ratio, 0 < x < 1]
        window: The rolling period the promise is about.
        threshold: Slower than this is bad; None for availability only.
        route: Only requests of this route; None for all, as for the other dimensions.
        description: A sentence for the person who gets paged.
        runbook: The address of what to do then.
    """

    name: str
    service: str
    objective: float
    window: timedelta
    threshold: timedelta | None = None
    route: str | None = None
    model: str | None = None
    version: str | None = None
    environment: str | None = None
    description: str = ""
    runbook: str = ""

    @property
    def kind(self) -> str:
        """`latency` when slowness counts, `availability` when only failures do."""
        return "availability" if self.threshold is None else "latency"

    @property
    def threshold_seconds(self) -> float | None:
        """The threshold as the store's queries take it, in seconds."""
        return None if self.threshold is None else self.threshold.total_seconds()

    @property
    def budget(self) -> float:
        """The share of requests that may be bad."""
        return 1 - self.objective

    def select(self, start: datetime, end: datetime) -> Selection:
        """Return the requests of `[start, end)` this promise is about."""
        return Selection(
            start=start,
            end=end,
            service=self.service,
            version=self.version,
            environment=self.environment,
            model=self.model,
            route=self.route,
        )

    def in_words(self) -> str:
        """Say the promise as a sentence would.

        >>> Slo("x", "shop", 0.99, timedelta(days=30), timedelta(milliseconds=250)).in_words()
        '99 % of requests to shop succeed within 250 ms, over 30 days'
        """
        where = [self.service]
        where += [f"{key} {value}" for key, value in self._filters() if value]
        speed = "" if self.threshold is None else f" within {duration(self.threshold)}"
        return (
            f"{percent(self.objective)} of requests to {', '.join(where)} succeed{speed}, over {duration(self.window)}"
        )

    def _filters(self) -> tuple[tuple[str, str | None], ...]:
        return (
            ("route", self.route),
            ("model", self.model),
            ("version", self.version),
            ("environment", self.environment),
        )
