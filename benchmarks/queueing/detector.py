"""Regression search of Stagelens over a simulated series: the baseline is learned each day, and each minute is evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from stagelens.analysis.regression import canary, scoring, stage_attribution
from stagelens.analysis.regression.hosts import share_explained_by_hosts
from stagelens.analysis.regression.policy import TailPolicy, default_watch_policy
from stagelens.analysis.regression.scoring import AlarmChange, AlarmState, Reference, TailScore, TailScorer
from stagelens.analysis.regression.statistic import (
    MEAN,
    MinuteHistograms,
    Row,
    StageSeconds,
    TailCounts,
    count_beyond,
    join_tallies,
)
from stagelens.analysis.regression.verdict import regression_onset, share_explained_by_traffic, strongest_window

from .episodes import BEFORE, DAY, DAYS, REFERENCE_DAYS, Canary, Episode, Period
from .simulate import MINUTE
from .world import World

# Maximum time of the requests used for stage attribution, and highest quantile at which the traffic is compared. [minutes]
BLAMED, TRAFFIC_AT = 60, 0.95
# Time over which the cost of the evaluation is measured. [minutes]
MEASURED = 600
# Time after an event in which an alarm is attributed to it. [minutes]
AFTER_EVENT = 40


@dataclass(frozen=True, slots=True)
class Alarm:
    """Minutes from the start to the alarm, and the blamed stages, most suspect first."""

    after: int
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an episode or canary of true growth *size*, 0 if nothing must alert."""

    size: float
    stage: str
    rate: float
    kind: str
    alarm: Alarm | None
    what: str = ""


@dataclass(slots=True)
class Outcome:
    """Results of one series; *events* are those at false alarms of the week without changes, empty for quiet hours.

    *learning* and *evaluating* are the CPU seconds to learn the reference once, and to count and evaluate one minute.
    """

    seed: int
    events: list[str] = field(default_factory=list[str])
    regressions: list[Result] = field(default_factory=list[Result])
    harmless: list[Result] = field(default_factory=list[Result])
    canaries: list[Result] = field(default_factory=list[Result])
    learning: float = 0.0
    evaluating: float = 0.0


def evaluate(policy: TailPolicy, seed: int, regressions: int, canaries: int) -> Outcome:
    world = World(seed)
    detector, outcome = Detector(policy, world), Outcome(seed)
    outcome.events = [world.event(at - AFTER_EVENT, at + 1) for at in detector.quiet_week()]
    for episodes, results in (
        (world.regressions(regressions), outcome.regressions),
        (world.harmless(), outcome.harmless),
    ):
        for episode in episodes:
            alarm = detector.evaluate(episode)
            until_alarm = episode.at + alarm.after if alarm else 0
            other = world.event(until_alarm - AFTER_EVENT, until_alarm) if alarm else ""
            what = f"{episode.what}, during {other}" if other else episode.what
            results.append(Result(episode.size, episode.stage, world.rate, episode.kind, alarm, what))
    for pair in world.canaries(canaries):
        alarm = detector.evaluate_canary(pair)
        outcome.canaries.append(Result(pair.size, pair.stage, world.rate, pair.kind, alarm))
    outcome.learning, outcome.evaluating = detector.cost(MEASURED)
    return outcome


