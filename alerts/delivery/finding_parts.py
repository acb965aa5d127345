"""What a finding is made of: plain facts, each part as JSON keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
class Shift:
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
class Absence:
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
class Overrun:
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
class Course:
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
