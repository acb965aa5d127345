"""Text of a comparison, shared by the verdict bar, the regressions table and the report.

The text includes changes of the request mix (routes, models, devices, prompt length) that could explain a slower B.
"""

from __future__ import annotations

import math
from datetime import datetime, tzinfo

import pandas as pd

from ...analysis.comparison import ChangeKind
from ...core.histogram import Histogram, samples_needed
from ...core.names import TOKENS, TOKENS_IN
from ...core.stages import label
from ...store import Selection
from ..ui.components import ratio_of
from ..ui.format import (
    MAX_FACTOR,
    THIN,
    TIMES,
    count,
    day,
    duration,
    factor,
    percent,
    percentile,
    portion,
    signed_change,
    whole,
)
from .comparison import SERVING, Pair, PairComparison, ask_past_if_over, lives_of, served, verdict_of
from .page import Context, records

# Dimensions set by clients and hosts. Batches and failures may result from the version, so they are not confounders.
_CONFOUNDERS = {"route": "the traffic changed", "model": "the models changed", "device": "the devices changed"}
_LONGER_PROMPTS = "the traffic changed"
_DIMENSION_NAMES = {"route": "route", "model": "model", "status": "status", "device": "device", "batch": "batch of"}
# Traffic varies by a tenth without a cause.
TRAFFIC_NOISE = 0.1
VERDICT_WORDS: dict[ChangeKind, tuple[str, str]] = {
    "regression": ("Regression", "bad"),
    "improvement": ("Improvement", "good"),
    "same": ("No difference", ""),
    "not_enough": ("Not enough data", "warn"),
}
# Stages with a smaller share of the change are not named.
_MIN_BLAME = 0.05
_MAX_BLAMED = 2
# Interval bounds of at least this ratio are written as unknown.
_UNKNOWN_END = 1000
_MEDIAN = 0.5
# Maximum length of a version name; longer names are shortened.
_WHOLE_NAME = 20


def verdict_badge(context: Context, judgement: PairComparison) -> tuple[str, str]:
    kind = judgement.verdict.kind
    if kind in {"regression", "improvement"} and (other := confounder(context, judgement.pair)):
        return f"{'Slower' if kind == 'regression' else 'Faster'}, but {other}", "warn"
    return VERDICT_WORDS[kind]


def verdict_sentence(judgement: PairComparison) -> str:
    comparison, at = judgement.verdict, percentile(judgement.quantile)
    if comparison.kind == "not_enough" or comparison.ratio is None:
        fewer = min(comparison.a_n, comparison.b_n)
        few = "No request" if not fewer else f"{whole(fewer)} request{'s' * (fewer != 1)}"
        side = "A" if comparison.a_n <= comparison.b_n else "B"
        return f"{few} in {side}: {at} needs {whole(samples_needed(judgement.quantile))}"
    values = f"{duration(comparison.a_value)} → {duration(comparison.b_value)}"
    if comparison.kind == "same":
        return f"{at} did not change: {values}"
    size = comparison.ratio if comparison.ratio >= 1 else 1 / max(comparison.ratio, 1e-9)
    shown = f"{count(size)}{TIMES}" if size <= MAX_FACTOR else factor(size)
    return f"B is {shown} {'slower' if comparison.ratio >= 1 else 'faster'} at {at}: {values}"


def evidence(context: Context, judgement: PairComparison) -> list[str]:
    comparison = judgement.verdict
    parts = [
        interval_words(judgement),
        f"{count(comparison.a_n)} and {count(comparison.b_n)} requests",
        median_words(context, judgement),
    ]
    parts.append(mix_sentence(context, judgement.pair) if min(comparison.a_n, comparison.b_n) else "")
    return [part for part in parts if part]


def interval_words(judgement: PairComparison) -> str:
    comparison = judgement.verdict
    if comparison.ratio_low is None or comparison.ratio_high is None or comparison.kind == "not_enough":
        return ""
    low, high = comparison.ratio_low, comparison.ratio_high
    if comparison.kind == "improvement":
        # A faster B is written as "two times faster", not as "half as slow".
        low, high = 1 / high, 1 / low if low > 0 else math.inf
    last = f"{count(high)}{TIMES}" if high < _UNKNOWN_END else "unknown"
    return f"99{THIN}% interval {count(low)} to {last}"


def median_words(context: Context, judgement: PairComparison) -> str:
    comparison, _ = verdict_of(context, judgement.pair, _MEDIAN)
    if judgement.quantile <= _MEDIAN or comparison.ratio is None or comparison.kind == "not_enough":
        return ""
    values = f"{duration(comparison.a_value)} → {duration(comparison.b_value)}"
    return (
        f"p50 unchanged ({values})"
        if comparison.kind == "same"
        else f"p50 {signed_change(comparison.ratio - 1)} ({values})"
    )


