"""Findings and messages: the facts about an incident, common to all channels and stored as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...analysis.comparison import StageGrowth, dominant_growth
from ..policies import Severity


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast the error budget of an SLO is spent.

    Args:
        rate: The burn rate over the short window: how fast now.
        threshold: The burn rate that fires the tier.
        long_seconds: The tier's long window. [seconds]
        short_seconds: Its short one. [seconds]
        bad: Bad requests of the short window. [count]
        total: All requests of the short window. [count]
        budget_left: The unspent share of the budget. [ratio]
        bad_left: How many more bad requests it bears. [count]
        window_seconds: The SLO's window. [seconds]
        exhausted_in_seconds: When the budget is gone at this pace; None when it never will be. [seconds]
    """

    rate: float
    threshold: float
    long_seconds: float
    short_seconds: float
    bad: float
    total: float
    budget_left: float
    bad_left: float
    window_seconds: float
    exhausted_in_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyRegression:
    """How much slower the tail became.

    Args:
        at: Which percentile [0 < x < 1], or the mean.
        before_seconds: What it was in the reference. [seconds]
        after_seconds: What it is. [seconds]
        low: The smallest change that is likely: after / before. [ratio]
        high: The largest.
        requests: How many it is measured on. [count]
        window_seconds: Over how long. [seconds]
        z: How far from what is usual here, in robust standard deviations.
        mix: What else changed, in words; empty when the traffic is what it was.
        against: The version that serves beside it and is compared to; empty for the days before.
    """

    at: float | Literal["mean"]
    before_seconds: float
    after_seconds: float
    low: float
    high: float
    requests: int
    window_seconds: float
    z: float
    mix: str = ""
    against: str = ""

    @property
    def ratio(self) -> float:
        """After / before."""
        return self.after_seconds / self.before_seconds


