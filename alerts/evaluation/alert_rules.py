"""What one evaluation says of one cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ...store import Reader
from ..delivery.message import Finding
from ..objectives.maintenance import Calendar
from ..objectives.slo import Slo
from ..objectives.slo_file import Definitions
from ..policy_file import Policy
from . import findings
from .burn_rate import Budget
from .measurement import measure


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one evaluation says of one cause.

    Args:
        cause: The cause.
        finding: What fires, or None when nothing does.
        has_data: Whether there was anything to judge by; without it nothing is good and nothing is bad.
        excuse: Why nobody is told of it whatever it is, such as planned work; empty for nothing of the kind.
        budget: What is left of the error budget, for the end to tell; None where there is none.
    """

    cause: str
    finding: Finding | None
    has_data: bool = True
    excuse: str = ""
    budget: Budget | None = None


# Names every cause it watches and how to judge it, so that one that cannot be judged does not stop the others. It is given
# what is watched, the time, and the findings of what is open, by cause. A verdict of None is "nothing can be said now": all
# stays as it is. An open incident whose cause no judge names any more is closed.
Judge = Callable[[Definitions, datetime, Mapping[str, Finding]], Iterable[tuple[str, Callable[[], Verdict | None]]]]


def cause_of(slo: Slo) -> str:
    """Return the cause an incident of *slo* is opened for."""
    return f"slo:{slo.name}"


def of_slo(
    read: Reader, slo: Slo, policy: Policy, now: datetime, *, before: Finding | None, dashboard_url: str
) -> Verdict | None:
    """Judge *slo*; *before* is what was found last, if it is open."""
    measured = measure(read, slo, policy, now, already=before is not None)
    if measured.stale_since is not None:
        return None
    return Verdict(
        cause=cause_of(slo),
        finding=findings.describe(read, measured, now, before=before, dashboard_url=dashboard_url),
        has_data=measured.has_data,
        excuse=planned(slo.maintenance, now),
        budget=measured.budget,
    )


def planned(calendar: Calendar, now: datetime) -> str:
    """Return which planned work is under way, or nothing."""
    work = calendar.under_way(now)
    if work is None:
        return ""
    return f"planned work: {work.why}" if work.why else "planned work"
