"""Policies shipped with Stagelens: the numbers of `policy/*.yaml`, read into dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from ..core.settings.values import parse_duration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Rule that groups incidents of different services that started at about the same time."""

    services: int
    within: timedelta


@dataclass(frozen=True, slots=True)
class NoData:
    """Rule for incidents about missing traffic: at least *expected* requests in the same window at the earlier times.

    Of the ages *before* of the earlier windows, only times at which the service already existed count.
    """

    after: timedelta
    expected: float
    before: tuple[timedelta, ...]
    severity: Literal["page", "ticket", "none"]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Rule for replaying missed incidents after a gap without evaluations."""

    gap: timedelta
    reach: timedelta


@dataclass(frozen=True, slots=True)
class IncidentPolicy:
    fleet: Fleet
    no_data: NoData
    catch_up: CatchUp
    retention: timedelta


@cache
def default_incident_policy() -> IncidentPolicy:
    return shipped_policy(IncidentPolicy, "incidents")


Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class BurnRateRule:
    """Alert tier of the policy, as the share of the error budget spent within its long window."""

    severity: Severity
    budget: float
    long: timedelta
    short: timedelta


@dataclass(frozen=True, slots=True)
class MinimumBadRequests:
    """Minimum number of *bad* requests for an alert in the long window, or *all_bad* in the short window if it has no good request.

    A service younger than *seen* short windows has good requests in the remaining time.
    """

    bad: float
    all_bad: float
    seen: float


@dataclass(frozen=True, slots=True)
class CalmRule:
    """Rule that suppresses a slow tier when the problem is over."""

    window: timedelta
    evidence: float


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Hysteresis of incidents: *keep* is the share of its threshold down to which a firing tier continues.

    An incident is resolved after *quiet*, reopened within *reopen*, closed as unknown after *abandon* without data, and notified of a
    changed stage again after *update*.
    """

    keep: float
    quiet: timedelta
    reopen: timedelta
    abandon: timedelta
    update: timedelta


@dataclass(frozen=True, slots=True)
class BurnRatePolicy:
    rules: tuple[BurnRateRule, ...]
    guard: MinimumBadRequests
    calm: CalmRule
    hysteresis: Hysteresis
    stale: timedelta


@cache
def default_burn_rate_policy() -> BurnRatePolicy:
    return shipped_policy(BurnRatePolicy, "multiwindow")


# Type of a field that is written as a duration in the file and stored in whole minutes.
InMinutes = Annotated[int, "written as a duration"]


def shipped_policy(kind: type[T], name: str) -> T:
    """Return the policy of type *kind* shipped with Stagelens as `policy/NAME.yaml`."""
    path = Path(__file__).parent / "policy" / f"{name}.yaml"
    return read_policy_fields(kind, yaml.safe_load(path.read_text(encoding="utf-8")))


def read_policy_fields(kind: type[T], raw: Mapping[str, Any]) -> T:
    """Build the dataclass *kind* from *raw*: nested dataclasses, tuples from lists, and durations from text such as `5m`.

    Raises TypeError for a missing or unknown key, ConfigError for an invalid duration.
    """
    kinds = get_type_hints(kind, include_extras=True)
    return kind(**{key: _value(kinds.get(key), value, key) for key, value in raw.items()})


def _value(kind: Any, raw: Any, key: str) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return read_policy_fields(kind, raw)
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], item, key) for item in raw)
    if kind is timedelta:
        return parse_duration(raw, key)
    if kind is InMinutes:
        return round(parse_duration(raw, key) / timedelta(minutes=1))
    return raw
