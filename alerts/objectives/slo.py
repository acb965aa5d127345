"""Service level objectives: the definition of an SLO, and the parser of an entry of `slos` in the SLO file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ...core.names import DEFINITIONS
from ...core.settings.field_types import Duration, Moment, Ratio, Text, WebAddress, one_of, reject
from ...core.settings.section import Fault, Section
from ...core.settings.yaml_config import Place, meant
from ...core.stages import BY_KEY
from ...store import Indicator, Selection
from ...store.selection import Kind
from ..formatting import duration, latency, percent
from .maintenance import MaintenanceCalendar

Watched = Literal["request", "ttft", "tpot", "stage", "coverage", "freshness"]
KINDS: tuple[Kind, ...] = ("latency", "availability", "ttft", "tpot", "stage", "coverage", "freshness")
# Below a week the windows of the policy are as long as the SLO's window; data are retained for at most a quarter.
MIN_WINDOW, MAX_WINDOW = timedelta(days=7), timedelta(days=90)
MAX_NAME_CHARS = 200
_HOUR = timedelta(hours=1)
# Data arrive every ten seconds, and freshness is counted in minutes.
_MIN_AGE, _MAX_AGE = timedelta(minutes=1), timedelta(days=7)
# Example thresholds of the kinds that have a threshold.
THRESHOLDS: Mapping[Kind, str] = {
    "latency": "250ms",
    "ttft": "500ms",
    "tpot": "50ms",
    "stage": "50ms",
    "freshness": "5m",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective: in any *window*, at least the share *objective* of requests is good.

    A request is bad if it failed or took longer than *threshold*. `Indicator` defines bad requests for the other kinds.

    Args:
        objective: Required share of good requests. [ratio, 0 < x < 1]
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
        """Kind of the objective: `latency` or `availability` for requests, by their threshold, else *watched*."""
        if self.watched == "request":
            return "availability" if self.threshold is None else "latency"
        return self.watched

    @property
    def threshold_seconds(self) -> float | None:
        """Latency threshold of whole requests in seconds; None for other kinds."""
        return self.threshold.total_seconds() if self.kind == "latency" and self.threshold is not None else None

    @property
    def indicator(self) -> Indicator:
        seconds = None if self.threshold is None else self.threshold.total_seconds()
        return Indicator(self.kind, seconds, self.stage or self.definition)

    @property
    def budget(self) -> float:
        """Error budget: the share of requests that may be bad."""
        return 1 - self.objective

    def select(self, start: datetime, end: datetime) -> Selection:
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
        """Return the objective as a sentence.

        >>> Slo("x", "shop", 0.99, timedelta(days=30), timedelta(milliseconds=250)).in_words()
        '99 % of requests to shop succeed within 250 ms, over 30 days'
        """
        share, subject = percent(self.objective), ", ".join([self.service, *self._filters()])
        limit = "" if self.threshold is None else _span(self.threshold)
        sentences = {
            "latency": f"{share} of requests to {subject} succeed within {limit}",
            "availability": f"{share} of requests to {subject} succeed",
            "ttft": f"{share} of requests to {subject} have their first token within {limit}",
            "tpot": f"{share} of requests to {subject} need at most {limit} per token after the first",
            "stage": f"{share} of requests to {subject} spend at most {limit} in {self.stage}",
            "coverage": f"stages cover {share} of the time of requests to {subject}",
            "freshness": f"{share} of the time, the newest data of {subject} is at most {limit} old",
        }
        return f"{sentences[self.kind]}, over {duration(self.window)}"

    def _filters(self) -> list[str]:
        keys = ("route", "model", "version", "environment", "definition")
        return [f"{key} {value}" for key in keys if (value := getattr(self, key))]


def _span(length: timedelta) -> str:
    seconds = length.total_seconds()
    return duration(length) if seconds >= 120 and seconds % 60 == 0 else latency(seconds)  # noqa: PLR2004 - two minutes


@dataclass(frozen=True, slots=True)
class SloEntry:
    place: Place
    name: str
    slos: tuple[Slo, ...]
    service: str

    @property
    def names(self) -> list[str]:
        """Names that must be unique: of the SLOs, or of the entry if it is invalid."""
        return [slo.name for slo in self.slos] or [self.name]


def _in_limits(window: timedelta) -> timedelta:
    if not MIN_WINDOW <= window <= MAX_WINDOW:
        limits = f"{MIN_WINDOW.days}d to {MAX_WINDOW.days}d"
        reject(f"is {window.total_seconds() / 86_400:g}d; write a window from {limits}, such as 30d")
    return window


class IndicatorSection(Section):
    """Keys that define what an SLO measures: of an entry of `slos`, and of the `spec` of an OpenSLO metric source."""

    example = "kind: latency"

    kind: Annotated[Kind, one_of(KINDS)] | None = None
    threshold: Duration | None = Field(default=None, examples=["250ms"])
    stage: Text | None = None
    definition: Annotated[str, one_of(DEFINITIONS)] | None = None
    route: Text | None = None
    model: Text | None = None
    version: Text | None = None
    environment: Text | None = None

    @property
    def has_threshold(self) -> bool:
        """Whether a threshold is given, which makes an objective without a kind one of latency."""
        return self.threshold is not None

    @property
    def measured(self) -> Kind:
        return self.kind or ("stage" if self.stage else "latency" if self.has_threshold else "availability")

    def faults(self) -> Iterator[Fault]:
        if self.stage and self.measured != "stage":
            yield Fault("stage", f"is not valid with kind {self.kind}; write `kind: stage`, or remove it")
        elif self.stage:
            yield from _typo("stage", self.stage)
        elif self.measured == "stage":
            yield Fault("stage", "is missing; add `stage: queue`")
        if self.definition and self.measured not in ("ttft", "tpot"):
            yield Fault("definition", "is valid only with kind ttft and tpot; remove it")

    def slo(self, name: str, service: str, window: timedelta) -> Slo:
        kind = self.measured
        watched: Watched = "request" if kind in ("latency", "availability") else kind
        keys = {"threshold", "stage", "definition", "route", "model", "version", "environment"}
        return Slo(name, service, 0.5, window, watched=watched, **self.model_dump(include=keys))


def _typo(key: str | Place, stage: str) -> Iterator[Fault]:
    question = meant(stage, BY_KEY)
    if stage not in BY_KEY and question:
        yield Fault(key, f"names {stage!r}, which is not a built-in stage{question}", is_warning=True)


class ThresholdSection(Section):
    """Entry of `thresholds`: one objective of several for the same requests."""

    example = "threshold: 250ms"

    threshold: Duration | None = Field(default=None, examples=["250ms"])
    objective: Ratio = Field(examples=["0.99"])
    name: Text | None = None


class SloSection(IndicatorSection):
    """Entry of `slos` in the SLO file."""

    example = "name: checkout-latency"

    name: Text = Field(examples=["checkout-latency"])
    service: Text = Field(examples=["checkout"])
    objective: Ratio | None = Field(default=None, examples=["0.99"])
    window: Annotated[Duration, AfterValidator(_in_limits)] = Field(examples=["30d"])
    thresholds: tuple[ThresholdSection, ...] | None = None
    budgets: dict[str, Duration] = Field(default={}, examples=["queue: 50ms"])
    description: Text = ""
    runbook: WebAddress = ""
    reset: Moment | None = Field(default=None, examples=["2026-11-01T00:00Z"])

    @property
    def has_threshold(self) -> bool:
        return self.threshold is not None or self.thresholds is not None

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.thresholds is None:
            if self.objective is None:
                yield Fault("objective", "is missing; add `objective: 0.99`")
            yield from self._threshold_faults((), self.threshold)
        else:
            yield from self._thresholds_faults(self.thresholds)
        yield from self._budget_faults()
        yield from name_faults(slo.name for slo in self.slos())

    def slos(self) -> tuple[Slo, ...]:
        base = replace(
            self.slo(self.name, self.service, self.window),
            description=self.description,
            runbook=self.runbook,
            reset=self.reset,
            budgets=tuple(self.budgets.items()),
        )
        if self.thresholds is None:
            return (replace(base, objective=self.objective or 0.5),)
        return tuple(
            replace(
                base,
                name=f"{base.name} ({threshold.name or latency((threshold.threshold or _HOUR).total_seconds())})",
                objective=threshold.objective,
                threshold=threshold.threshold,
            )
            for threshold in self.thresholds
        )

    def _thresholds_faults(self, thresholds: Sequence[ThresholdSection]) -> Iterator[Fault]:
        for key in ("threshold", "objective"):
            if getattr(self, key) is not None:
                yield Fault(key, "is set next to thresholds; move it into each threshold")
        if not thresholds:
            yield Fault("thresholds", "is empty; write `- {objective: 0.99, threshold: 250ms}`")
        for position, threshold in enumerate(thresholds):
            yield from self._threshold_faults(("thresholds", position), threshold.threshold)
            if threshold.threshold in [other.threshold for other in thresholds[:position]]:
                text = "is listed twice; write one objective for each threshold"
                yield Fault(("thresholds", position, "threshold"), text)

    def _threshold_faults(self, location: Place, threshold: timedelta | None) -> Iterator[Fault]:
        key, example = (*location, "threshold"), THRESHOLDS.get(self.measured)
        if threshold is None and example is not None:
            yield Fault(key, f"is missing; add `threshold: {example}`")
        elif threshold is not None and example is None:
            yield Fault(key, f"is not valid with kind {self.measured}; remove it")
        elif threshold is not None:
            yield from threshold_faults(key, threshold, self.measured)

    def _budget_faults(self) -> Iterator[Fault]:
        if self.budgets and self.measured != "latency":
            yield Fault("budgets", "are valid only with kind latency; remove them")
            return
        for stage in self.budgets:
            yield from _typo(("budgets", stage), stage)
        thresholds = [section.threshold for section in self.thresholds or (self,) if section.threshold is not None]
        total = sum(self.budgets.values(), timedelta(0))
        if thresholds and total > min(thresholds):
            yield Fault(
                "budgets",
                f"add up to {latency(total.total_seconds())}, more than the threshold of "
                f"{latency(min(thresholds).total_seconds())}; reduce them, or raise the threshold",
            )


def threshold_faults(key: str | Place, threshold: timedelta, kind: Kind) -> Iterator[Fault]:
    if kind == "freshness" and not _MIN_AGE <= threshold <= _MAX_AGE:
        yield Fault(key, "is not between 1m and 7d; write the maximum age of data, such as 5m")
    if kind != "freshness" and threshold > _HOUR:
        yield Fault(key, "is longer than an hour; write the latency limit of one request")


def name_faults(names: Iterable[str]) -> Iterator[Fault]:
    """Yield an error if a name is too long for the cause of an incident."""
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME_CHARS:
        yield Fault("name", f"has {longest} characters; use at most {MAX_NAME_CHARS}")
