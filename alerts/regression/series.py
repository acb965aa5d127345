"""One watched series: its last hours in memory, scored minute by minute, and the baseline learnt from the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from ...store import Group, MinuteCounts, Reader, Selection
from .policy import TailPolicy
from .reference import learn_reference_by_day
from .scoring import AlarmRules, AlarmState, TailScore, TailScorer, advance_alarm
from .stage_attribution import learn_stage_baseline
from .state_store import LearntBaseline
from .statistic import MinuteHistograms, Row, StageSeconds, TailCounts, count_beyond, join_tallies

# What the column holds; what is longer is told apart by the hash of it.
_MAX_CAUSE = 255


def make_cause(kind: str, *parts: str, environment: str = "") -> str:
    """Return the cause of an incident.

    >>> make_cause("tail", "shop", "route", "/search"), make_cause("tail", "shop", environment="staging")
    ('tail:shop/route//search', 'tail:staging:shop')
    """
    where = f"{environment}:" if environment else ""
    cause = f"{kind}:{where}{'/'.join(part for part in parts if part)}"
    if len(cause) <= _MAX_CAUSE:
        return cause
    return f"{cause[:200]}…{hashlib.sha256(cause.encode()).hexdigest()[:32]}"


def cause_of_group(group: Group) -> str:
    """Return the cause of an incident of *group*."""
    return make_cause("tail", group.service, group.dimension, group.value, environment=group.environment)


def whole_service(group: Group) -> Group:
    """Return the service that *group* is a part of, where it is deployed."""
    return Group(group.service, environment=group.environment)


def minute_start(minute: int) -> datetime:
    """Return the start of *minute*, counted from the epoch."""
    return datetime.fromtimestamp(60 * minute, UTC)


def to_minute_histograms(counts: MinuteCounts) -> MinuteHistograms:
    """Return what the store counted as the search reads it."""
    return MinuteHistograms(counts.start, counts.index, counts.total, counts.stages, counts.own)


def longest_window(policy: TailPolicy) -> int:
    """Return how many minutes a judgement looks back."""
    return max(window.length for window in (*policy.windows, *policy.stage_key.windows, *policy.canary.windows))


def empty_minutes(rows: tuple[Row, ...], start: int, end: int) -> TailCounts:
    """Return minutes in [start, end) without requests."""
    return TailCounts(
        start, np.zeros(end - start), np.zeros((len(rows), end - start)), np.zeros((len(rows), end - start))
    )


def count_minutes(rows: tuple[Row, ...], counts: MinuteCounts | None, start: int, end: int) -> TailCounts:
    """Count *counts*, which are those of [start, end), or None without any requests."""
    return empty_minutes(rows, start, end) if counts is None else count_beyond(rows, to_minute_histograms(counts))


def minutes_before(counted: TailCounts, at: int, length: int) -> TailCounts:
    """Return the last *length* minutes of *counted* before minute *at*."""
    last = at - counted.start
    first = max(last - length, 0)
    return TailCounts(
        counted.start + first, counted.requests[first:last], counted.n[:, first:last], counted.beyond[:, first:last]
    )


def append_minutes(first: TailCounts | None, second: TailCounts, length: int) -> TailCounts:
    """Return *second* after *first*, as far back as the first minute of *second* needs."""
    return second if first is None else join_tallies(first, second).last(length + len(second))


@dataclass(slots=True)
class WatchedSeries:
    """One series.

    Args:
        group: Whose requests.
        policy: What matters.
        learnt: What is normal.
        progress: Where it stands.
        recent: The last hours, as they were counted.
        judged: What was found last.
        described_at: When it was put into words last. [minutes since the epoch]
        normal_from: The first minute of what is normal; before a level that somebody accepted it was another.
    """

    group: Group
    policy: TailPolicy
    learnt: LearntBaseline
    progress: AlarmState
    recent: TailCounts | None = None
    judged: TailScore | None = None
    described_at: int = 0
    normal_from: int = 0
    judge: TailScorer = field(init=False)

    def __post_init__(self) -> None:
        """Lay out what is asked."""
        self.judge = TailScorer(self.policy, self.learnt.reference)

    @property
    def cause(self) -> str:
        """The cause of its incident."""
        return cause_of_group(self.group)

    @property
    def lately(self) -> TailCounts | None:
        """The last hours, without what is over."""
        return None if self.recent is None else self.recent.last(self.progress.at - self.progress.since)

    def renew(self, learnt: LearntBaseline, recent: TailCounts) -> None:
        """Go on with what was *learnt* anew; *recent* is counted by its questions."""
        self.learnt, self.recent = learnt, recent
        self.judge = TailScorer(self.policy, learnt.reference)

    def go_on(self, counts: MinuteCounts | None, start: int, end: int, released: frozenset[int]) -> None:
        """Judge the minutes of [start, end) that were not yet.

        Args:
            counts: Their requests; None without any.
            start: The first minute, counted from the epoch.
            end: The minute after the last.
            released: The minutes in which a version began to serve.
        """
        length = longest_window(self.policy)
        recent = append_minutes(self.recent, count_minutes(self.learnt.reference.rows, counts, start, end), length)
        rules = AlarmRules(self.policy.windows, self.policy.fire, self.policy.stage_key.ease)
        for at in range(max(start, self.progress.at) + 1, end + 1):
            if not recent.requests[at - 1 - recent.start]:
                # Silence is neither good nor bad.
                self.progress = replace(self.progress, at=at)
                continue
            self.judged = self.judge.judge(minutes_before(recent, at, min(length, at - self.progress.since)))
            release = at - 1 in released
            self.progress, _ = advance_alarm(rules, self.progress, at, self.judged, release=release)
        self.recent = recent.last(length)

    def begin_again(self, since: int) -> None:
        """Go on with the minutes from *since* on alone: what was before them is over."""
        self.judged, self.progress = None, AlarmState(at=self.progress.at, since=since)

    def requests(self, minutes: int) -> float:
        """Return how many requests there were in the last *minutes*."""
        return 0.0 if self.recent is None else float(self.recent.requests[-minutes:].sum())


DAY = 1440
# The steps in which it is looked at where the time goes.
SPENT_STEP = timedelta(minutes=10)


def select_minutes(group: Group, start: int, end: int) -> Selection:
    """Return the requests of *group* in [start, end), in minutes since the epoch."""
    part = {group.dimension: group.value} if group.dimension else {}
    return Selection(
        minute_start(start), minute_start(end), service=group.service, environment=group.environment, **part
    )


def learn_group(
    read: Reader, policy: TailPolicy, busy: timedelta, group: Group, span: tuple[int, int]
) -> tuple[LearntBaseline, TailCounts] | None:
    """Learn what is normal for *group*.

    Args:
        read: The store's queries.
        policy: What matters.
        busy: So many minutes with requests it takes.
        group: Whose requests.
        span: When it was first seen, and until when it is learnt. [minutes since the epoch]

    Returns:
        What was learnt, and the last hours counted by its questions; None when there is too little to learn from.
    """
    first, at = span
    start = max(first, at - policy.reference.length)
    if at - start < policy.reference.least:
        return None
    served: dict[int, int] = {}
    reference = learn_reference_by_day(policy, lambda: _days(read, group, (start, at), served))
    if reference is None or sum(served.values()) < busy / timedelta(minutes=1):
        return None
    known = list(_spent(read, group, start, at))
    recent = count_beyond(
        reference.rows, to_minute_histograms(read.minutes(select_minutes(group, at - longest_window(policy), at)))
    )
    return LearntBaseline(at, reference, learn_stage_baseline(policy, known)), recent


def stage_seconds(read: Reader, group: Group, start: int, end: int) -> StageSeconds:
    """Return where the time of the requests of *group* went in [start, end), in minutes since the epoch."""
    found = read.spent(select_minutes(group, start, end), SPENT_STEP)
    return StageSeconds(found.start, found.step, found.index, found.total, found.stages, found.seconds)


def _days(read: Reader, group: Group, span: tuple[int, int], served: dict[int, int]) -> Iterator[MinuteHistograms]:
    """Yield the days of *span*, and note how many minutes of each had requests."""
    for low in range(*span, DAY):
        day = to_minute_histograms(read.minutes(select_minutes(group, low, min(low + DAY, span[1]))))
        served[low] = int(day.total.any(axis=1).sum())
        yield day


def _spent(read: Reader, group: Group, start: int, end: int) -> Iterator[StageSeconds]:
    for low in range(start, end, DAY):
        yield stage_seconds(read, group, low, min(low + DAY, end))
