"""Regression search of Stagelens over a simulated series: the baseline is learned each day, and each minute is evaluated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

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
    rows_of,
)
from stagelens.analysis.regression.strata import Strata, learn_strata, pool
from stagelens.analysis.regression.verdict import (
    regression_onset,
    share_explained_by_traffic,
    strongest_window,
)
from stagelens.core.histogram import Histogram

from .episodes import BEFORE, DAY, DAYS, MINUTE, REFERENCE_DAYS, Canary, Episode, World

# Maximum time of the requests used for stage attribution, and highest quantile at which the traffic is compared. [minutes]
BLAMED, TRAFFIC_AT = 60, 0.95


@dataclass(frozen=True, slots=True)
class Alarm:
    """Minutes from the start to the alarm, and the blamed stages, most suspect first."""

    after: int
    stages: tuple[str, ...]


class Ours:
    """The alerts of one simulated series.

    Args:
        policy: Policy of the statistics.
        world: Series to evaluate.
        pools: Whether the requests of its routes are pooled.
    """

    def __init__(self, policy: TailPolicy, world: World, *, pools: bool = True) -> None:
        self.policy, self.world, self._pools = policy, world, pools
        self._watching = default_watch_policy()
        self._learnt = cache(self._learn)
        self._rules = scoring.AlarmRules.of_series(policy)

    def quiet_week(self) -> list[int]:
        """Return the minutes of alarms in the second week without changes."""
        fired, releases = list[int](), self.world.releases()
        progress = scoring.AlarmState()
        for day in range(REFERENCE_DAYS, DAYS):
            reference, _ = self._learnt(day)
            scorer = TailScorer(self.policy, reference)
            counted = join_tallies(
                self._before(day * DAY, reference), count_beyond(reference.rows, self._day(day, reference.strata))
            )
            for at in range(day * DAY + 1, (day + 1) * DAY + 1):
                recent = until(counted, at, progress.since)
                score = scorer.score(recent)
                progress, turn = scoring.advance_alarm(self._rules, progress, at, score, release=at - 1 in releases)
                if turn == "fired":
                    progress, turn = self._ask(reference, recent, score, progress, self.world)
                fired += [at] if turn == "fired" else []
        return fired

    def evaluate(self, episode: Episode) -> Alarm | None:
        """Return the first alarm in *episode*; None without one."""
        reference, known = self._learnt(episode.at // DAY)
        minutes = _pooled(reference.strata, episode.minutes, episode.routes)
        counted = join_tallies(self._before(episode.at, reference), count_beyond(reference.rows, minutes))
        scorer = TailScorer(self.policy, reference)
        progress = scoring.AlarmState(quiet=self.policy.fire.before)
        for at in range(episode.at + 1, counted.end + 1):
            recent = until(counted, at, progress.since)
            score = scorer.score(recent)
            release = episode.release and at == episode.at + 1
            progress, turn = scoring.advance_alarm(self._rules, progress, at, score, release=release)
            if turn == "fired":
                progress, turn = self._ask(reference, recent, score, progress, episode)
            if turn == "fired":
                return Alarm(at - episode.at, self._blame(known, episode.spent, at, score))
        return None

    def evaluate_canary(self, pair: Canary) -> Alarm | None:
        """Return the first alarm in a canary; None without one."""
        reference, known = self._learnt(pair.at // DAY)
        rows = reference.version_rows or reference.rows
        old, new = (count_beyond(rows, minutes) for minutes, _ in (pair.old, pair.new))
        progress = scoring.AlarmState()
        rules, cold = scoring.AlarmRules.of_canary(self.policy), self.policy.canary.cold
        for at in range(pair.at + 1, old.end + 1):
            score = canary.compare_versions(self.policy, rows, until(old, at), until(new, at), cold=cold)
            progress, turn = scoring.advance_alarm(rules, progress, at, score)
            if turn == "fired":
                a, b = (spent.between(pair.at, _step_end(spent, at)) for _, spent in (pair.old, pair.new))
                blamed = canary.rank_canary_suspects(self.policy, known, a, b, score.moved)
                return Alarm(at - pair.at, tuple(one.stage for one in blamed))
        return None

    def cost(self, minutes: int) -> tuple[float, float, int]:
        """Return the CPU seconds to learn a reference and to evaluate one of *minutes*, and the bytes of the reference."""
        began = time.process_time()
        reference, _ = self._learn(REFERENCE_DAYS)
        learnt = time.process_time()
        day = self.world.traffic(REFERENCE_DAYS)
        recent = self._before(REFERENCE_DAYS * DAY, reference)
        scorer, progress = TailScorer(self.policy, reference), scoring.AlarmState()
        parts = [
            (
                part(day.minutes, minute, minute + 1),
                {name: part(each, minute, minute + 1) for name, each in day.routes.items()},
            )
            for minute in range(minutes)
        ]
        started = time.process_time()
        for minute, routes in parts:
            counted = count_beyond(reference.rows, _pooled(reference.strata, minute, routes))
            recent = join_tallies(recent, counted).last(BEFORE)
            score = scorer.score(recent)
            progress, _ = scoring.advance_alarm(self._rules, progress, recent.end, score)
        evaluating = (time.process_time() - started) / minutes
        return learnt - began, evaluating, len(reference.to_json())

    def _blame(
        self, known: stage_attribution.StageBaseline, spent: StageSeconds, at: int, score: TailScore
    ) -> tuple[str, ...]:
        window = spent.between(at - BLAMED, _step_end(spent, at))
        return tuple(one.stage for one in stage_attribution.rank_suspects(self.policy, known, window, score.moved))

    def _ask(
        self, reference: Reference, recent: TailCounts, score: TailScore, progress: AlarmState, now: World | Episode
    ) -> tuple[AlarmState, AlarmChange]:
        """Return the state of a firing series after the questions of the alerts: is it the traffic, or the host?"""
        strongest, at = strongest_window(score, reference.rows), progress.at
        if strongest is None:
            return progress, "fired"
        number, cell, row = strongest
        began = regression_onset(reference, recent, self.policy.windows[number], cell)
        if self._is_traffic(row, max(began, at - BLAMED), at, now):
            # Only the minutes from now on count.
            return AlarmState(at=at, since=at), ""
        if progress.shared < self.policy.fire.shared_for and self._is_host(began, at, now):
            return progress.hold(self.policy.fire.held_for), ""
        return progress, "fired"

    def _is_host(self, began: int, at: int, now: World | Episode) -> bool:
        """Return whether other services on the same hosts explain the growth."""
        own, others = now.replicas(began - BLAMED, at), now.others(began - BLAMED, at)
        return own is not None and share_explained_by_hosts(own, others, began * MINUTE) >= self._watching.by_hosts

    def _is_traffic(self, row: Row, start: int, at: int, now: World | Episode) -> bool:
        """Return whether different traffic explains the growth since *start*."""
        days = [day for day in range(1, REFERENCE_DAYS + 1) if start >= day * DAY]
        before = [self.world.inputs(start - day * DAY, at - day * DAY) for day in days]
        after, known = now.inputs(start, at), [each for each in before if each is not None]
        quantile = min(float(row.at), TRAFFIC_AT) if row.at != MEAN else TRAFFIC_AT
        return after is not None and share_explained_by_traffic(known, after, quantile)[0] >= self._watching.by_traffic

    def _learn(self, day: int) -> tuple[Reference, stage_attribution.StageBaseline]:
        days = range(day - REFERENCE_DAYS, day)
        past = [self.world.day(number) for number in days]
        strata = self._strata(days)
        reference = scoring.learn_reference_by_day(self.policy, lambda: (self._day(each, strata) for each in days))
        if reference is None:
            msg = f"nothing could be learnt of series {self.world.seed}"
            raise RuntimeError(msg)
        if strata is not None:
            total = scoring.total_histograms(minutes for minutes, _ in past)
            reference = replace(reference, strata=strata, version_rows=rows_of(self.policy, *total))
        return reference, stage_attribution.learn_stage_baseline(self.policy, [spent for _, spent in past])

    def _strata(self, days: range) -> Strata | None:
        """Return the strata of the routes in *days*."""
        past = [self.world.traffic(number) for number in days]
        if not self._pools or not past[0].routes:
            return None
        names = past[0].routes
        routes = {name: _summed([each.routes[name] for each in past]) for name in names}
        whole = _summed([each.minutes for each in past])
        return learn_strata("route", whole, routes, self.policy.stage_key.followers)

    def _day(self, number: int, strata: Strata | None) -> MinuteHistograms:
        found = self.world.traffic(number)
        return _pooled(strata, found.minutes, found.routes)

    def _before(self, at: int, reference: Reference) -> TailCounts:
        """Return the counts of the minutes before *at*."""
        numbers = sorted({(at - BEFORE) // DAY, (at - 1) // DAY})
        days = [self._day(number, reference.strata) for number in numbers]
        return _joined(
            [count_beyond(reference.rows, part(day, at - BEFORE - day.start, at - day.start)) for day in days]
        )


def _pooled(
    strata: Strata | None, minutes: MinuteHistograms, routes: Mapping[str, MinuteHistograms]
) -> MinuteHistograms:
    return minutes if strata is None else pool(strata, minutes, routes)


def _summed(days: list[MinuteHistograms]) -> MinuteHistograms:
    """Return the sums of the requests of *days*, as one minute."""
    total, own = scoring.total_histograms(days)
    index = np.unique([*total.buckets, *(bucket for each in own.values() for bucket in each.buckets)])

    def counts(histogram: Histogram) -> list[int]:
        return [histogram.buckets.get(bucket, 0) for bucket in index.tolist()]

    return MinuteHistograms(
        0, index, np.array([counts(total)]), tuple(own), np.array([[counts(each)] for each in own.values()])
    )


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


def _joined(parts: list[TailCounts]) -> TailCounts:
    whole = parts[0]
    for other in parts[1:]:
        whole = join_tallies(whole, other)
    return whole
