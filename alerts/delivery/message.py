"""What is known about an incident, once for all channels: plain facts, kept as JSON. `wording` makes sentences of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...analysis.comparison import StageGrowth, culprit
from ..policy_file import Severity
from .finding_parts import Absence, Burn, Course, Exemplar, Overrun, Shift

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
    shift: Shift | None = None
    growth: tuple[StageGrowth, ...] = ()
    version: str = ""
    between: tuple[float, float] | None = None
    stage: str = ""
    exemplars: tuple[Exemplar, ...] = ()
    overruns: tuple[Overrun, ...] = ()
    course: Course | None = None
    description: str = ""
    runbook: str = ""
    link: str = ""
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    absence: Absence | None = None

    @property
    def blamed(self) -> StageGrowth | None:
        """The stage that stands out, if one does."""
        return culprit(self.growth)

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
            "shift": raw["shift"] and Shift(**raw["shift"]),
            "growth": tuple(StageGrowth(**row) for row in raw["growth"]),
            "exemplars": tuple(Exemplar(**row) for row in raw["exemplars"]),
            "overruns": tuple(Overrun(**row) for row in raw.get("overruns", ())),
            "course": _course(raw.get("course")),
            "absence": _absence(raw.get("absence")),
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


def _course(raw: Mapping[str, Any] | None) -> Course | None:
    # One that does not say when it began was kept by an older version, and cannot be drawn.
    return Course(tuple(raw["values"]), raw["step_seconds"], raw["start"]) if raw and "start" in raw else None


def _absence(raw: Mapping[str, Any] | None) -> Absence | None:
    return None if raw is None else Absence(**raw)
