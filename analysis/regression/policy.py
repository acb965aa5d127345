"""Policies of the regression search: `policy/tail.yaml` (statistics) and `policy/watching.yaml` (watcher)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Literal

from ..policies import InMinutes, Severity, shipped_policy


@dataclass(frozen=True, slots=True)
class AlertBudget:
    """Budget of wrong alerts, and how it raises the required scores.

    Args:
        service: Time in which a service may have one wrong alert.
        fleet: Wrong alerts that all services together may have, per service and week. [count]
        burst: Minimum number of wrong alerts that all services together may have at once. [count]
        step: Factor on the required scores for each wrong alert beyond the budget. [ratio]
        most: Maximum factor. [ratio]
    """

    service: timedelta
    fleet: float
    burst: float
    step: float
    most: float


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """Policy of the record of past alerts.

    Args:
        over: Maximum age of the alerts.
        lasting: Duration from which an alert counts as right.
        shown: Minimum number of alerts with a known outcome for a statement in messages. [count]
        budget: Budget of wrong alerts.
    """

    over: timedelta
    lasting: timedelta
    shown: int
    budget: AlertBudget


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """Policy of the regression watcher.

    Args:
        severity: Severity of the incidents that the watcher opens.
        delay: Delay between the end of a minute and its evaluation.
        stretch: Maximum time range read in one evaluation.
        catch_up: Maximum age of missed minutes that are still evaluated.
        busy: Minimum time with requests that is required for learning.
        refresh: Interval at which an open finding is updated.
        blamed: Maximum time range of the requests used for stage attribution.
        silence: Time without requests after which the state is unknown.
        released_before: Maximum time from a release to the onset that is attributed to it.
        released_after: Maximum time from an onset to a later release that it is attributed to.
        together: Time during which two versions must both have served before they are compared.
        share: Minimum share of the minutes of *together* in which each version had requests. [ratio]
        accepted_over: Maximum time range used to determine an accepted level.
        accepted_beyond: Minimum number of accepted requests beyond a threshold. [count]
        by_traffic: Share of a growth that different traffic must explain, so that it opens no incident. [ratio]
        by_hosts: Share of a growth that other services on the same hosts must explain, so that it must last. [ratio]
        record: Record of past alerts.
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
    by_traffic: float
    by_hosts: float
    record: RecordPolicy


@cache
def default_watch_policy() -> WatchPolicy:
    """Return the regression watcher policy shipped with Stagelens."""
    return shipped_policy(WatchPolicy, "watching")


# Quantile of a statistic, or the mean.
At = float | Literal["mean"]


@dataclass(frozen=True, slots=True)
class Window:
    """Evaluation window: the last blocks, without the largest ones.

    Args:
        block: Length of a block. [minutes]
        blocks: Number of blocks.
        drop: Number of largest blocks that are ignored.
        required: Required distance above the reference's median, for each statistic. [robust spreads]
        floor: Minimum growth of the latency. [ratio]
        min_duration: Minimum duration above the required score. [minutes]
        after_release: Minimum duration above the required score soon after a release. [minutes]
        alone: Whether the window requires the full score unless exactly one stage certainly moved.
        only_released: Whether the window also requires a release shortly before, and one stage that certainly moved.
    """

    block: InMinutes
    blocks: int
    drop: int
    required: tuple[float, ...]
    floor: float = 0.0
    min_duration: InMinutes = 0
    after_release: InMinutes = 0
    alone: bool = False
    only_released: bool = False

    @property
    def length(self) -> int:
        return self.block * self.blocks