def blamed_stages(judgement: PairComparison) -> list[tuple[str, str]]:
    if judgement.verdict.kind == "regression":
        shares = {growth.stage: growth.share for growth in judgement.growth}
    elif judgement.verdict.kind == "improvement":
        shares = dict(zip(judgement.stages["stage"], judgement.stages["share"].astype(float), strict=True))
    else:
        shares = {}
    largest = sorted(shares.items(), key=lambda pair: -pair[1])[:_MAX_BLAMED]
    return [(str(stage), f"{label(str(stage))}, {portion(share)}") for stage, share in largest if share >= _MIN_BLAME]


def side_name(context: Context, name: str, side: Selection) -> tuple[str, str]:
    if name in lives_of(context):
        return short_name(name), serving_time(side, context.source.now(), context.view.zone)
    return served(side, context.view.zone), ""


def short_name(version: str) -> str:
    """Return *version* shortened for a menu: start and end of a long name, such as a commit hash.

    >>> short_name("v1.15.0"), short_name("4f2a9c1d8e7b6a5f4f2a9c1d8e7b6a5f4f2a9c1d")
    ('v1.15.0', '4f2a9c1d…2a9c1d')
    """
    return version if len(version) <= _WHOLE_NAME else f"{version[:8]}…{version[-6:]}"


def side_names(context: Context, pair: Pair) -> tuple[str, str]:
    return side_name(context, pair.a_name, pair.a)[0], side_name(context, pair.b_name, pair.b)[0]


def serving_time(side: Selection, now: datetime, zone: tzinfo) -> str:
    """Return the time range of a selection: `since 15:40`, or `14 Nov 15:39 – 18:20`."""  # noqa: RUF002 - as shown
    if side.end <= now - SERVING:
        return served(side, zone)
    start, today = side.start.astimezone(zone), now.astimezone(zone).date()
    return f"since {start:%H:%M}" if start.date() == today else f"since {day(start)}"


def compared_times(context: Context, pair: Pair) -> str:
    times = served(pair.a, context.view.zone), served(pair.b, context.view.zone)
    if pair.together:
        return f"Both versions served at the same time. Only this time is compared: {times[0]}."
    if not {pair.a_name, pair.b_name} & {*lives_of(context)}:
        return ""
    return f"A: {times[0]}. B: {times[1]}."


def request_mix(context: Context, pair: Pair) -> pd.DataFrame:
    return ask_past_if_over(context, context.source.read.mix, pair.a, pair.b)


def confounder(context: Context, pair: Pair) -> str:
    """Return the difference other than the code, as text after "Slower, but"; "" without one."""
    frame = request_mix(context, pair)
    changed = {str(record["dimension"]) for record in records(frame) if record["changed"]}
    reason = next((text for dimension, text in _CONFOUNDERS.items() if dimension in changed), "")
    return reason or (_LONGER_PROMPTS if abs(prompt_growth(context, pair) or 0.0) > TRAFFIC_NOISE else "")


def mix_sentence(context: Context, pair: Pair) -> str:
    frame = request_mix(context, pair)
    parts = [
        f"{_DIMENSION_NAMES[str(record['dimension'])]} {record['value'] or 'unnamed'} "
        f"{percent(float(record['a_share']))} → {percent(float(record['b_share']))} of requests"
        for record in records(frame)
        if record["changed"]
    ]
    longer = prompt_growth(context, pair)
    if longer is not None and abs(longer) > TRAFFIC_NOISE:
        parts.append(f"median prompt {signed_change(longer)}")
    if not parts:
        return "traffic mix unchanged" if len(frame) else ""
    return "also changed: " + ", ".join(parts)


def prompt_growth(context: Context, pair: Pair) -> float | None:
    """Return the relative growth of the median prompt length; None without token counts [ratio]."""
    sides = [median_value(token_histograms(context, pair)[index].get(TOKENS_IN)) for index in (0, 1)]
    return ratio_of(sides[1], sides[0])


def token_histograms(context: Context, pair: Pair) -> list[dict[str, Histogram]]:
    return [ask_past_if_over(context, context.source.read.streams, side, TOKENS) for side in (pair.a, pair.b)]


def median_value(counted: Histogram | None) -> float | None:
    estimate = counted.quantile(0.5) if counted else None
    return None if estimate is None else estimate.value
