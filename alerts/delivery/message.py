"""Findings and messages: the data of an incident, common to all channels and stored as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from ...analysis.comparison import StageGrowth, dominant_growth
from ...analysis.policies import Severity
from ...analysis.profile import FunctionGrowth
from ...questions.changed import CauseKind, Failures

# Fields that differ between channels and attempts.
_OF_ONE_DELIVERY = ("first", "repeat", "reference", "chart")


@dataclass(frozen=True, slots=True)
class Burn:
    """Burn rate of an SLO at a firing tier.

    Args:
        bad: Bad requests in the short window. [count]
        total: All requests in the short window. [count]
        exhausted_in_seconds: Time until the budget is spent at this rate; None for never. [seconds]
    """

    rate: float
    threshold: float
    long_seconds: float
    short_seconds: float
    # Integers stay integers in JSON.
    bad: int | float
    total: int | float
    budget_left: float
    bad_left: float
    window_seconds: float
    exhausted_in_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyRegression:
    """Latency regression at one quantile or in the mean.

    Args:
        low: Lower bound of after / before. [ratio]
        high: Upper bound of after / before. [ratio]
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
    weeks: int = 0
    slow_hosts: bool = False

    @property
    def ratio(self) -> float:
        return self.after_seconds / self.before_seconds


@dataclass(frozen=True, slots=True)
class MissingTraffic:
    usual: int | float
    before_seconds: float
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Request that violated the objective, or is slower than usual, shown as an example."""

    trace: str
    seconds: float
    stage: str
    stage_seconds: float
    link: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class BudgetOverrun:
    stage: str
    seconds: float
    budget_seconds: float


@dataclass(frozen=True, slots=True)
class SharedAttribute:
    label: str
    share_all: float
    share_slow: float


@dataclass(frozen=True, slots=True)
class Trend:
    values: tuple[float | None, ...]
    step_seconds: float
    start: float

    @property
    def end(self) -> float:
        """End of the last step in Unix seconds."""
        return self.start + self.step_seconds * len(self.values)

    @property
    def highest(self) -> float | None:
        """Highest value; None without requests."""
        return max((value for value in self.values if value is not None), default=None)


Transition = Literal["opened", "updated", "acknowledged", "unacknowledged", "resolved", "reopened"]
Ending = Literal["", "recovered", "no_data", "removed", "accepted"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a firing alert rule: a burning SLO, a latency regression, or missing traffic.

    Exactly one of `burn`, `shift` and `absence` is set.

    Args:
        since: Onset. [Unix seconds]
        silent_since: Time of the last request, if none arrived in the last minutes; None while requests arrive. [Unix seconds]
        between: Bounds of the onset with 95 % confidence; None if unknown. [Unix seconds]
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
    functions: tuple[FunctionGrowth, ...] = ()
    shared: tuple[SharedAttribute, ...] = ()
    replica: str = ""
    record: str = ""
    cause: CauseKind | Literal[""] = ""
    failures: Failures | None = None
    silent_since: float | None = None
    no_exemplars: str = ""
    called: str = ""

    @property
    def blamed(self) -> StageGrowth | None:
        return None if self.cause == "failures" else dominant_growth(self.growth)

    @property
    def known_cause(self) -> CauseKind:
        """Cause while there were requests."""
        if self.absence is not None:
            return "no_data"
        return self.cause or ("latency" if self.blamed else "none")

    @property
    def cause_kind(self) -> CauseKind:
        """Cause that is stated first: no data, failures, or latency."""
        return self.known_cause if self.silent_since is None else "no_data"

    @property
    def blames(self) -> str:
        """The cause, to detect that another one is found: `failures`, or the key of a stage; empty if nothing stands out."""
        return "failures" if self.cause == "failures" else self.blamed.stage if self.blamed else ""

    @property
    def blamed_function(self) -> FunctionGrowth | None:
        return next((function for function in self.functions if function.is_cause), None)

    @property
    def size(self) -> float:
        """Size of the problem, for comparison over time: the burn rate, or the latency ratio; 0 for missing traffic."""
        if self.burn is not None:
            return self.burn.rate
        return self.shift.ratio if self.shift is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        return _FINDING.validate_python(raw)


_FINDING = TypeAdapter(Finding)


@dataclass(frozen=True, slots=True)
class Message:
    """Message about one transition of an incident.

    *note* is who accepted the incident and why, who undid its acknowledgement, or the text of a note.
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
        """Return the message as a JSON object, without the fields that differ between channels and attempts."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in _OF_ONE_DELIVERY}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Message:
        return _MESSAGE.validate_python(raw)

    @property
    def key(self) -> str:
        return f"{self.incident}:{self.sequence}"

    @property
    def resolved(self) -> bool:
        return self.transition == "resolved"


_MESSAGE = TypeAdapter(Message)
