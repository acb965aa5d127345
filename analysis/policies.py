"""Policies shipped with Stagelens: the numbers of `policy/*.yaml`, read into dataclasses that document their meaning.

The burn-rate policy (`multiwindow.yaml`) and the incident policy (`incidents.yaml`) are defined here; the two policies of the
regression search are defined in `regression.policy`.
"""

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
    """Rule for incidents about missing traffic of a service.

    Args:
        expected: Minimum number of requests in the same window at the earlier times. [count]
        before: Ages of the earlier windows to compare with; only times at which the service already existed count.
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
    kept: timedelta


@cache
def default_incident_policy() -> IncidentPolicy:
    """Return the incident policy shipped with Stagelens."""
    text = (Path(__file__).parent / "policy" / "incidents.yaml").read_text(encoding="utf-8")
    return read_incident_policy(yaml.safe_load(text))


def read_incident_policy(raw: dict[str, Any]) -> IncidentPolicy:
    """Parse an incident policy from the parsed YAML mapping *raw*."""
    fleet, silent, missed = raw["fleet"], raw["no_data"], raw["catch_up"]
    before = tuple(parse_duration(text, "before") for text in silent["before"])
    return IncidentPolicy(
        fleet=Fleet(fleet["services"], parse_duration(fleet["within"], "within")),
        no_data=NoData(parse_duration(silent["after"], "after"), silent["expected"], before, silent["severity"]),
        catch_up=CatchUp(parse_duration(missed["gap"], "gap"), parse_duration(missed["reach"], "reach")),
        kept=parse_duration(raw["kept"], "kept"),
    )


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
    """Minimum number of bad requests for an alert.

    Args:
        bad: Minimum in the long window. [count]
        all_bad: Alternative minimum in the short window, if it has no good request. [count]
        seen: Minimum age of a service, as a number of short windows; for a younger one the remaining window counts as good.
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
    """Hysteresis of incidents.

    Args:
        keep: A firing tier continues down to this share of its threshold. [ratio]
        quiet: Time without a firing tier after which the incident is resolved.
        reopen: Time after its end within which the same cause reopens the incident.
        abandon: Time without data after which the incident is closed as unknown.
        update: Minimum time between two notifications about a changed stage.
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
    """Return the burn-rate policy shipped with Stagelens."""
    text = (Path(__file__).parent / "policy" / "multiwindow.yaml").read_text(encoding="utf-8")
    return read_burn_rate_policy(yaml.safe_load(text))


def read_burn_rate_policy(raw: dict[str, Any]) -> BurnRatePolicy:
    """Parse a burn-rate policy from the parsed YAML mapping *raw*."""
    calm, incident = raw["calm"], raw["incident"]
    return BurnRatePolicy(
        rules=tuple(
            BurnRateRule(rule["severity"], rule["budget"], _length(rule, "long"), _length(rule, "short"))
            for rule in raw["tiers"]
        ),
        guard=MinimumBadRequests(**raw["guard"]),
        calm=CalmRule(_length(calm, "window"), calm["evidence"]),
        hysteresis=Hysteresis(
            keep=incident["keep"],
            quiet=_length(incident, "quiet"),
            reopen=_length(incident, "reopen"),
            abandon=_length(incident, "abandon"),
            update=_length(incident, "update"),
        ),
        stale=_length(raw, "stale"),
    )


def _length(raw: dict[str, Any], key: str) -> timedelta:
    return parse_duration(raw[key], key)


# Type of a field that is written as a duration in the file and stored in whole minutes.
InMinutes = Annotated[int, "written as a duration"]


def shipped_policy(kind: type[T], name: str) -> T:
    """Return the policy of type *kind* shipped with Stagelens as `policy/NAME.yaml`."""
    path = Path(__file__).parent / "policy" / f"{name}.yaml"
    return read_policy_fields(kind, yaml.safe_load(path.read_text(encoding="utf-8")))


def read_policy_fields(kind: type[T], raw: Mapping[str, Any]) -> T:
    """Build the dataclass *kind* from the values of *raw*.

    Nested dataclasses are read recursively, tuples from lists, and durations from text such as `5m`.

    Raises:
        TypeError: A key is missing or unknown.
        ConfigError: A duration is invalid.
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
