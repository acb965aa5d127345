"""Comparison of two sets of requests of one service: sides, windows and verdict.

A side is a version or a window. A window is written as its start in UTC and its length: `2026-11-21T12:00/6h`. The verdicts
on the newest version of every service are in `regressions`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import ParamSpec, TypeVar

import pandas as pd

from ...analysis.comparison import (
    QuantileComparison,
    ServingPeriod,
    StageGrowth,
    compare_quantile,
    highest_quantile,
    rank_stage_growth,
    version_times,
)
from ...analysis.profile import FunctionGrowth, grown_functions
from ...core.errors import ConfigError
from ...core.histogram import samples_needed
from ...core.settings.values import parse_duration
from ...store import Selection
from ..ui.format import time_range
from .page import Context

EXAMPLE = "2026-11-21T12:00/6h"
_MAX_LENGTH = timedelta(days=400)
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
P = ParamSpec("P")
T = TypeVar("T")
# Default percentile of a comparison.
WANTED = 0.99
# At most this last part of a version's lifetime is compared.
LIFETIME = timedelta(days=7)
BUCKET = timedelta(seconds=10)
# A version with data within this time is still serving: agents send every 10 s, and retry after an outage.
SERVING = timedelta(minutes=5)
# After this time, running agents have sent all data.
LATE = timedelta(minutes=1)
# Maximum number of queries in the lifetime of a serving version, whose result changes more and more slowly.
_MAX_QUERIES = 50
# Serving periods of a service's versions by name, oldest first.
Lives = Mapping[str, ServingPeriod]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides to compare, with their names in the address; *together* if both versions served over the same time."""

    a: Selection
    b: Selection
    a_name: str
    b_name: str
    together: bool = False


@dataclass(frozen=True, slots=True)
class PairComparison:
    pair: Pair
    quantile: float
    verdict: QuantileComparison
    stages: pd.DataFrame
    growth: tuple[StageGrowth, ...]


def asked_pair(context: Context) -> Pair | None:
    a, b = context.view.text("a"), context.view.text("b")
    names = list(lives_of(context))
    if a and b:
        return chosen_pair(context, a, b)
    usual = default_pair(context)
    if b:
        # The default for A is the version before B, or A of the default pair.
        earlier = names[max(names.index(b) - 1, 0)] if b in names else usual.a_name if usual else b
        return chosen_pair(context, earlier, b) if earlier != b else window_before(context, b)
    if a:
        later = usual.b_name if usual else _this_window(context)
        return chosen_pair(context, a, later if later != a else _this_window(context))
    return usual


def default_pair(context: Context) -> Pair | None:
    """Return the default pair: the newest version and the version before, or this window and the window before.

    Versions with enough requests for p99 are preferred, then such windows, then any pair with requests; None without any.
    """
    versions, windows = newest_pair(context), window_before(context, _this_window(context))
    least = [(fewer_requests(context, pair), pair) for pair in (versions, windows) if pair is not None]
    able = next((pair for n, pair in least if n >= samples_needed(WANTED)), None)
    return able or next((pair for n, pair in least if n), versions)


def newest_pair(context: Context, lives: Lives | None = None) -> Pair | None:
    periods = lives_of(context) if lives is None else lives
    if len(periods) < 2:  # noqa: PLR2004 - a pair needs two versions
        return None
    *_, newest = periods
    earlier = [version for version in periods if version != newest][::-1]
    able = (
        version
        for version in earlier
        if _requests(context, _lifetime(context, periods, version)) >= samples_needed(WANTED)
    )
    return _versions(context, periods, next(able, earlier[0]), newest)


def chosen_pair(context: Context, a: str, b: str) -> Pair | None:
    periods = lives_of(context)
    if a in periods and b in periods:
        return _versions(context, periods, a, b)
    first, second = (selection(context, name) for name in (a, b))
    return Pair(first, second, a, b) if first and second else None


def window_before(context: Context, b: str) -> Pair | None:
    """Return the pair of *b* and the equally long time before it; None for an unknown *b*."""
    later = selection(context, b)
    back = None if later is None else later.end - later.start
    return None if later is None or back is None else shifted_pair(context, later, back, b)


def shifted_pair(context: Context, later: Selection, back: timedelta, b: str) -> Pair:
    """Return the pair of the requests *later*, named *b*, and an equally long window earlier by *back*."""
    start, end = later.start - back, later.end - back
    return Pair(replace(_base(context), start=start, end=end), later, window_name(start, end), b)


def selection(context: Context, name: str) -> Selection | None:
    periods = lives_of(context)
    if name in periods:
        return _lifetime(context, periods, name)
    window = window_of(name, context.source.now())
    return replace(_base(context), start=window[0], end=window[1]) if window else None


def compared(context: Context, pair: Pair, quantile: float | None = None) -> PairComparison:
    """Compare *pair* at *quantile*, or at the highest percentile up to p99 with enough requests."""
    comparison, quantile = verdict_of(context, pair, quantile)
    stages = ask_past_if_over(context, context.source.read.compare, pair.a, pair.b, quantile)
    return PairComparison(pair, quantile, comparison, stages, rank_stage_growth(stages) if len(stages) else ())


def verdict_of(context: Context, pair: Pair, quantile: float | None = None) -> tuple[QuantileComparison, float]:
    a, b = (ask_past_if_over(context, context.source.read.latency, side) for side in (pair.a, pair.b))
    quantile = quantile or highest_quantile(min(a.count, b.count)) or WANTED
    return compare_quantile(a, b, quantile), quantile


