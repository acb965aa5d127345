"""Two sets of requests of one service beside each other: the newest version and the one before, or what the address says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pandas as pd

from ...alerts.regression import StageGrowth, Verdict, blame, highest_quantile, verdict
from ...collector.store import Selection
from ...core.errors import ConfigError
from ...core.settings import parse_duration
from .page import Context

# The percentile everybody asks for.
WANTED = 0.99
# A version is judged by what it does now: at most its last week.
_LIFETIME = pd.Timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared.

    Args:
        a: The reference.
        b: What is compared to it.
        a_name: What the reader calls A.
        b_name: What the reader calls B.
    """

    a: Selection
    b: Selection
    a_name: str
    b_name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair, judged at one quantile.

    Args:
        pair: What was compared.
        quantile: Where.
        verdict: Whether B is slower, and how sure that is.
        stages: The frame of `read.compare`.
        growth: The stages that grew, the one to blame first.
    """

    pair: Pair
    quantile: float
    verdict: Verdict
    stages: pd.DataFrame
    growth: tuple[StageGrowth, ...]


def newest_pair(context: Context) -> Pair | None:
    """Return the newest version against the one before, each over its own lifetime; None with one version."""
    names = [str(each) for each in context.versions["version"]]
    if len(names) < 2:  # noqa: PLR2004 - it takes two
        return None
    return chosen_pair(context, names[-2], names[-1])


def chosen_pair(context: Context, a: str, b: str) -> Pair | None:
    """Return A against B, each a version of the service or a window such as `2026-11-21T12:00/6h`."""
    first, second = _selection(context, a), _selection(context, b)
    return Pair(first, second, a, b) if first and second else None


def compared(context: Context, pair: Pair, quantile: float | None = None) -> Comparison:
    """Judge *pair* at *quantile*, or at p99 and below it at the highest percentile that the requests can bear."""
    source = context.source
    a, b = source.ask(source.read.latency, pair.a), source.ask(source.read.latency, pair.b)
    quantile = quantile or highest_quantile(min(a.count, b.count)) or WANTED
    stages = source.ask(source.read.compare, pair.a, pair.b, quantile)
    return Comparison(pair, quantile, verdict(a, b, quantile), stages, blame(stages) if len(stages) else ())


def _selection(context: Context, name: str) -> Selection | None:
    base = replace(context.selection, version=None)
    row = context.versions[context.versions["version"] == name]
    if len(row):
        end = row["last_seen"].iloc[0] + pd.Timedelta(seconds=10)
        start = max(row["first_seen"].iloc[0], end - _LIFETIME)
        return replace(base, version=name, start=start.to_pydatetime(), end=end.to_pydatetime())
    return _window(base, name)


def _window(base: Selection, text: str) -> Selection | None:
    begin, slash, length = text.partition("/")
    try:
        start = datetime.fromisoformat(begin)
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        return replace(base, start=start, end=start + parse_duration(length, "window")) if slash else None
    except (ValueError, ConfigError, OverflowError):
        return None
