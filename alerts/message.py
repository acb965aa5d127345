"""What is said about an incident, once for all channels: facts, and the sentences made of them.

A message can be acted on without opening anything: what, how bad, since when, which stage, since which release, what is
left of the budget, and one link that opens exactly this view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from ..core import stages
from . import words
from .policy_file import Severity
from .regression import StageGrowth, culprit

Transition = Literal["opened", "updated", "resolved", "reopened"]
Ending = Literal["", "recovered", "no_data", "removed"]


_UNKNOWN_ENDINGS = {"no_data": "no data any more", "removed": "the SLO was taken out of its file"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one evaluation found about a burning SLO. Plain numbers and texts: it is kept as JSON.

    Args:
        slo: The SLO's name.
        service: Whose requests.
        promise: The SLO in words.
        kind: `latency` or `availability`.
        severity: `page` or `ticket`.
        burn: The burn rate over the short window: how fast now.
        threshold_burn: The burn rate that fires the tier.
        long_seconds: The tier's long window. [seconds]
        short_seconds: Its short one. [seconds]
        bad: Bad requests of the short window. [count]
        total: All requests of the short window. [count]
        since: When the trouble began. [Unix seconds]
        budget_left: The unspent share of the budget. [ratio]
        bad_left: How many more bad requests it bears. [count]
        window_seconds: The SLO's window. [seconds]
        exhausted_in_seconds: When the budget is gone at this pace; None when it never will be. [seconds]
        growth: Every stage that grew, worst first.
        version: The release it came with; empty when it came with none.
        quantile: Where the releases were compared; 0 when bad requests were compared to good ones.
        description: The SLO's own sentence.
        runbook: The address of what to do.
        link: The page that shows it.
    """

    slo: str
    service: str
    promise: str
    kind: str
    severity: Severity
    burn: float
    threshold_burn: float
    long_seconds: float
    short_seconds: float
    bad: float
    total: float
    since: float
    budget_left: float
    bad_left: float
    window_seconds: float
    exhausted_in_seconds: float | None = None
    growth: tuple[StageGrowth, ...] = ()
    version: str = ""
    quantile: float = 0.0
    description: str = ""
    runbook: str = ""
    link: str = ""

    @property
    def blamed(self) -> StageGrowth | None:
        """The stage that stands out, if one does."""
        return culprit(self.growth)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON keeps it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        """Read back what `to_json` wrote."""
        fields: dict[str, Any] = {**raw, "growth": tuple(StageGrowth(**row) for row in raw["growth"])}
        return cls(**fields)


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
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Message:
        """Read back what `to_json` wrote."""
        fields: dict[str, Any] = {**raw, "finding": Finding.from_json(raw["finding"])}
        return cls(**fields)

    @property
    def key(self) -> str:
        """The message's name: the same however often it is sent."""
        return f"{self.incident}:{self.sequence}"

    @property
    def resolved(self) -> bool:
        """Whether it says that the trouble is over."""
        return self.transition == "resolved"


def headline(message: Message) -> str:
    """Return one sentence: what, how bad, which stage, since which release."""
    finding = message.finding
    what = f"{finding.service}: {finding.kind} SLO"
    lasted = words.duration(timedelta(seconds=max(60.0, message.at - finding.since)))
    if message.ending in _UNKNOWN_ENDINGS:
        return f"{what}: {_UNKNOWN_ENDINGS[message.ending]}; closed without knowing how it went on"
    if message.resolved and message.first:
        return f"{what} burned {words.times(finding.burn)} for {lasted} and recovered — {cause(message)}"
    if message.resolved:
        return f"{what} is fine again after {lasted} — {cause(message)}"
    again = " again" if message.transition == "reopened" else ""
    return f"{what} burning {words.times(finding.burn)}{again} — {cause(message)}"


def cause(message: Message) -> str:
    """Return what the trouble comes from, in half a sentence that claims no more than was measured."""
    finding, over = message.finding, message.resolved
    since = f" since version {finding.version}" if finding.version else ""
    if finding.kind == "availability":
        share = words.percent(finding.bad / finding.total) if finding.total else "some"
        return f"{share} of requests {'failed' if over else 'fail'}"
    blamed = finding.blamed
    if blamed is None:
        return f"no stage {'stood' if over else 'stands'} out{since}"
    amount = f"{words.latency(blamed.seconds, signed=True)} ({words.percent(_whole(blamed.share))} of the excess)"
    if finding.quantile:
        return f"{stage_name(blamed.stage)} {'had grown' if over else 'grew'} {amount}{since}"
    return f"slow requests {'spent' if over else 'spend'} {amount} in {stage_name(blamed.stage)}{since}"


def impact(finding: Finding) -> str:
    """Return how bad it is, as a sentence."""
    share = words.percent(_whole(finding.bad / finding.total)) if finding.total else "Some"
    what = "were too slow or failed" if finding.kind == "latency" else "failed"
    span = words.duration(timedelta(seconds=finding.short_seconds))
    return f"{share} of requests in the last {span} {what}: {words.count(finding.bad)} of {words.count(finding.total)}."


def basis(finding: Finding) -> str:
    """Return what the stages were compared to."""
    if finding.quantile:
        return f"p{100 * finding.quantile:g} of version {finding.version} against the version before"
    return "a bad request against a good one, on average"


def facts(message: Message) -> list[tuple[str, str]]:
    """Return the numbers worth a line each, as (name, value)."""
    finding = message.finding
    window = words.duration(timedelta(seconds=finding.window_seconds))
    rows = [_burn(message), _when(message), (f"Error budget left of {window}", _budget(finding))]
    if not message.resolved:
        rows.append(("At this pace", _pace(finding)))
    return rows


def table(finding: Finding, *, limit: int = 5) -> list[tuple[str, str, str]]:
    """Return the stages that grew most, as (stage, growth, share)."""
    return [
        (stages.label(row.stage), words.latency(row.seconds, signed=True), words.percent(_whole(row.share)))
        for row in finding.growth[:limit]
    ]


def stage_name(stage: str) -> str:
    """Return the name of *stage* within a sentence.

    >>> stage_name("load"), stage_name("h2d"), stage_name("rerank")
    ('cold start', 'transfer H→D', 'rerank')
    """
    name = stages.label(stage)
    return name if stage not in stages.BY_KEY else name[0].lower() + name[1:]


def _burn(message: Message) -> tuple[str, str]:
    finding = message.finding
    rate, limit = words.times(finding.burn), words.times(finding.threshold_burn)
    if message.resolved:
        return "Burn rate at its worst", rate
    span = words.duration(timedelta(seconds=finding.short_seconds))
    return "Burn rate", f"{rate} in the last {span} (alerts from {limit})"


def _when(message: Message) -> tuple[str, str]:
    began = words.moment_of(message.finding.since)
    return ("When", f"{began}, to {words.moment_of(message.at)}") if message.resolved else ("Since", began)


def _budget(finding: Finding) -> str:
    if finding.budget_left <= 0:
        return f"none; {words.count(-finding.bad_left)} requests over"
    return f"{words.percent(finding.budget_left)}, room for {words.count(finding.bad_left)} more bad requests"


def _pace(finding: Finding) -> str:
    left = finding.exhausted_in_seconds
    if left is None:
        return "the budget lasts"
    return f"the budget is gone in {words.duration(timedelta(seconds=left))}" if left else "the budget is gone"


def _whole(ratio: float) -> float:
    """Shares need no decimals, except where they would vanish."""
    return round(ratio, 2) if ratio >= 0.01 else ratio  # noqa: PLR2004 - one percent