def ask_past_if_over(context: Context, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of *query*; a result about versions that no longer serve is cached for an hour."""
    past = all(_is_over(context, argument) for argument in args if isinstance(argument, Selection))
    return (context.source.cached_hour if past else context.source.cached)(query, *args, **kwargs)


def read_newest(context: Context, services: Mapping[str, Lives]) -> None:
    sides = [
        _lifetime(context.of(service), periods, version)
        for service, periods in services.items()
        for version in [*periods][-2:]
    ]
    read = context.source.read
    context.source.read_ahead(read.latency, read.latencies, [side for side in sides if _is_over(context, side)])


def _is_over(context: Context, side: Selection) -> bool:
    return side.version is not None and side.end <= context.source.now() - LATE


def grown_at(context: Context, pair: Pair, quantile: float) -> list[FunctionGrowth]:
    cached, read = context.source.cached, context.source.read
    before, after = (cached(read.profile, side, (quantile,)) for side in (pair.a, pair.b))
    return grown_functions(before[0], after[0]) if before and after else []


def fewer_requests(context: Context, pair: Pair) -> int:
    return min(_requests(context, pair.a), _requests(context, pair.b))


def more_requests(context: Context, pair: Pair) -> int:
    return max(_requests(context, pair.a), _requests(context, pair.b))


def lives_of(context: Context) -> Lives:
    return lives(context.versions, context.view.past_end).get("", {})


def lives(frame: pd.DataFrame, until: datetime | None) -> Mapping[str, Lives]:
    periods_by_service: dict[str, dict[str, ServingPeriod]] = defaultdict(dict)
    services: Iterable[str] = frame["service"] if "service" in frame.columns else [""] * len(frame)
    seen = ([at.to_pydatetime() for at in frame[column]] for column in ("first_seen", "last_seen"))
    for service, version, first, last in zip(services, frame["version"], *seen, strict=True):
        if version and (until is None or first < until):
            periods_by_service[service][version] = ServingPeriod(
                first, last + BUCKET if until is None else min(last + BUCKET, until)
            )
    return periods_by_service


def _versions(context: Context, periods: Lives, a: str, b: str) -> Pair:
    if a == b:
        lifetime = _lifetime(context, periods, a)
        return Pair(lifetime, lifetime, a, b)

    def side(name: str, life: ServingPeriod) -> Selection:
        return _served(context, name, life)

    def fewest_of(first: ServingPeriod, second: ServingPeriod) -> int:
        return min(_requests(context, side(a, first)), _requests(context, side(b, second)))

    times = version_times(periods[a], periods[b], fewest_of)
    return Pair(side(a, times.a), side(b, times.b), a, b, together=times.together)


def _lifetime(context: Context, periods: Lives, name: str) -> Selection:
    return _served(context, name, periods[name])


def _served(context: Context, name: str, life: ServingPeriod) -> Selection:
    """Return the requests of version *name* in *life*, at most of its last week.

    The end of a serving version is rounded down to a fiftieth of its lifetime, so that its results stay cached.
    """
    end = life.end
    if end > context.source.now() - SERVING:
        step = max((end - life.start) // _MAX_QUERIES // BUCKET, 1) * BUCKET.total_seconds()
        end = max(end - timedelta(seconds=end.timestamp() % step), life.start + BUCKET)
    return replace(_base(context), version=name, start=max(life.start, end - LIFETIME), end=end)


def _this_window(context: Context) -> str:
    return window_name(context.view.start, context.view.end)


def _base(context: Context) -> Selection:
    return replace(context.selection, version=None)


def _requests(context: Context, wanted: Selection) -> int:
    return ask_past_if_over(context, context.source.read.latency, wanted).count


def served(side: Selection, zone: tzinfo) -> str:
    """Return the time range of *side* in *zone*: `14 Nov 15:39 – 18:20`."""  # noqa: RUF002 - as shown
    return time_range(side.start, side.end, zone, " – ")  # noqa: RUF001 - a dash between two times


def window_name(start: datetime, end: datetime) -> str:
    """Return the name of the window `[start, end)`, to the second.

    >>> window_name(datetime(2026, 11, 21, 12, tzinfo=UTC), datetime(2026, 11, 21, 18, tzinfo=UTC))
    '2026-11-21T12:00/6h'
    """
    begin = start.astimezone(UTC).replace(microsecond=0)
    seconds = max(round((end - start).total_seconds()), 1)
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    spelled = begin.strftime("%Y-%m-%dT%H:%M:%S" if begin.second else "%Y-%m-%dT%H:%M")
    return f"{spelled}/{seconds // size}{unit}"


def window_of(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Parse the name of a window; None if it is invalid, longer than 400 days or starts in the future.

    >>> window_of("2026-11-21T12:00/yesterday", datetime(2026, 11, 22, tzinfo=UTC)) is None
    True
    """
    # A plus sign in a typed address arrives as a space.
    begin, _, length = text.strip().replace(" ", "+").partition("/")
    try:
        start = datetime.fromisoformat(begin)
        start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
        span = parse_duration(length, "window")
    except (ConfigError, ValueError, OverflowError):
        return None
    if not (_EPOCH <= start <= now and timedelta(seconds=1) <= span <= _MAX_LENGTH):
        return None
    return start, start + span
