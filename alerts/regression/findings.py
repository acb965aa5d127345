"""From "its tail is strange" to what people are told: how much slower, since when, which stage, with which release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ...analysis.comparison import StageGrowth
from ...store import Group, Reader, Selection
from .. import formatting
from ..delivery.finding_parts import Shift as Slower
from ..delivery.message import Finding
from ..evaluation.links import where
from . import canary, showing, stage_attribution, traffic
from .canaries import Pair, of_version
from .comparing import common_mix, days_before, in_words, latency, requests_by, shifts_of, stage_means
from .group_learning import DAY, select, spent
from .policy import TailPolicy, Window
from .scoring import Cell, Judgement
from .series import Watched, moment
from .stage_attribution import Habits, Suspect
from .state_store import Learnt
from .statistic import Expectation, Sums, excess
from .tally import MEAN, Row, Tally
from .verdict import TailVerdict, conclude
from .watching_policy import Watching

# A page that tells of no percentile is opened at this one.
_SHOWN_AT = 0.99


@dataclass(frozen=True, slots=True)
class Eye:
    """What looks.

    Args:
        read: The store's queries.
        policy: What matters.
        watching: What is done with it.
        dashboard_url: Where the dashboard is; empty for no link.
    """

    read: Reader
    policy: TailPolicy
    watching: Watching
    dashboard_url: str


def describe(eye: Eye, watched: Watched, releases: Mapping[str, int], before: Finding | None) -> Finding | None:
    """Return what is to be told of a series that fires, or None when it cannot be told yet.

    Args:
        eye: What looks.
        watched: The series.
        releases: The versions of its service, and the minute each was first seen in.
        before: What was found last, if it is open.
    """
    answer, recent = _answer(watched.judged, watched.learnt.reference.rows), watched.lately
    if answer is None or recent is None:
        return before
    number, cell, row = answer
    at = watched.progress.at
    window = eye.policy.windows[number]
    began = round(before.since / 60) if before else onset(watched.learnt, recent, window, cell)
    # It may have begun within the first block, which is slow in part, or late in the one before.
    between = (began - window.block, began + window.block)
    if before and before.between:
        between = round(before.between[0] / 60), round(before.between[1] / 60)
    start = max(began, at - _minutes(eye.watching.blamed))
    then = _before(eye, watched, (began, start, at))
    now = select(watched.group, start, at)
    suspects = _suspects(eye, watched, row, then, now)
    verdict = _verdict(eye, watched, (row, cell), (then, now), suspects)
    return _finding(
        eye,
        watched.group,
        verdict,
        suspects,
        (began, start, at),
        version=release_with(eye.watching, releases, between),
        between=between,
    )


def describe_canary(eye: Eye, pair: Pair, rows: Sequence[Row], usual: Habits) -> Finding | None:
    """Return what is to be told of a version that is slower than the one beside it, or None when it cannot be told yet.

    Args:
        eye: What looks.
        pair: The two versions.
        rows: What was asked of them.
        usual: How the slowest requests of the service usually spend their time.
    """
    answer = _answer(pair.judged, rows)
    if answer is None or pair.judged is None:
        return None
    _, cell, row = answer
    at = pair.progress.at
    start = max(pair.since, at - _minutes(eye.watching.blamed))
    old, new = (of_version(pair.whole, version) for version in (pair.old, pair.new))
    beside, slower = (spent(eye.read, group, start, at) for group in (old, new))
    suspects = canary.blame(eye.policy, usual, beside, slower, pair.judged.moved)
    verdict = conclude(
        row,
        cell,
        latency(eye.read, [select(old, start, at)]),
        latency(eye.read, [select(new, start, at)]),
        suspects,
    )
    return _finding(eye, new, verdict, suspects, (pair.since, start, at), against=pair.old)


def onset(learnt: Learnt, recent: Tally, window: Window, cell: Cell) -> int:
    """Return the minute in which the trouble began: of the last blocks that are half as far out, the first."""
    reference = learnt.reference
    ends = np.arange(len(recent), window.block - 1, -window.block)
    asked = Expectation(reference.model, reference.rows, (cell.row,))
    _, logs, _ = excess(Sums(recent), asked, ends, np.full(len(ends), window.block))
    out = logs[0] >= cell.excess / 2
    # The first block that is not out, and the one before it not either: one calm block within the trouble is chance.
    calm = np.flatnonzero(~out & ~np.append(out[1:], False))
    blocks = max(int(calm[0]) if len(calm) else len(ends), 1)
    return recent.end - blocks * window.block


def _answer(judged: Judgement | None, rows: Sequence[Row]) -> tuple[int, Cell, Row] | None:
    """Return which window speaks most clearly, what it says, and of which question."""
    if judged is None or judged.best is None:
        return None
    cell = judged.cells[judged.best]
    return None if cell is None else (judged.best, cell, rows[cell.row])


def _before(eye: Eye, watched: Watched, times: tuple[int, int, int]) -> list[Selection]:
    """Return the same hours of the days before, or the day before the trouble where there were no requests in them."""
    group, (began, start, end) = watched.group, times
    days = eye.policy.reference.length // DAY
    then = days_before(group, start, end, began, days, since=watched.normal_from)
    if latency(eye.read, then).count:
        return then
    return [select(group, max(began - DAY, watched.normal_from), began)]


def _suspects(eye: Eye, watched: Watched, row: Row, then: Sequence[Selection], now: Selection) -> tuple[Suspect, ...]:
    """Say which stages grew: in the slowest requests, or where the mean is the question in all of them."""
    moved = watched.judged.moved if watched.judged else {}
    if row.at != MEAN:
        start, end = (round(at.timestamp()) // 60 for at in (now.start, now.end))
        return stage_attribution.suspects(
            eye.policy, watched.learnt.habits, spent(eye.read, watched.group, start, end), moved
        )
    before, after = stage_means(eye.read, then), stage_means(eye.read, [now])
    grown = {stage: after.get(stage, 0.0) - before.get(stage, 0.0) for stage in sorted({*before, *after})}
    return stage_attribution.ranked(eye.policy, watched.learnt.habits, grown, moved)


def _verdict(
    eye: Eye,
    watched: Watched,
    answer: tuple[Row, Cell],
    sides: tuple[Sequence[Selection], Selection],
    suspects: Sequence[Suspect],
) -> TailVerdict:
    """Compare the last requests to those of before."""
    group, (row, cell), (then, now) = watched.group, answer, sides
    before, after = latency(eye.read, then), latency(eye.read, [now])
    minutes = round((now.end - now.start) / timedelta(minutes=1))
    load = traffic.load_shift(watched.learnt.reference.model.load, after.count, minutes)
    shifts = shifts_of(eye.policy, requests_by(eye.read, then, group), requests_by(eye.read, [now], group), load)
    mix = next((each.dimension for each in shifts if each.dimension in ("route", "model")), "")
    mixed = common_mix(eye.read, float(row.at), mix, then, [now]) if mix and row.at != MEAN else None
    return conclude(row, cell, before, after, suspects, shifts=shifts, on_common_mix=mixed)


def _finding(
    eye: Eye,
    group: Group,
    verdict: TailVerdict,
    suspects: Sequence[Suspect],
    times: tuple[int, int, int],
    *,
    version: str = "",
    against: str = "",
    between: tuple[int, int] | None = None,
) -> Finding | None:
    """Put it together; *times* are when it began, from when it was measured, and now; in minutes since the epoch.

    *between* is the first and the last minute it may have begun in.
    """
    slower = _slower(verdict, times[2] - times[1], against)
    if slower is None:
        return None
    quantile = _SHOWN_AT if slower.at == MEAN else float(slower.at)
    about = showing.about(group, quantile)
    usual = f"with version {against} beside it" if against else "in the same hours of the days before"
    return Finding(
        name="canary" if against else "tail",
        service=group.service,
        promise=f"{usual}, {_spelt(slower)} was {formatting.latency(slower.before_seconds)}",
        kind="tail",
        severity=eye.watching.severity,
        since=moment(times[0]).timestamp(),
        between=None if between is None else (60.0 * between[0], 60.0 * between[1]),
        shift=slower,
        growth=tuple(StageGrowth(each.stage, each.seconds, each.share) for each in suspects if each.seconds > 0),
        version=version,
        exemplars=showing.slow_requests(eye.read, about, times, slower.before_seconds, eye.dashboard_url),
        course=showing.course(eye.read, about, times, None if slower.at == MEAN else quantile),
        link=showing.link(eye.dashboard_url, about, times, quantile),
        where=where(about),
    )


def _slower(verdict: TailVerdict, minutes: int, against: str) -> Slower | None:
    if verdict.before is None or verdict.after is None or verdict.change is None:
        return None
    return Slower(
        at=verdict.at,
        before_seconds=verdict.before.value,
        after_seconds=verdict.after.value,
        low=verdict.change.low,
        high=verdict.change.high,
        requests=verdict.after_n,
        window_seconds=60.0 * minutes,
        z=verdict.z,
        mix=in_words(verdict.shifts, verdict.on_common_mix),
        against=against,
    )


def _spelt(slower: Slower) -> str:
    return "the mean" if slower.at == MEAN else f"p{100 * float(slower.at):g}"


def release_with(watching: Watching, releases: Mapping[str, int], began: tuple[int, int]) -> str:
    """Return the version the trouble came with: the newest, when it is not the only one and was first seen about then.

    *began* is the first and the last minute the trouble may have begun in.
    """
    if len(releases) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    version, first = max(releases.items(), key=lambda item: item[1])
    before, after = _minutes(watching.released_before), _minutes(watching.released_after)
    return version if began[0] - before <= first <= began[1] + after else ""


def _minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
