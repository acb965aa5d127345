"""Watched series: recent counts in memory, scores per minute, the learnt baseline, and their storage.

The tables store the learnt baselines, the alarm states and the accepted latency levels, so that another process can continue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from ...analysis.regression import scoring
from ...analysis.regression.drift import default_drift_policy
from ...analysis.regression.policy import TailPolicy
from ...analysis.regression.stage_attribution import StageBaseline, learn_stage_baseline
from ...analysis.regression.statistic import (
    WEEK,
    MinuteHistograms,
    Row,
    StageSeconds,
    TailCounts,
    count_beyond,
    join_tallies,
    rows_of,
)
from ...analysis.regression.strata import DIMENSIONS, MAX_STRATA, Dimension, Strata, learn_strata, pool
from ...store import Group, Reader, Selection
from ..schema import tail_accepted, tail_progress, tail_references

# Length of the database column; longer causes end with a hash.
_MAX_CAUSE = 255
DAY = 1440
# Step of the time series of stage times.
SPENT_STEP = timedelta(minutes=10)


def make_cause(kind: str, *parts: str, environment: str = "") -> str:
    """Return the cause of an incident as text.

    >>> make_cause("tail", "shop", "route", "/search"), make_cause("tail", "shop", environment="staging")
    ('tail:shop/route//search', 'tail:staging:shop')
    """
    where = f"{environment}:" if environment else ""
    cause = f"{kind}:{where}{'/'.join(part for part in parts if part)}"
    if len(cause) <= _MAX_CAUSE:
        return cause
    return f"{cause[:200]}…{hashlib.sha256(cause.encode()).hexdigest()[:32]}"


def cause_of_group(group: Group) -> str:
    return make_cause("tail", group.service, group.dimension, group.value, environment=group.environment)


def whole_service(group: Group) -> Group:
    return Group(group.service, environment=group.environment)


def minute_start(minute: int) -> datetime:
    return datetime.fromtimestamp(60 * minute, UTC)


def longest_window(policy: TailPolicy) -> int:
    return max(window.length for window in (*policy.windows, *policy.stage_key.windows))


def count_minutes(rows: tuple[Row, ...], counts: MinuteHistograms | None, start: int, end: int) -> TailCounts:
    if counts is not None:
        return count_beyond(rows, counts)
    return TailCounts(start, np.zeros(end - start), *np.zeros((2, len(rows), end - start)))


def minutes_before(counted: TailCounts, at: int, length: int) -> TailCounts:
    last = at - counted.start
    first = max(last - length, 0)
    return TailCounts(
        counted.start + first, counted.requests[first:last], counted.n[:, first:last], counted.beyond[:, first:last]
    )


def append_minutes(first: TailCounts | None, second: TailCounts, length: int) -> TailCounts:
    return second if first is None else join_tallies(first, second).last(length + len(second))


@dataclass(slots=True)
class WatchedSeries:
    group: Group
    policy: TailPolicy
    learnt: LearntBaseline
    progress: scoring.AlarmState
    recent: TailCounts | None = None
    last_score: scoring.TailScore | None = None
    described_at: int = 0
    normal_from: int = 0
    strictness: float = 1.0
    scorer: scoring.TailScorer = field(init=False)

    def __post_init__(self) -> None:
        self.scorer = scoring.TailScorer(self.policy, self.learnt.reference)

    @property
    def cause(self) -> str:
        return cause_of_group(self.group)

    @property
    def lately(self) -> TailCounts | None:
        return None if self.recent is None else self.recent.last(self.progress.at - self.progress.since)

    def renew(self, learnt: LearntBaseline, recent: TailCounts) -> None:
        self.learnt, self.recent = learnt, recent
        self.scorer = scoring.TailScorer(self.policy, learnt.reference)

    def advance(
        self, minutes: Mapping[Group, MinuteHistograms], start: int, end: int, released: frozenset[int]
    ) -> None:
        length = longest_window(self.policy)
        reference, histograms = self.learnt.reference, minutes.get(self.group)
        counts = None if histograms is None else pooled(self.group, reference.strata, histograms, minutes.get)
        recent = append_minutes(self.recent, count_minutes(reference.rows, counts, start, end), length)
        rules = scoring.AlarmRules.of_series(self.policy, self.strictness)
        for at in range(max(start, self.progress.at) + 1, end + 1):
            if not recent.requests[at - 1 - recent.start]:
                # A minute without requests changes nothing.
                self.progress = replace(self.progress, at=at)
                continue
            self.last_score = self.scorer.score(minutes_before(recent, at, min(length, at - self.progress.since)))
            release = at - 1 in released
            self.progress, _ = scoring.advance_alarm(rules, self.progress, at, self.last_score, release=release)
        self.recent = recent.last(length)

    def restart(self, since: int) -> None:
        self.last_score, self.progress = None, scoring.AlarmState(at=self.progress.at, since=since)

    @property
    def has_lasted(self) -> bool:
        """Whether the growth has lasted so long that it counts even if a host is slow."""
        return self.progress.shared >= self.policy.fire.shared_for

    def hold(self) -> None:
        """Take back the alarm, because a host is slow: for some time, only a growth that lasts counts."""
        self.progress = self.progress.hold(self.policy.fire.held_for)

    def requests(self, minutes: int) -> float:
        return 0.0 if self.recent is None else float(self.recent.requests[-minutes:].sum())


def select_minutes(group: Group, start: int, end: int) -> Selection:
    """Return the selection of the requests of *group* in [start, end), in minutes since the epoch."""
    part = {group.dimension: group.value} if group.dimension else {}
    return Selection(
        minute_start(start), minute_start(end), service=group.service, environment=group.environment, **part
    )


def pooled(
    group: Group, strata: Strata | None, histograms: MinuteHistograms, part: Callable[[Group], MinuteHistograms | None]
) -> MinuteHistograms:
    if strata is None:
        return histograms
    groups = {value: replace(group, dimension=strata.dimension, value=value) for value in strata.shifts}
    parts = {value: counts for value, group in groups.items() if (counts := part(group)) is not None}
    return pool(strata, histograms, parts)


def read_pooled(read: Reader, group: Group, strata: Strata | None, start: int, end: int) -> MinuteHistograms:
    """Return the requests of *group* in [start, end), in minutes since the epoch, pooled over *strata*."""

    def minutes(member: Group) -> MinuteHistograms:
        return read.minutes(select_minutes(member, start, end))

    return pooled(group, strata, minutes(group), minutes)


def learn_group(
    read: Reader, policy: TailPolicy, busy: timedelta, group: Group, span: tuple[int, int]
) -> tuple[LearntBaseline, TailCounts] | None:
    first, at = span
    start = max(first, at - policy.reference.length)
    if at - start < policy.reference.least:
        return None
    served: dict[int, int] = {}
    strata, raw, sums = _sums(read, policy, group, start, at)
    reference = scoring.learn_reference_by_day(policy, lambda: _days(read, group, strata, (start, at), served), sums)
    if reference is None or sum(served.values()) < busy / timedelta(minutes=1):
        return None
    if strata is not None:
        reference = replace(reference, strata=strata, version_rows=rows_of(policy, *scoring.total_histograms([raw])))
    stage_spans = list(_spent(read, group, start, at))
    recent = count_beyond(reference.rows, read_pooled(read, group, strata, at - longest_window(policy), at))
    return LearntBaseline(at, reference, learn_stage_baseline(policy, stage_spans)), recent


def _sums(
    read: Reader, policy: TailPolicy, group: Group, start: int, end: int
) -> tuple[Strata | None, MinuteHistograms, MinuteHistograms]:
    whole = select_minutes(group, start, end)
    sums = read.sums(whole)
    values = {} if group.dimension else read.dimensions(whole)
    dimension: Dimension | None = next(
        (dimension for dimension in DIMENSIONS if len(values.get(dimension, {})) > 1), None
    )
    if dimension is None:
        return None, sums, sums
    requests = values[dimension]
    largest = sorted(requests, key=lambda value: (-requests[value], value))[:MAX_STRATA]
    groups = {value: replace(group, dimension=dimension, value=value) for value in largest}
    parts = {value: read.sums(select_minutes(group, start, end)) for value, group in groups.items()}
    strata = learn_strata(dimension, sums, parts, policy.stage_key.followers)
    return strata, sums, sums if strata is None else pool(strata, sums, parts)


def stage_seconds(read: Reader, group: Group, start: int, end: int, step: timedelta = SPENT_STEP) -> StageSeconds:
    """Return the stage times of *group* in [start, end), in minutes since the epoch."""
    return read.spent(select_minutes(group, start, end), step)


def _days(
    read: Reader, group: Group, strata: Strata | None, span: tuple[int, int], served: dict[int, int]
) -> Iterator[MinuteHistograms]:
    for low in range(*span, DAY):
        day = read_pooled(read, group, strata, low, min(low + DAY, span[1]))
        served[low] = int(day.total.any(axis=1).sum())
        yield day


def _spent(read: Reader, group: Group, start: int, end: int) -> Iterator[StageSeconds]:
    for low in range(start, end, DAY):
        yield stage_seconds(read, group, low, min(low + DAY, end))


@dataclass(frozen=True, slots=True)
class LearntBaseline:
    at: int
    reference: scoring.Reference
    habits: StageBaseline


@dataclass(frozen=True, slots=True)
class AcceptedLevel:
    """Accepted latency level. Times are minutes since the epoch."""

    since: int
    at: int


def last_evaluated_minute(connection: Connection) -> int | None:
    """Return the last minute that any process evaluated, in minutes since the epoch; None for never."""
    return connection.execute(select(func.max(tail_progress.c.at))).scalar()


def load_learnt(connection: Connection) -> dict[str, LearntBaseline]:
    """Return all learnt baselines by cause; those of another version of Stagelens are left out and learnt again."""
    baselines: dict[str, LearntBaseline] = {}
    for row in connection.execute(select(tail_references)):
        with suppress(ValueError):
            reference = scoring.Reference.from_json(row.reference)
            baselines[row.cause] = LearntBaseline(row.learnt_at, reference, StageBaseline.from_json(row.habits))
    return baselines


def load_progress(connection: Connection) -> dict[str, scoring.AlarmState]:
    rows = connection.execute(select(tail_progress.c.cause, tail_progress.c.progress))
    return {row.cause: scoring.AlarmState.from_json(row.progress) for row in rows}


def load_accepted(connection: Connection) -> dict[str, AcceptedLevel]:
    return {row.cause: AcceptedLevel(row.since, row.at) for row in connection.execute(select(tail_accepted))}


def save_accepted(connection: Connection, cause: str, accepted: AcceptedLevel) -> None:
    connection.execute(delete(tail_accepted).where(tail_accepted.c.cause == cause))
    connection.execute(insert(tail_accepted).values(cause=cause, since=accepted.since, at=accepted.at))


def save_learnt(connection: Connection, cause: str, learnt: LearntBaseline) -> None:
    values = {"learnt_at": learnt.at, "reference": learnt.reference.to_json(), "habits": learnt.habits.to_json()}
    updated = connection.execute(update(tail_references).where(tail_references.c.cause == cause).values(**values))
    if not updated.rowcount:
        connection.execute(insert(tail_references).values(cause=cause, **values))


def save_progress(connection: Connection, standing: Mapping[str, scoring.AlarmState], at: int) -> None:
    """Write the alarm states at minute *at*, except where another process has stored newer ones."""
    table = tail_progress
    evaluated_at = {row.cause: row.at for row in connection.execute(select(table.c.cause, table.c.at))}
    rows = [{"cause": cause, "at": at, "progress": progress.to_json()} for cause, progress in standing.items()]
    ours = [row for row in rows if evaluated_at.get(str(row["cause"]), at) <= at]
    if ours:
        connection.execute(delete(table).where(table.c.cause.in_([row["cause"] for row in ours])))
        connection.execute(insert(table), ours)


def delete_stale(connection: Connection, before: int) -> None:
    """Delete the state of series not evaluated since minute *before*, but accepted levels only after the weeks of a drift."""
    recent = select(tail_progress.c.cause).where(tail_progress.c.at >= before)
    weeks = default_drift_policy().weeks * WEEK * DAY
    for table, written, least in (
        (tail_references, tail_references.c.learnt_at, before),
        (tail_accepted, tail_accepted.c.at, before - weeks),
    ):
        connection.execute(delete(table).where(written < least, table.c.cause.not_in(recent)))
    connection.execute(delete(tail_progress).where(tail_progress.c.at < before))
