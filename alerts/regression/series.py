"""One series as it is watched: the hours before now in memory, judged minute by minute."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from ...store import Group, MinuteCounts
from .alarm import Progress, Rules, step
from .minutes import Minutes
from .policy import TailPolicy
from .scoring import Judge, Judgement
from .state_store import Learnt
from .tally import Row, Tally, join, tally

# What the column holds; what is longer is told apart by the hash of it.
_MAX_CAUSE = 255


def cause_of(kind: str, *parts: str, environment: str = "") -> str:
    """Return the cause of an incident.

    >>> cause_of("tail", "shop", "route", "/search"), cause_of("tail", "shop", environment="staging")
    ('tail:shop/route//search', 'tail:staging:shop')
    """
    where = f"{environment}:" if environment else ""
    cause = f"{kind}:{where}{'/'.join(part for part in parts if part)}"
    if len(cause) <= _MAX_CAUSE:
        return cause
    return f"{cause[:200]}…{hashlib.sha256(cause.encode()).hexdigest()[:32]}"


def cause_of_group(group: Group) -> str:
    """Return the cause of an incident of *group*."""
    return cause_of("tail", group.service, group.dimension, group.value, environment=group.environment)


def whole_of(group: Group) -> Group:
    """Return the service that *group* is a part of, where it is deployed."""
    return Group(group.service, environment=group.environment)


def moment(minute: int) -> datetime:
    """Return the start of *minute*, counted from the epoch."""
    return datetime.fromtimestamp(60 * minute, UTC)


def as_minutes(counts: MinuteCounts) -> Minutes:
    """Return what the store counted as the search reads it."""
    return Minutes(counts.start, counts.index, counts.total, counts.stages, counts.own)


def longest(policy: TailPolicy) -> int:
    """Return how many minutes a judgement looks back."""
    return max(window.length for window in (*policy.windows, *policy.stage_key.windows, *policy.canary.windows))


def nothing(rows: tuple[Row, ...], start: int, end: int) -> Tally:
    """Return minutes in [start, end) without requests."""
    return Tally(start, np.zeros(end - start), np.zeros((len(rows), end - start)), np.zeros((len(rows), end - start)))


def count(rows: tuple[Row, ...], counts: MinuteCounts | None, start: int, end: int) -> Tally:
    """Count *counts*, which are those of [start, end), or None without any requests."""
    return nothing(rows, start, end) if counts is None else tally(rows, as_minutes(counts))


def until(counted: Tally, at: int, length: int) -> Tally:
    """Return the last *length* minutes of *counted* before minute *at*."""
    last = at - counted.start
    first = max(last - length, 0)
    return Tally(
        counted.start + first, counted.requests[first:last], counted.n[:, first:last], counted.beyond[:, first:last]
    )


def joined(first: Tally | None, second: Tally, length: int) -> Tally:
    """Return *second* after *first*, as far back as the first minute of *second* needs."""
    return second if first is None else join(first, second).last(length + len(second))


@dataclass(slots=True)
class Watched:
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
    learnt: Learnt
    progress: Progress
    recent: Tally | None = None
    judged: Judgement | None = None
    described_at: int = 0
    normal_from: int = 0
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        """Lay out what is asked."""
        self.judge = Judge(self.policy, self.learnt.reference)

    @property
    def cause(self) -> str:
        """The cause of its incident."""
        return cause_of_group(self.group)

    @property
    def lately(self) -> Tally | None:
        """The last hours, without what is over."""
        return None if self.recent is None else self.recent.last(self.progress.at - self.progress.since)

    def renew(self, learnt: Learnt, recent: Tally) -> None:
        """Go on with what was *learnt* anew; *recent* is counted by its questions."""
        self.learnt, self.recent = learnt, recent
        self.judge = Judge(self.policy, learnt.reference)

    def go_on(self, counts: MinuteCounts | None, start: int, end: int, released: frozenset[int]) -> None:
        """Judge the minutes of [start, end) that were not yet.

        Args:
            counts: Their requests; None without any.
            start: The first minute, counted from the epoch.
            end: The minute after the last.
            released: The minutes in which a version began to serve.
        """
        length = longest(self.policy)
        recent = joined(self.recent, count(self.learnt.reference.rows, counts, start, end), length)
        rules = Rules(self.policy.windows, self.policy.fire, self.policy.stage_key.ease)
        for at in range(max(start, self.progress.at) + 1, end + 1):
            if not recent.requests[at - 1 - recent.start]:
                # Silence is neither good nor bad.
                self.progress = replace(self.progress, at=at)
                continue
            self.judged = self.judge.judge(until(recent, at, min(length, at - self.progress.since)))
            release = at - 1 in released
            self.progress, _ = step(rules, self.progress, at, self.judged, release=release)
        self.recent = recent.last(length)

    def begin_again(self, since: int) -> None:
        """Go on with the minutes from *since* on alone: what was before them is over."""
        self.judged, self.progress = None, Progress(at=self.progress.at, since=since)

    def requests(self, minutes: int) -> float:
        """Return how many requests there were in the last *minutes*."""
        return 0.0 if self.recent is None else float(self.recent.requests[-minutes:].sum())
