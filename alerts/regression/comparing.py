"""What a window is compared to: the same hours of the days before, and whether the traffic was the same then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.histogram import Histogram
from ...store import Group, Reader, Selection
from .. import formatting
from . import traffic
from .group_learning import DAY, SPENT_STEP, select
from .policy import TailPolicy
from .traffic import Shift, Traffic

# What may differ without anybody's doing; versions differ by releases, which are told by themselves.
_DIMENSIONS = ("route", "model", "device", "status")


def days_before(group: Group, start: int, end: int, began: int, days: int, *, since: int = 0) -> list[Selection]:
    """Return the same hours of the *days* before, as far as they were before the trouble; in minutes since the epoch.

    Args:
        group: Whose requests.
        start: Of the hours.
        end: Of the hours.
        began: When the trouble began.
        days: How many days there are at most.
        since: What was before is not what is normal now.
    """
    calm = [day for day in range(1, days + 1) if end - day * DAY <= began and start - day * DAY >= since]
    return [select(group, start - day * DAY, end - day * DAY) for day in calm]


def latency(read: Reader, selections: Sequence[Selection]) -> Histogram:
    """Return the latency of the requests of all *selections*."""
    whole = Histogram()
    for each in selections:
        whole.merge(read.latency(each))
    return whole


def stage_means(read: Reader, selections: Sequence[Selection]) -> dict[str, float]:
    """Return how many seconds a request of *selections* spends in each stage on average."""
    counted = [read.spent(each, SPENT_STEP) for each in selections]
    requests = max(sum(int(each.total.sum()) for each in counted), 1)
    found: dict[str, float] = {}
    for each in counted:
        for stage, seconds in zip(each.stages, each.seconds.sum(axis=(1, 2)).tolist(), strict=True):
            found[stage] = found.get(stage, 0.0) + seconds / requests
    return found


def requests_by(read: Reader, selections: Sequence[Selection], group: Group) -> Traffic:
    """Return how many requests of *selections* there are by what they may differ in."""
    found: dict[str, dict[str, float]] = {}
    for selection in selections:
        for name, values in read.dimensions(selection).items():
            if name in _DIMENSIONS and name != group.dimension:
                for value, n in values.items():
                    mine = found.setdefault(name, {})
                    mine[value] = mine.get(value, 0) + n
    return found


def common_mix(
    read: Reader, at: float, dimension: str, before: Sequence[Selection], after: Sequence[Selection]
) -> tuple[float, float] | None:
    """Compare quantile *at* as if the values of *dimension*, `route` or `model`, had been mixed as before."""
    values = {value for each in before for value in read.dimensions(each).get(dimension, {})}
    sides = [
        {value: latency(read, [_part(each, dimension, value) for each in side]) for value in values}
        for side in (before, after)
    ]
    return traffic.on_common_mix(sides[0], sides[1], at)


def shifts_of(policy: TailPolicy, before: Traffic, after: Traffic, load: Shift | None) -> tuple[Shift, ...]:
    """Return how the traffic differs from that of the days before."""
    found = traffic.shifts(policy.confounders, before, after)
    return found if load is None else (*found, load)


def in_words(shifts: Sequence[Shift], mixed: float | None) -> str:
    """Say what else changed, and how much slower it is as if the mix had not.

    >>> in_words([Shift("route", "/search", 0.12, 0.41)], 1.02)
    'route /search has 41 % of requests, had 12 %; with the same mix the change is +2 %'
    """
    said = [_said(shift) for shift in shifts]
    if shifts and mixed is not None:
        sign = "+" if mixed >= 1 else ""
        said.append(f"with the same mix the change is {sign}{formatting.percent(formatting.whole(mixed - 1))}")
    return "; ".join(said)


def _part(selection: Selection, dimension: str, value: str) -> Selection:
    return replace(selection, route=value) if dimension == "route" else replace(selection, model=value)


def _said(shift: Shift) -> str:
    if shift.dimension == "load":
        limit = "up to" if shift.after > shift.before else "at least"
        return f"{formatting.count(shift.after)} requests a minute, usual is {limit} {formatting.count(shift.before)}"
    now, was = formatting.percent(formatting.whole(shift.after)), formatting.percent(formatting.whole(shift.before))
    return f"{shift.dimension} {shift.value} has {now} of requests, had {was}"
