"""A comparison in words: the verdict bar, the table of regressions and the report say the same."""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo

from ...analysis.comparison import ChangeKind
from ...core.stages import label
from ...store import Selection
from ..format import THIN, TIMES, count, day, duration, needed, percentile, portion, signed_change, whole
from .comparison import SERVING, Comparison, Pair, judged, lives_of
from .mix import confounder, sentence
from .page import Context

WORDS: dict[ChangeKind, tuple[str, str]] = {
    "regression": ("Regression", "bad"),
    "improvement": ("Improvement", "good"),
    "same": ("No difference", ""),
    "not_enough": ("Not enough data", "warn"),
}
# A stage with less of the change is no cause worth naming.
_MIN_BLAME = 0.05
_MAX_BLAMED = 2
# From here on an end of an interval says nothing.
_UNKNOWN_END = 1000
_MEDIAN = 0.5
# Longer names of versions are cut.
_WHOLE_NAME = 20


def verdict_badge(context: Context, judgement: Comparison) -> tuple[str, str]:
    """Return the verdict in a word or two, and its kind of badge: other traffic makes it doubtful."""
    kind = judgement.verdict.kind
    if kind in {"regression", "improvement"} and (other := confounder(context, judgement.pair)):
        return f"{'Slower' if kind == 'regression' else 'Faster'}, but {other}", "warn"
    return WORDS[kind]


def headline(judgement: Comparison) -> str:
    """Return the finding: how many times slower B is, and where."""
    found, at = judgement.verdict, percentile(judgement.quantile)
    if found.kind == "not_enough" or found.ratio is None:
        fewer = min(found.a_n, found.b_n)
        few = "No request" if not fewer else f"{whole(fewer)} request{'s' * (fewer != 1)}"
        side = "A" if found.a_n <= found.b_n else "B"
        return f"{few} in {side}: {at} needs {whole(needed(judgement.quantile))}"
    values = f"{duration(found.a_value)} → {duration(found.b_value)}"
    if found.kind == "same":
        return f"{at} did not change: {values}"
    factor = found.ratio if found.ratio >= 1 else 1 / found.ratio
    return f"B is {count(factor)}{TIMES} {'slower' if found.ratio >= 1 else 'faster'} at {at}: {values}"


def evidence(context: Context, judgement: Comparison) -> list[str]:
    """Return what the finding rests on: interval, requests, the median, the mix."""
    found = judgement.verdict
    parts = [between(judgement), f"{count(found.a_n)} and {count(found.b_n)} requests", medians(context, judgement)]
    parts.append(sentence(context, judgement.pair) if min(found.a_n, found.b_n) else "")
    return [part for part in parts if part]


def between(judgement: Comparison) -> str:
    """Return the interval of what the headline says, "" where there is none."""
    found = judgement.verdict
    if found.ratio_low is None or found.ratio_high is None or found.kind == "not_enough":
        return ""
    low, high = found.ratio_low, found.ratio_high
    if found.kind == "improvement":
        # Two times faster is said, not half as slow.
        low, high = 1 / high, 1 / low if low > 0 else math.inf
    last = f"{count(high)}{TIMES}" if high < _UNKNOWN_END else "unknown"
    return f"95{THIN}% interval {count(low)} to {last}"


def medians(context: Context, judgement: Comparison) -> str:
    """Return what became of the median, "" where it is the finding itself or nothing tells it."""
    found, _ = judged(context, judgement.pair, _MEDIAN)
    if judgement.quantile <= _MEDIAN or found.ratio is None or found.kind == "not_enough":
        return ""
    values = f"{duration(found.a_value)} → {duration(found.b_value)}"
    return f"p50 unchanged ({values})" if found.kind == "same" else f"p50 {signed_change(found.ratio - 1)} ({values})"


def blamed(judgement: Comparison) -> list[tuple[str, str]]:
    """Return the stages to blame and the share of each, worst first; of an improvement those to thank."""
    if judgement.verdict.kind == "regression":
        shares = {each.stage: each.share for each in judgement.growth}
    elif judgement.verdict.kind == "improvement":
        shares = dict(zip(judgement.stages["stage"], judgement.stages["share"].astype(float), strict=True))
    else:
        shares = {}
    largest = sorted(shares.items(), key=lambda pair: -pair[1])[:_MAX_BLAMED]
    return [(str(stage), f"{label(str(stage))} {portion(share)}") for stage, share in largest if share >= _MIN_BLAME]


def side_name(context: Context, name: str, side: Selection) -> tuple[str, str]:
    """Return what a reader calls a side, and its time: a version and when it served, or a window."""
    if name in lives_of(context):
        return short_name(name), served(side, context.source.now(), context.view.zone)
    return spelled(side, context.view.zone), ""


def short_name(version: str) -> str:
    """Return *version* in the room of a menu: of a long one, such as a commit, both ends tell it apart.

    >>> short_name("v1.15.0"), short_name("4f2a9c1d8e7b6a5f4f2a9c1d8e7b6a5f4f2a9c1d")
    ('v1.15.0', '4f2a9c1d…2a9c1d')
    """
    return version if len(version) <= _WHOLE_NAME else f"{version[:8]}…{version[-6:]}"


def side_names(context: Context, pair: Pair) -> tuple[str, str]:
    """Return what a reader calls A and B: versions, or the times of windows."""
    return side_name(context, pair.a_name, pair.a)[0], side_name(context, pair.b_name, pair.b)[0]


def served(side: Selection, now: datetime, zone: tzinfo) -> str:
    """Return when a selection begins and ends: `since 15:40`, or `14 Nov 15:39 – 18:20`."""  # noqa: RUF002 - as shown
    if side.end <= now - SERVING:
        return spelled(side, zone)
    start, today = side.start.astimezone(zone), now.astimezone(zone).date()
    return f"since {start:%H:%M}" if start.date() == today else f"since {day(start)}"


def times_said(context: Context, pair: Pair) -> str:
    """Say over which times two sides are compared; "" of two windows, which are called by their times."""
    times = spelled(pair.a, context.view.zone), spelled(pair.b, context.view.zone)
    if pair.together:
        return f"Both versions served at the same time. Only that time is compared: {times[0]}."
    if not {pair.a_name, pair.b_name} & {*lives_of(context)}:
        return ""
    return f"A: {times[0]}. B: {times[1]}."


def report_time(side: Selection) -> str:
    """Return the time of a side in UTC, for those who read it elsewhere."""
    return f"{spelled(side, UTC)} UTC"


def spelled(side: Selection, zone: tzinfo) -> str:
    """Return from when to when *side* is, in *zone*: `14 Nov 15:39 – 18:20`."""  # noqa: RUF002 - as shown
    start, end = side.start.astimezone(zone), side.end.astimezone(zone)
    last = f"{end:%H:%M}" if start.date() == end.date() else day(end)
    return f"{day(start)} – {last}"  # noqa: RUF001 - a dash between two times
