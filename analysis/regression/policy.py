"""Policies of the regression search: `policy/tail.yaml` for the statistics, `policy/watching.yaml` for their use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Literal

from ..policies import InMinutes, Severity, shipped_policy


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """Policy of the regression watcher.

    Args:
        severity: Severity of its incidents.
        delay: Delay between the end of a minute and its evaluation.
        stretch: Maximum time range read in one evaluation.
        catch_up: Maximum age of missed minutes that are still evaluated.
        busy: Minimum time with requests for learning.
        refresh: Interval at which a finding is updated.
        blamed: Maximum time range of the requests used for a finding.
        silence: Time without requests after which the state is unknown.
        released_before: Maximum time of a release before an onset it is attributed to.
        released_after: Maximum time of such a release after the onset.
        together: Time two versions must have served together before they are compared.
        share: Share of the minutes of that time with requests of each. [ratio]
        accepted_over: Maximum time range that defines an accepted level.
        accepted_beyond: Minimum number of accepted requests beyond a threshold. [count]
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
    """A window of the last blocks, without the largest ones.

    Args:
        block: Length of a block. [minutes]
        blocks: Number of blocks.
        drop: Number of largest blocks left out.
        required: Robust spreads above the reference's median, one per statistic.
        floor: Minimum growth of the latency. [ratio]
        patience: Minimum duration above the level. [minutes]
        after_release: Minimum duration soon after a release. [minutes]
        alone: Whether it needs the full score, regardless of stages.
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
        """Length of the window in minutes."""
        return self.block * self.blocks


@dataclass(frozen=True, slots=True)
class ReferenceSpan:
    """Time span of the reference.

    Args:
        length: Maximum. [minutes]
        least: Minimum; without it there is no verdict. [minutes]
        renew: Interval of learning. [minutes]
        rhythm: Minimum for learning the time of day. [minutes]
        load: Range beyond the usual loads in which the model is valid. [log]
    """

    length: InMinutes
    least: InMinutes
    renew: InMinutes
    rhythm: InMinutes
    load: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Minimum level of a window, regardless of its spread.

    Args:
        margin: Factor on the rare level of the reference.
        rare: Quantile of the rare level. [0..1]
        expected: Minimum number of requests expected beyond the threshold; for a canary, expected or seen. [count]
    """

    margin: float
    rare: float
    expected: float


@dataclass(frozen=True, slots=True)
class StageEase:
    """Reduction of the required score when a stage moved.

    Args:
        start: Required score without a stage.
        by: Reduction per unit of the stage's score.
        least: Minimum.
    """

    start: float
    by: float
    least: float

    def needed(self, key: float) -> float:
        """Return the required score if the largest stage score is *key*."""
        return min(1.0, max(self.least, self.start - self.by * key))


@dataclass(frozen=True, slots=True)
class StageKey:
    """Statistics of the time in each stage.

    Args:
        at: Quantiles.
        left_out: Stages that follow others.
        ease: Reduction of the required score.
        windows: Windows.
    """

    at: tuple[At, ...]
    left_out: tuple[str, ...]
    ease: StageEase
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class AlarmPolicy:
    """When an alarm starts and ends.

    Args:
        slow: Share of the score that suffices for a long time. [ratio]
        slow_for: That time. [minutes]
        released: Share of the score that suffices soon after a release. [ratio]
        begin: Start of that period after the release. [minutes]
        end: End of that period after the release. [minutes]
        quiet: Score that must not have been reached before the release.
        before: For how long before it. [minutes]
        calm: Score below which the alarm ends.
        calm_for: Minimum duration below it. [minutes]
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
    """Parameters of stage attribution.

    Args:
        band: Requests at and beyond this quantile are used. [0..1]
        block: Length of a block. [minutes]
        sure: Number of its own spreads from which a stage counts in full.
    """

    band: float
    block: InMinutes
    sure: float


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """Parameters of the canary comparison.

    Args:
        scatter: Scatter between blocks of two equal versions beyond counting. [log]
        windows: Windows, shortest first.
    """

    scatter: float
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Confounders:
    """Thresholds of a traffic change.

    Args:
        share: Minimum change of a share of the requests. [ratio]
        errors: Minimum change in standard errors.
    """

    share: float
    errors: float


@dataclass(frozen=True, slots=True)
class TailPolicy:
    """Policy of the regression statistics.

    Args:
        at: Statistics of the end-to-end latency.
        reference: Time span of the reference.
        windows: Windows, shortest first.
        calibration: Minimum level of a window.
        stage_key: Statistics of the stages.
        fire: When an alarm starts and ends.
        blame: Stage attribution.
        canary: Canary comparison.
        confounders: Thresholds of a traffic change.
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