@dataclass(frozen=True, slots=True)
class ReferenceSpan:
    """Time span of the data from which a reference is learned.

    Args:
        length: Maximum length. [minutes]
        least: Minimum length; with less data nothing is evaluated. [minutes]
        renew: Interval between updates of the reference. [minutes]
        rhythm: Minimum length for learning the time of day. [minutes]
        week: Minimum length for learning the weekday. [minutes]
        load: Extension of the valid load range beyond the observed loads. [log]
    """

    length: InMinutes
    least: InMinutes
    renew: InMinutes
    rhythm: InMinutes
    week: InMinutes
    load: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Minimum required level of a window, regardless of its spread.

    Args:
        margin: Factor on the distance of the rare level from the reference's median.
        rare: Quantile of the reference that defines the rare level. [0..1]
        expected: Minimum number of requests expected beyond the threshold; for a canary, expected or observed. [count]
    """

    margin: float
    rare: float
    expected: float


@dataclass(frozen=True, slots=True)
class StageEase:
    """Reduction of the required score when a stage moved.

    Args:
        start: Required score if no stage moved.
        by: Reduction of the required score per unit of the stage's score.
        least: Minimum required score.
        one_stage: Required score of windows that are `alone` or `only_released`, if exactly one stage certainly moved.
    """

    start: float
    by: float
    least: float
    one_stage: float

    def needed(self, key: float) -> float:
        """Return the required score when the highest stage score is *key*."""
        return min(1.0, max(self.least, self.start - self.by * key))


@dataclass(frozen=True, slots=True)
class AlikePolicy:
    """When several stages count as slower for the same reason, such as a slow machine.

    Args:
        least: Minimum score of the stage with the highest score.
        score: Minimum score of another stage, as a share of the highest, which counts as at most 1. [ratio]
        growth: Minimum growth of the other stage, as a share of the growth of the first. [ratio]
    """

    least: float
    score: float
    growth: float


@dataclass(frozen=True, slots=True)
class WaitsPolicy:
    """Stages in which requests wait: they follow others and crowds, so their scores count only without them.

    Args:
        stages: The stages.
        at: Quantiles.
        part: Share of their scores that counts, because waiting varies most. [ratio]
    """

    stages: tuple[str, ...]
    at: tuple[At, ...]
    part: float


@dataclass(frozen=True, slots=True)
class StageKey:
    """Policy of the statistics on stage times.

    Args:
        at: Quantiles.
        left_out: Stages that come with each release, such as loading a model; they are not scored.
        waits: Stages in which requests wait.
        ease: Reduction of the required score when a stage moved.
        windows: Evaluation windows.
        alike: When several stages count as slower for the same reason.
    """

    at: tuple[At, ...]
    left_out: tuple[str, ...]
    waits: WaitsPolicy
    ease: StageEase
    windows: tuple[Window, ...]
    alike: AlikePolicy

    @property
    def followers(self) -> frozenset[str]:
        """Stages whose growth has its cause in another stage, if there is one."""
        return frozenset((*self.left_out, *self.waits.stages))

    def quantiles(self, stage: str) -> tuple[At, ...]:
        return self.waits.at if stage in self.waits.stages else self.at


@dataclass(frozen=True, slots=True)
class AlarmPolicy:
    """Conditions for the start and the end of an alarm.

    Args:
        slow: Share of the required score that is sufficient over a long time. [ratio]
        slow_for: Duration of that long time. [minutes]
        released: Share of the required score that is sufficient soon after a release. [ratio]
        begin: Start of the period after a release. [minutes]
        end: End of the period after a release. [minutes]
        soon: End of the period after a release for windows that are `only_released`. [minutes]
        quiet: Score that must not have been reached before the release.
        before: Duration of that quiet time before the release. [minutes]
        calm: Score below which the alarm ends.
        calm_for: Minimum duration below *calm*. [minutes]
        shared_for: Minimum duration if several stages moved alike, or if the load is above that of the reference. [minutes]
        held_for: Duration for which a load above that of the reference, or a slow host, has effects. [minutes]
    """

    slow: float
    slow_for: InMinutes
    released: float
    begin: InMinutes
    end: InMinutes
    soon: InMinutes
    quiet: float
    before: InMinutes
    calm: float
    calm_for: InMinutes
    shared_for: InMinutes
    held_for: InMinutes


@dataclass(frozen=True, slots=True)
class BlamePolicy:
    """Parameters of stage attribution.

    Args:
        band: Requests at and beyond this quantile are used. [0..1]
        block: Length of a block. [minutes]
        sure: Growth from which a stage counts in full. [spreads of the stage]
    """

    band: float
    block: InMinutes
    sure: float


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """Parameters of the canary comparison.

    Args:
        error: Approximate probability that two equal versions cause an alarm in the time that is compared. [0..1]
        mixture: Standard deviation of the growth expected of a slower version. [log odds]
        recent: Length of the recent period that is compared in addition to the whole. [minutes]
        cold: Time from the first request of a version that is no evidence. [minutes]
        sure: Minimum distance from the growth 0. [standard errors]
        other_sure: The same for another stage that grew alike. [standard errors]
        alike: Minimum growth of another stage, as a share of the largest. [ratio]
        min_duration: Minimum duration above the required evidence. [minutes]
        shared_for: Minimum duration if several stages grew alike. [minutes]
    """

    error: float
    mixture: float
    recent: InMinutes
    cold: InMinutes
    sure: float
    other_sure: float
    alike: float
    min_duration: InMinutes
    shared_for: InMinutes

    @property
    def windows(self) -> tuple[Window, Window]:
        """Durations of the two scores of `compare_versions`: one stage grew, or any."""
        one, any_stage = self.min_duration, self.shared_for
        return (
            Window(1, 1, 0, (), min_duration=one, after_release=one, alone=True),
            Window(1, 1, 0, (), min_duration=any_stage, after_release=any_stage, alone=True),
        )


@dataclass(frozen=True, slots=True)
class Confounders:
    """Thresholds above which the request mix counts as changed.

    Args:
        share: Minimum change of a share of the requests. [ratio]
        errors: Minimum change of the share in multiples of its standard error.
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
    """Return the policy of the regression statistics shipped with Stagelens."""
    return shipped_policy(TailPolicy, "tail")
