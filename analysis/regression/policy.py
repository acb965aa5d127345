"""Policies of the regression search: `policy/tail.yaml` (statistics) and `policy/watching.yaml` (watcher) explain each value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Literal

from ..policies import InMinutes, Severity, shipped_policy


@dataclass(frozen=True, slots=True)
class AlertBudget:
    service: timedelta
    fleet: float
    burst: float
    step: float
    most: float


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    over: timedelta
    lasting: timedelta
    shown: int
    budget: AlertBudget


@dataclass(frozen=True, slots=True)
class WatchPolicy:
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
    return shipped_policy(WatchPolicy, "watching")


# Quantile of a statistic, or the mean.
At = float | Literal["mean"]


@dataclass(frozen=True, slots=True)
class Window:
    """Evaluation window: the last blocks, without the largest ones."""

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
    length: InMinutes
    least: InMinutes
    renew: InMinutes
    rhythm: InMinutes
    week: InMinutes
    load: float


@dataclass(frozen=True, slots=True)
class Calibration:
    margin: float
    rare: float
    expected: float


@dataclass(frozen=True, slots=True)
class StageEase:
    start: float
    by: float
    least: float
    one_stage: float

    def needed(self, key: float) -> float:
        return min(1.0, max(self.least, self.start - self.by * key))


@dataclass(frozen=True, slots=True)
class AlikePolicy:
    least: float
    score: float
    growth: float


@dataclass(frozen=True, slots=True)
class WaitsPolicy:
    """Stages in which requests wait: they follow others and crowds, so their scores count only without them."""

    stages: tuple[str, ...]
    at: tuple[At, ...]
    part: float


@dataclass(frozen=True, slots=True)
class StageKey:
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
    band: float
    block: InMinutes
    sure: float


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
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
    share: float
    errors: float


@dataclass(frozen=True, slots=True)
class TailPolicy:
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
    return shipped_policy(TailPolicy, "tail")
