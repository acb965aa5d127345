"""What the pages and the alerts ask, with their own windows; all end now, at no full hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from stagelens.analysis.breakdown import PERCENTILES
from stagelens.dashboard.figures.time_axis import step_for
from stagelens.store import Reader, Selection

from .dataset import NOW

END = datetime.fromtimestamp(NOW, UTC)
_15M, _1H, _6H, _1D = timedelta(minutes=15), timedelta(hours=1), timedelta(hours=6), timedelta(days=1)
_3D, _7D, _30D = timedelta(days=3), timedelta(days=7), timedelta(days=30)
_MINUTE = timedelta(minutes=1)
_THRESHOLD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Question:
    """One of them.

    Args:
        name: What is asked, and of which stretch of time.
        ask: Asks it.
    """

    name: str
    ask: Callable[[Reader], object]


def _of(length: timedelta, *, version: str | None = None) -> Selection:
    return Selection(END - length, END, service="service-2", version=version)


def _in(window: str, length: timedelta) -> list[Question]:
    """Return what the page of one service asks for a window of *length*."""
    one, step = _of(length), step_for(length)
    return [
        Question(f"breakdown {window}", lambda read: read.breakdown(one, PERCENTILES)),
        Question(f"breakdown_over_time {window}", lambda read: read.breakdown_over_time(one, 0.99, step)),
        Question(f"heat {window}", lambda read: read.heat(one, step)),
        Question(f"quantiles_over_time {window}", lambda read: read.quantiles_over_time(one, (0.5, 0.99), step)),
        Question(f"latency {window}", lambda read: read.latency(one)),
        Question(f"stage_latency {window}", lambda read: read.stage_latency(one)),
        Question(f"versions {window}", lambda read: read.versions(one)),
        Question(f"exemplars {window}", lambda read: read.exemplars(one, limit=24)),
        Question(f"one_per_cause {window}", lambda read: read.one_per_cause(one, 6)),
    ]


def _fleet(window: str, length: timedelta) -> list[Question]:
    every, step = Selection(END - length, END), step_for(length)
    return [
        Question(f"services {window}", lambda read: read.services(END - length, END)),
        Question(
            f"quantiles_over_time {window}, all services", lambda read: read.quantiles_over_time(every, (0.5,), step)
        ),
    ]


def _slo() -> list[Question]:
    windows = {"5m": _15M / 3, "1h": _1H, "6h": _6H, "3d": _3D, "30d": _30D}
    counts = [_slo_counts(name, _of(length)) for name, length in windows.items()]
    return [
        *counts,
        Question("slo_series 6h by minute", lambda read: read.slo_series(_of(_6H), _THRESHOLD_SECONDS, _MINUTE)),
        Question("slo_series 30d", lambda read: read.slo_series(_of(_30D), _THRESHOLD_SECONDS, step_for(_30D))),
        Question("bad_breakdown 6h", lambda read: read.bad_breakdown(_of(_6H), _THRESHOLD_SECONDS)),
    ]


def _slo_counts(window: str, one: Selection) -> Question:
    return Question(f"slo_counts {window}", lambda read: read.slo_counts(one, _THRESHOLD_SECONDS))


def questions() -> list[Question]:
    """Return all of them."""
    old, new = _of(_7D, version="v0"), _of(_7D, version="v1")
    minutes = (0.5, 0.95, 0.99)
    day = _of(_1D)
    return [
        *_fleet("1h", _1H),
        *_fleet("6h", _6H),
        Question("quantiles_over_time 24h by minute", lambda read: read.quantiles_over_time(day, minutes, _MINUTE)),
        *(
            each
            for window, length in (("1h", _1H), ("6h", _6H), ("24h", _1D), ("7d", _7D), ("30d", _30D))
            for each in _in(window, length)
        ),
        Question("compare two versions 7d", lambda read: read.compare(old, new, 0.99)),
        Question("dominants 6h", lambda read: read.dominants(_of(_6H), PERCENTILES)),
        Question(
            "breakdown 24h of a route", lambda read: read.breakdown(replace(day, route="/predict/0"), PERCENTILES)
        ),
        *_slo(),
        Question("state", lambda read: read.state()),
        Question("revision", lambda read: read.revision()),
    ]
