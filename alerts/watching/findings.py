"""From "its tail is strange" to what people are told: how much slower, since when, which stage, with which release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ...collector.store import Group, Reader
from .. import words
from ..burning.evidence import exemplar
from ..burning.links import CALM_BEFORE, link, where
from ..delivery.message import Course, Exemplar, Finding
from ..delivery.message import Shift as Slower
from ..objectives.slo import Slo
from ..tail import canary, habits, traffic
from ..tail.judge import Cell, Judgement
from ..tail.policy import TailPolicy, Window
from ..tail.regression import StageGrowth
from ..tail.statistic import Expectation, Sums, excess
from ..tail.tally import MEAN, Row, Tally
from ..tail.verdict import TailVerdict, conclude
from .canaries import Pair
from .comparing import common_mix, days_before, in_words, latency, requests_by, shifts_of
from .kept import Learnt
from .learning import DAY, select, spent
from .policy import Watching
from .series import Watched, moment

# A page that tells of no percentile is opened at this one.
_SHOWN_AT = 0.99
# So many requests are shown, found among so many of the slowest; a picture in a message is small.
_SHOWN, _LOOKED_AT, _POINTS = 3, 30, 60


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
    answer = _answer(watched.judged, watched.learnt.reference.rows)
    if answer is None or watched.recent is None:
        return before
    number, cell, row = answer
    at = watched.progress.at
    began = (
        round(before.since / 60) if before else onset(watched.learnt, watched.recent, eye.policy.windows[number], cell)
    )
    start = max(began, at - _minutes(eye.watching.blamed))
    judged = watched.judged or Judgement((), {})
    suspects = habits.suspects(
        eye.policy, watched.learnt.habits, spent(eye.read, watched.group, start, at), judged.moved
    )
    verdict = _verdict(eye, watched, (row, cell), (began, start, at), suspects)
    return _finding(
        eye,
        watched.group,
        verdict,
        suspects,
        (began, start, at),
        version=_release(eye.watching, releases, began),
    )


def describe_canary(eye: Eye, pair: Pair, learnt: Learnt, before: Finding | None) -> Finding | None:
    """Return what is to be told of a version that is slower than the one beside it."""
    answer = _answer(pair.judged, learnt.reference.rows)
    if answer is None or pair.judged is None:
        return before
    _, cell, row = answer
    at = pair.progress.at
    start = max(pair.since, at - _minutes(eye.watching.blamed))
    old, new = (Group(pair.service, "version", version) for version in (pair.old, pair.new))
    beside, slower = (spent(eye.read, group, start, at) for group in (old, new))
    suspects = canary.blame(eye.policy, learnt.habits, beside, slower, pair.judged.moved)
    verdict = conclude(
        row,
        cell,
        latency(eye.read, [select(old, start, at)]),
        latency(eye.read, [select(new, start, at)]),
        suspects,
    )
    since = round(before.since / 60) if before else pair.since
    return _finding(eye, new, verdict, suspects, (since, start, at), against=pair.old)


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


def _verdict(
    eye: Eye,
    watched: Watched,
    answer: tuple[Row, Cell],
    times: tuple[int, int, int],
    suspects: Sequence[habits.Suspect],
) -> TailVerdict:
    """Compare the last requests to those of the same hours before, or of the day before the trouble where there were none."""
    group, (row, cell), (began, start, end) = watched.group, answer, times
    then = days_before(group, start, end, began, eye.policy.reference.length // DAY)
    before = latency(eye.read, then)
    if not before.count:
        then = [select(group, began - DAY, began)]
        before = latency(eye.read, then)
    now = [select(group, start, end)]
    after = latency(eye.read, now)
    load = traffic.load_shift(watched.learnt.reference.model.load, after.count, end - start)
    shifts = shifts_of(eye.policy, requests_by(eye.read, then, group), requests_by(eye.read, now, group), load)
    mix = next((each.dimension for each in shifts if each.dimension in ("route", "model")), "")
    mixed = common_mix(eye.read, float(row.at), mix, then, now) if mix and row.at != MEAN else None
    return conclude(row, cell, before, after, suspects, shifts=shifts, on_common_mix=mixed)


def _finding(
    eye: Eye,
    group: Group,
    verdict: TailVerdict,
    suspects: Sequence[habits.Suspect],
    times: tuple[int, int, int],
    *,
    version: str = "",
    against: str = "",
) -> Finding | None:
    """Put it together; *times* are when it began, from when it was measured, and now; in minutes since the epoch."""
    slower = _slower(verdict, times[2] - times[1], against)
    if slower is None:
        return None
    began, now = moment(times[0]), moment(times[2])
    quantile = _SHOWN_AT if slower.at == MEAN else float(slower.at)
    about = _about(group, quantile)
    usual = f"with version {against} beside it" if against else "in the same hours of the days before"
    return Finding(
        name="canary" if against else "tail",
        service=group.service,
        promise=f"{usual}, {_spelt(slower)} was {words.latency(slower.before_seconds)}",
        kind="tail",
        severity=eye.watching.severity,
        since=began.timestamp(),
        shift=slower,
        growth=tuple(StageGrowth(each.stage, each.seconds, each.share) for each in suspects if each.seconds > 0),
        version=version,
        exemplars=_slow_requests(eye, about, times, slower.before_seconds),
        course=_course(eye.read, about, times, None if slower.at == MEAN else quantile),
        link=link(eye.dashboard_url, about, began, now, quantile),
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


def _about(group: Group, quantile: float) -> Slo:
    """Return *group* as what links and selections are made of."""
    whole = select(group, 0, 0)
    return Slo(
        "tail",
        group.service,
        quantile,
        timedelta(days=1),
        route=whole.route,
        model=whole.model,
        version=whole.version,
    )


def _slow_requests(eye: Eye, about: Slo, times: tuple[int, int, int], usual_seconds: float) -> tuple[Exemplar, ...]:
    """Return kept requests that took longer than is usual there: the slowest of each cause, slowest first."""
    found = eye.read.one_per_cause(about.select(moment(times[0]), moment(times[2])), _LOOKED_AT)
    shown = found[found["duration_seconds"] > usual_seconds].head(_SHOWN)
    return tuple(exemplar(row, eye.dashboard_url) for row in shown.to_dict("records"))


def _course(read: Reader, about: Slo, times: tuple[int, int, int], quantile: float | None) -> Course | None:
    """Return how what became slower went: in the trouble, and in as long before it."""
    began, _, now = times
    length = max(2 * (now - began), now - began + _minutes(CALM_BEFORE))
    step = -(-length // _POINTS)
    start = (now - length) // step * step
    frame = read.breakdown_over_time(about.select(moment(start), moment(now)), quantile, timedelta(minutes=step))
    width = round(frame.attrs["step_seconds"])
    if frame.empty:
        return None
    numbers = [(round(at.timestamp()) - 60 * start) // width for at in frame["at"]]
    values = dict(zip(numbers, frame["value_seconds"].tolist(), strict=True))
    return Course(tuple(values.get(number) for number in range(max(values) + 1)), float(width))


def _release(watching: Watching, releases: Mapping[str, int], began: int) -> str:
    """Return the version the trouble came with: the newest, when it is not the only one and was first seen about then."""
    if len(releases) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    version, first = max(releases.items(), key=lambda item: item[1])
    before, after = _minutes(watching.released_before), _minutes(watching.released_after)
    return version if began - before <= first <= began + after else ""


def _minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
