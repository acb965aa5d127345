"""What a service level objective is: a promise about a share of requests over a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from ...store import Indicator, Selection
from ...store.selection import Kind
from ..formatting import duration, latency, percent
from .maintenance import MaintenanceCalendar

Watched = Literal["request", "ttft", "tpot", "stage", "coverage", "freshness"]
KINDS: tuple[Kind, ...] = ("latency", "availability", "ttft", "tpot", "stage", "coverage", "freshness")


@dataclass(frozen=True, slots=True)
class Slo:
    """One promise: in any *window*, at least *objective* of what is counted is good.

    Of requests, bad are those that failed or took longer than *threshold*. What else can be promised, and what counts as
    bad then, says `Indicator`.

    Args:
        name: What people call it; unique in its file, and the cause an incident is opened for.
        service: Whose requests count.
        objective: The share of good requests promised. [ratio, 0 < x < 1]
        window: The rolling period the promise is about.
        threshold: Slower, or older, than this is bad; None for availability and coverage.
        route: Only requests of this route; None for all, as for the other dimensions.
        description: A sentence for the person who gets paged.
        runbook: The address of what to do then.
        watched: What the promise is about; with `request` and no threshold, whether it succeeds.
        stage: The stage of a promise about one.
        definition: How the first token is found, for a promise about tokens; None for any way.
        budgets: How the threshold is split among stages: each with its time. Adds up to the threshold at most.
        reset: What was before counts no more; None for never.
        maintenance: When requests do not count, and nobody is told of them.
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
    watched: Watched = "request"
    stage: str | None = None
    definition: str | None = None
    budgets: tuple[tuple[str, timedelta], ...] = ()
    reset: datetime | None = None
    maintenance: MaintenanceCalendar = field(default_factory=MaintenanceCalendar)

    @property
    def kind(self) -> Kind:
        """What is promised: `latency` when slowness counts, `availability` when only failures do, or one of the others."""
        if self.watched == "request":
            return "availability" if self.threshold is None else "latency"
        return self.watched

    @property
    def threshold_seconds(self) -> float | None:
        """The promised latency of whole requests, in seconds; None for a promise about anything else."""
        return self.threshold.total_seconds() if self.kind == "latency" and self.threshold is not None else None

    @property
    def indicator(self) -> Indicator:
        """What the store counts for it."""
        seconds = None if self.threshold is None else self.threshold.total_seconds()
        return Indicator(self.kind, seconds, self.stage or self.definition)

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
        share, whose = percent(self.objective), ", ".join([self.service, *self._filters()])
        limit = "" if self.threshold is None else _span(self.threshold)
        said = {
            "latency": f"{share} of requests to {whose} succeed within {limit}",
            "availability": f"{share} of requests to {whose} succeed",
            "ttft": f"{share} of requests to {whose} have their first token within {limit}",
            "tpot": f"{share} of requests to {whose} need at most {limit} a token after the first",
            "stage": f"{share} of requests to {whose} spend at most {limit} in {self.stage}",
            "coverage": f"stages explain {share} of the time of requests to {whose}",
            "freshness": f"{share} of the time, the newest data of {whose} are at most {limit} old",
        }
        return f"{said[self.kind]}, over {duration(self.window)}"

    def _filters(self) -> list[str]:
        values = {
            "route": self.route,
            "model": self.model,
            "version": self.version,
            "environment": self.environment,
            "definition": self.definition,
        }
        return [f"{key} {value}" for key, value in values.items() if value]


def _span(length: timedelta) -> str:
    """Return a threshold: 90 s is better read as 90 s than as 2 minutes."""
    seconds = length.total_seconds()
    return duration(length) if seconds >= 120 and seconds % 60 == 0 else latency(seconds)  # noqa: PLR2004 - two minutes
