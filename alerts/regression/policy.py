"""Policies of the regression search: `policy/tail.yaml` for the statistics, `policy/watching.yaml` for their use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Literal

from ..policies import InMinutes, Severity, shipped_policy


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """All of it.

    Args:
        severity: Who is told.
        delay: How long after its end a minute is judged.
        stretch: How much is read in one evaluation, at most.
        catch_up: From when on what was missed is stepped through.
        busy: So many minutes with requests it takes to learn from.
        refresh: How often an incident is described anew.
        blamed: Of how long the requests are looked at to describe it, at most.
        silence: Without a request for so long nothing can be said.
        released_before: A release so long before the trouble came with it.
        released_after: One so long after it too.
        together: Two versions are compared once both have served for so long.
        share: Of the minutes of that time each must have had requests in. [ratio]
        accepted_over: A level that is accepted is that of the requests of so long at most.
        accepted_beyond: So many of them must be beyond a threshold to say where it is now. [count]
    """

    severity: Severity
    delay: timedelta
    stretch: timedelta
    catch_up: timedelta
    busy: timedelta
    refresh: timedelta
    blamed: timedelta
    silence: timedelta
    released_before: timedelta
    released_after: timedelta
    together: timedelta
    share: float
    accepted_over: timedelta
    accepted_beyond: float


@cache
def default_watch_policy() -> WatchPolicy:
    """Return the policy that comes with Stagelens."""
    return shipped_policy(WatchPolicy, "watching")


# A quantile, or the mean.
At = float | Literal["mean"]


@dataclass(frozen=True, slots=True)
class Window:
    """The last blocks, without the largest of them.

    Args:
        block: How long a block is. [minutes]
        blocks: How many there are.
        drop: How many of the largest are left out.
        required: Robust spreads beyond the reference's median, one for each statistic.
        floor: The least growth of the latency that counts. [ratio]
        patience: How long it must stay over. [minutes]
        after_release: The same soon after a release. [minutes]
        alone: Whether it needs the whole score, whatever the stages say.
    """

    block: InMinutes
    blocks: int
    drop: int
    required: tuple[float, ...]
    floor: float = 0.0
    patience: InMinutes = 0
    after_release: InMinutes = 0
    alone: bool = False

    @property
    def length(self) -> int:
        """How many minutes it looks back."""
        return self.block * self.blocks


@dataclass(frozen=True, slots=True)
class ReferenceSpan:
    """How many minutes the reference holds.

    Args:
        length: At most.
        least: At least, or there is no verdict.
        renew: How often it is learnt anew.
        rhythm: From so much on the rhythm of the day is learnt too.
        load: So far beyond the usual loads what was learnt is believed. [log]
    """

    length: InMinutes
    least: InMinutes
    renew: InMinutes
    rhythm: InMinutes
    load: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a window must reach, whatever its spread.

    Args:
        margin: Times what was rare in the reference.
        rare: The quantile that is rare. [0..1]
        expected: Requests to be expected beyond the quantile within the window; of a canary, or seen there. [count]
    """

    margin: float
    rare: float
    expected: float


@dataclass(frozen=True, slots=True)
class StageEase:
    """How much of the score is enough when a stage moved on its own.

    Args:
        start: Without any.
        by: Less by so much times the stage's score.
        least: But never less.
    """

    start: float
    by: float
    least: float

    def needed(self, key: float) -> float:
        """Return the score that is needed when the stage that moved most has score *key*."""
        return min(1.0, max(self.least, self.start - self.by * key))


@dataclass(frozen=True, slots=True)
class StageKey:
    """The same question to each stage's own time.

    Args:
        at: Quantiles of it.
        left_out: Stages that follow the others.
        ease: What they are worth.
        windows: Where it looks.
    """

    at: tuple[At, ...]
    left_out: tuple[str, ...]
    ease: StageEase
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class AlarmPolicy:
    """When an alarm begins and ends.

    Args:
        slow: So much of the score is enough [ratio],
        slow_for: for so long. [minutes]
        released: Soon after a release so much of the score is enough. [ratio]
        begin: From then after the release. [minutes]
        end: Until then after the release. [minutes]
        quiet: The score that must not have been reached before the release.
        before: How long before. [minutes]
        calm: The score below which it is over,
        calm_for: for so long. [minutes]
    """

    slow: float
    slow_for: InMinutes
    released: float
    begin: InMinutes
    end: InMinutes
    quiet: float
    before: InMinutes
    calm: float
    calm_for: InMinutes


@dataclass(frozen=True, slots=True)
class BlamePolicy:
    """How the stage is found.

    Args:
        band: Requests at and beyond this quantile are looked at. [0..1]
        block: In blocks of so long. [minutes]
        sure: A stage counts in full from so many of its own spreads on.
    """

    band: float
    block: InMinutes
    sure: float


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """How two versions that serve together are compared.

    Args:
        scatter: By how much blocks of two equal versions differ beyond counting. [log]
        windows: Where it looks, shortest first.
    """

    scatter: float
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Confounders:
    """When the traffic has changed.

    Args:
        share: A share of the requests differs by at least so much. [ratio]
        errors: And by more than so many of its standard errors.
    """

    share: float
    errors: float


@dataclass(frozen=True, slots=True)
class TailPolicy:
    """All of it.

    Args:
        at: The statistics of the whole.
        reference: How far back is learnt.
        windows: Where it looks, shortest first.
        calibration: The least any window must reach.
        stage_key: The same for the stages.
        fire: When it fires.
        blame: Who is to blame.
        canary: Two versions side by side.
        confounders: When the traffic has changed.
    """

    at: tuple[At, ...]
    reference: ReferenceSpan
    windows: tuple[Window, ...]
    calibration: Calibration
    stage_key: StageKey
    fire: AlarmPolicy
    blame: BlamePolicy
    canary: CanaryPolicy
    confounders: Confounders


@cache
def default_tail_policy() -> TailPolicy:
    """Return the policy that comes with Stagelens."""
    return shipped_policy(TailPolicy, "tail")