class Detector:
    def __init__(self, policy: TailPolicy, world: World) -> None:
        self.policy, self.world = policy, world
        self._watching = default_watch_policy()
        self._learnt = cache(self._learn)
        self._rules = scoring.AlarmRules.of_series(policy)

    def quiet_week(self) -> list[int]:
        """Return the minutes of alarms in the second week without changes."""
        fired, releases = list[int](), self.world.releases()
        progress = AlarmState()
        for day in range(REFERENCE_DAYS, DAYS):
            reference, _ = self._learnt(day)
            scorer = TailScorer(self.policy, reference)
            minutes = count_beyond(reference.rows, self.world.traffic(day).minutes)
            counted = join_tallies(self._before(day * DAY, reference), minutes)
            for at in range(day * DAY + 1, (day + 1) * DAY + 1):
                recent = until(counted, at, progress.since)
                score = scorer.score(recent)
                progress, turn = scoring.advance_alarm(self._rules, progress, at, score, release=at - 1 in releases)
                if turn == "fired":
                    progress, turn = self._ask(reference, recent, score, progress, self.world.period)
                fired += [at] if turn == "fired" else []
        return fired

    def evaluate(self, episode: Episode) -> Alarm | None:
        reference, known = self._learnt(episode.at // DAY)
        minutes = count_beyond(reference.rows, episode.minutes)
        counted = join_tallies(self._before(episode.at, reference), minutes)
        scorer = TailScorer(self.policy, reference)
        progress = AlarmState(quiet=self.policy.fire.before)
        for at in range(episode.at + 1, counted.end + 1):
            recent = until(counted, at, progress.since)
            score = scorer.score(recent)
            release = episode.release and at == episode.at + 1
            progress, turn = scoring.advance_alarm(self._rules, progress, at, score, release=release)
            if turn == "fired":
                progress, turn = self._ask(reference, recent, score, progress, lambda *_: episode.period)
            if turn == "fired":
                window = episode.spent.between(at - BLAMED, _step_end(episode.spent, at))
                suspects = stage_attribution.rank_suspects(self.policy, known, window, score.moved)
                return Alarm(at - episode.at, tuple(suspect.stage for suspect in suspects))
        return None

    def evaluate_canary(self, pair: Canary) -> Alarm | None:
        reference, known = self._learnt(pair.at // DAY)
        rows = reference.version_rows or reference.rows
        old, new = (count_beyond(rows, minutes) for minutes, _ in (pair.old, pair.new))
        progress = AlarmState()
        rules, cold = scoring.AlarmRules.of_canary(self.policy), self.policy.canary.cold
        for at in range(pair.at + 1, old.end + 1):
            score = canary.compare_versions(self.policy, rows, until(old, at), until(new, at), cold=cold)
            progress, turn = scoring.advance_alarm(rules, progress, at, score)
            if turn == "fired":
                a, b = (spent.between(pair.at, _step_end(spent, at)) for _, spent in (pair.old, pair.new))
                suspects = canary.rank_canary_suspects(self.policy, known, a, b, score.moved)
                return Alarm(at - pair.at, tuple(suspect.stage for suspect in suspects))
        return None

    def cost(self, minutes: int) -> tuple[float, float]:
        """Return the CPU seconds to learn a reference and to evaluate one of *minutes*."""
        began = time.process_time()
        reference, _ = self._learn(REFERENCE_DAYS)
        learnt = time.process_time()
        day = self.world.traffic(REFERENCE_DAYS).minutes
        recent = self._before(REFERENCE_DAYS * DAY, reference)
        scorer, progress = TailScorer(self.policy, reference), AlarmState()
        parts = [part(day, minute, minute + 1) for minute in range(minutes)]
        started = time.process_time()
        for minute in parts:
            recent = join_tallies(recent, count_beyond(reference.rows, minute)).last(BEFORE)
            score = scorer.score(recent)
            progress, _ = scoring.advance_alarm(self._rules, progress, recent.end, score)
        return learnt - began, (time.process_time() - started) / minutes

    def _ask(
        self,
        reference: Reference,
        recent: TailCounts,
        score: TailScore,
        progress: AlarmState,
        period: Callable[[int, int], Period],
    ) -> tuple[AlarmState, AlarmChange]:
        """Return the state of a firing series after the questions of the alerts: is it the traffic, or the host?"""
        strongest, at = strongest_window(score, reference.rows), progress.at
        if strongest is None:
            return progress, "fired"
        number, cell, row = strongest
        began = regression_onset(reference, recent, self.policy.windows[number], cell)
        if self._is_traffic(row, max(began, at - BLAMED), at, period):
            # Only the minutes from now on count.
            return AlarmState(at=at, since=at), ""
        if progress.shared < self.policy.fire.shared_for and self._is_host(began, at, period):
            return progress.hold(self.policy.fire.held_for), ""
        return progress, "fired"

    def _is_host(self, began: int, at: int, period: Callable[[int, int], Period]) -> bool:
        """Return whether other services on the same hosts explain the growth."""
        start = began - BLAMED
        now = period(start, at)
        share = share_explained_by_hosts(now.replicas(start, at), now.others(start, at), began * MINUTE)
        return share >= self._watching.by_hosts

    def _is_traffic(self, row: Row, start: int, at: int, period: Callable[[int, int], Period]) -> bool:
        """Return whether different traffic explains the growth since *start*."""
        days = [day * DAY for day in range(1, REFERENCE_DAYS + 1) if start >= day * DAY]
        before = [self.world.period(start - day, at - day).inputs(start - day, at - day) for day in days]
        quantile = min(float(row.at), TRAFFIC_AT) if row.at != MEAN else TRAFFIC_AT
        after = period(start, at).inputs(start, at)
        return share_explained_by_traffic(before, after, quantile)[0] >= self._watching.by_traffic

    def _learn(self, day: int) -> tuple[Reference, stage_attribution.StageBaseline]:
        past = [self.world.traffic(number) for number in range(day - REFERENCE_DAYS, day)]
        reference = scoring.learn_reference_by_day(self.policy, lambda: (traffic.minutes for traffic in past))
        if reference is None:
            msg = f"nothing could be learned of series {self.world.seed}"
            raise RuntimeError(msg)
        return reference, stage_attribution.learn_stage_baseline(self.policy, [traffic.spent for traffic in past])

    def _before(self, at: int, reference: Reference) -> TailCounts:
        first, *others = (
            count_beyond(reference.rows, part(minutes, at - BEFORE - minutes.start, at - minutes.start))
            for minutes in (each.minutes for each in self.world.period(at - BEFORE, at).parts)
        )
        for other in others:
            first = join_tallies(first, other)
        return first


def _step_end(spent: StageSeconds, at: int) -> int:
    """Return the end of the step of minute *at*: the alerts read the part of it that has passed."""
    return spent.start - (spent.start - at) // spent.step * spent.step


def until(counted: TailCounts, at: int, since: int = 0) -> TailCounts:
    """Return the hours of *counted* that are evaluated at minute *at*."""
    last = at - counted.start
    first = max(last - BEFORE, since - counted.start, 0)
    return TailCounts(
        counted.start + first, counted.requests[first:last], counted.n[:, first:last], counted.beyond[:, first:last]
    )


def part(day: MinuteHistograms, first: int, last: int) -> MinuteHistograms:
    """Return the minutes [first, last) of *day*, relative to its start."""
    chosen = slice(max(first, 0), max(last, 0))
    return MinuteHistograms(day.start + max(first, 0), day.index, day.total[chosen], day.stages, day.own[:, chosen])