@dataclass(frozen=True, slots=True)
class MissingTraffic:
    """Requests that do not come any more.

    Args:
        usual: How many came in as long a time before, at the least. [count]
        before_seconds: How long before. [seconds]
        window_seconds: The time they are missed in. [seconds]
    """

    usual: float
    before_seconds: float
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One slow request to look at.

    Args:
        trace: What names it in the dashboard.
        seconds: How long it took. [seconds]
        stage: Where most of it went.
        stage_seconds: How much. [seconds]
        link: Its page; empty without a dashboard address.
    """

    trace: str
    seconds: float
    stage: str
    stage_seconds: float
    link: str = ""


@dataclass(frozen=True, slots=True)
class BudgetOverrun:
    """A stage that took more than its part of the threshold.

    Args:
        stage: Which.
        seconds: What it took, in the requests that must just fit. [seconds]
        budget_seconds: Its part. [seconds]
    """

    stage: str
    seconds: float
    budget_seconds: float


@dataclass(frozen=True, slots=True)
class Trend:
    """How the trouble went so far, for a small picture of it.

    Args:
        values: The burn rate, or the percentile in seconds, of one step after the other; None where nothing was seen.
        step_seconds: How long each step is. [seconds]
        start: When the first began. [Unix seconds]
    """

    values: tuple[float | None, ...]
    step_seconds: float
    start: float

    @property
    def end(self) -> float:
        """When the last step ends, in Unix seconds."""
        return self.start + self.step_seconds * len(self.values)

    @property
    def highest(self) -> float | None:
        """The highest value; None where nothing was seen."""
        return max((value for value in self.values if value is not None), default=None)


Transition = Literal["opened", "updated", "acknowledged", "resolved", "reopened"]
Ending = Literal["", "recovered", "no_data", "removed", "accepted"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one evaluation found: an SLO that burns, a tail that became slower, or requests that do not come any more.

    Exactly one of `burn`, `shift` and `absence` is there.

    Args:
        name: The SLO's name, or what became slower.
        service: Whose requests.
        promise: The SLO in words, or what was usual.
        kind: Of the SLO, such as `latency`; `tail` for a regression, `no_data` for requests that do not come.
        severity: `page` or `ticket`.
        since: When the trouble began. [Unix seconds]
        burn: How fast the budget is spent.
        shift: How much slower.
        absence: What is missed.
        growth: Every stage that grew, worst first.
        version: The release it came with; empty when it came with none.
        between: The times that the trouble began between, with 95 % confidence; None where nobody knows. [Unix seconds]
        stage: The stage of the objective; empty for one about whole requests.
        exemplars: A few slow requests, one for each cause.
        overruns: The stages that broke their budgets, worst first.
        course: How it went so far.
        description: The SLO's own sentence.
        runbook: The address of what to do.
        link: The page that shows it.
        where: What else it is about, of `environment`, `route`, `model` and `version`; empty for all of the service.
    """

    name: str
    service: str
    promise: str
    kind: str
    severity: Severity
    since: float
    burn: Burn | None = None
    shift: LatencyRegression | None = None
    growth: tuple[StageGrowth, ...] = ()
    version: str = ""
    between: tuple[float, float] | None = None
    stage: str = ""
    exemplars: tuple[Exemplar, ...] = ()
    overruns: tuple[BudgetOverrun, ...] = ()
    course: Trend | None = None
    description: str = ""
    runbook: str = ""
    link: str = ""
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    absence: MissingTraffic | None = None

    @property
    def blamed(self) -> StageGrowth | None:
        """The stage that stands out, if one does."""
        return dominant_growth(self.growth)

    @property
    def size(self) -> float:
        """How bad it is, to be compared with itself at another time: the burn rate, or how many times slower."""
        if self.burn is not None:
            return self.burn.rate
        return self.shift.ratio if self.shift is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON keeps it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        """Read back what `to_json` wrote."""
        parts: dict[str, Any] = {
            "burn": raw["burn"] and Burn(**raw["burn"]),
            "shift": raw["shift"] and LatencyRegression(**raw["shift"]),
            "growth": tuple(StageGrowth(**row) for row in raw["growth"]),
            "exemplars": tuple(Exemplar(**row) for row in raw["exemplars"]),
            "overruns": tuple(BudgetOverrun(**row) for row in raw.get("overruns", ())),
            "course": _trend_from_json(raw.get("course")),
            "absence": _missing_traffic_from_json(raw.get("absence")),
            "between": tuple(raw["between"]) if raw.get("between") else None,
        }
        # What an older version kept and this one does not know is left out.
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in {**raw, **parts}.items() if name in known})


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to tell one channel about one incident.

    Args:
        incident: The incident's id.
        sequence: The number of the transition within the incident; with the id, the message's name.
        transition: What happened.
        at: When. [Unix seconds]
        opened_at: When the incident was opened. [Unix seconds]
        finding: The facts; of a resolved incident, those at its worst.
        ending: How it ended; empty while it is open.
        first: Whether this channel has heard nothing of the incident yet.
        repeat: Whether an earlier try was cut off, so that the receiver may have this already.
        acked_by: Who looks after the incident, or accepted it; empty while nobody does.
        reference: What the channel returned for the incident's last message it took; empty for none.
        chart: Where whoever has this address can fetch a picture of how it goes; empty where nobody can.
        also: What else goes wrong and is told with it, a sentence each: other incidents of the service, or of many services.
        note: Of an incident that was accepted, by whom and why.
    """

    incident: str
    sequence: int
    transition: Transition
    at: float
    opened_at: float
    finding: Finding
    ending: Ending = ""
    first: bool = True
    repeat: bool = False
    acked_by: str = ""
    reference: str = ""
    chart: str = ""
    also: tuple[str, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON keeps it: what is the same for every channel and try."""
        return {
            "incident": self.incident,
            "sequence": self.sequence,
            "transition": self.transition,
            "at": self.at,
            "opened_at": self.opened_at,
            "finding": self.finding.to_json(),
            "ending": self.ending,
            "acked_by": self.acked_by,
            "also": list(self.also),
            "note": self.note,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Message:
        """Read back what `to_json` wrote."""
        parts: dict[str, Any] = {"finding": Finding.from_json(raw["finding"]), "also": tuple(raw.get("also", ()))}
        return cls(**{**raw, **parts})

    @property
    def key(self) -> str:
        """The message's name: the same however often it is sent."""
        return f"{self.incident}:{self.sequence}"

    @property
    def resolved(self) -> bool:
        """Whether it says that the trouble is over."""
        return self.transition == "resolved"


def _trend_from_json(raw: Mapping[str, Any] | None) -> Trend | None:
    # One that does not say when it began was kept by an older version, and cannot be drawn.
    return Trend(tuple(raw["values"]), raw["step_seconds"], raw["start"]) if raw and "start" in raw else None


def _missing_traffic_from_json(raw: Mapping[str, Any] | None) -> MissingTraffic | None:
    return None if raw is None else MissingTraffic(**raw)
