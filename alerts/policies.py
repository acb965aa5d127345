"""Policies shipped with Stagelens: the numbers of `policy/*.yaml`, read into dataclasses that define their meaning.

The burn-rate policy (`multiwindow.yaml`) and the incident policy (`incidents.yaml`) are defined here, the two policies of the
regression search in `regression.policy`.
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


@dataclass(frozen=True, slots=True)
class Fleet:
    """When many services are one story: so many of them, with trouble that began *within*."""

    services: int
    within: timedelta


@dataclass(frozen=True, slots=True)
class NoData:
    """When the silence of a service is trouble.

    Args:
        after: It lasts for so long,
        expected: in a time in which there were so many requests before. [count]
        before: How long before; looked at as far as the service was known.
        severity: Who is told.
    """

    after: timedelta
    expected: float
    before: tuple[timedelta, ...]
    severity: Literal["page", "ticket", "none"]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What an evaluator that was away looks up: after a *gap*, what happened within *reach*."""

    gap: timedelta
    reach: timedelta


@dataclass(frozen=True, slots=True)
class IncidentPolicy:
    """All of it.

    Args:
        fleet: When many services are one story.
        no_data: When silence is trouble.
        catch_up: What is looked up after an absence.
        kept: How long what is over can be looked up.
    """

    fleet: Fleet
    no_data: NoData
    catch_up: CatchUp
    kept: timedelta


@cache
def default_incident_policy() -> IncidentPolicy:
    """Return the policy that comes with Stagelens."""
    text = (Path(__file__).parent / "policy" / "incidents.yaml").read_text(encoding="utf-8")
    return read_incident_policy(yaml.safe_load(text))


def read_incident_policy(raw: dict[str, Any]) -> IncidentPolicy:
    """Return the policy written as *raw*."""
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
    """One line of the policy: *budget* of the error budget spent within *long*, and still being spent in *short*."""

    severity: Severity
    budget: float
    long: timedelta
    short: timedelta


@dataclass(frozen=True, slots=True)
class MinimumBadRequests:
    """How many bad requests it takes before anybody is told.

    Args:
        bad: In the long window. [count]
        all_bad: Or in the short window, when nothing in it was good. [count]
        seen: What was seen for less than so many short windows has the rest of them counted as good.
    """

    bad: float
    all_bad: float
    seen: float


@dataclass(frozen=True, slots=True)
class CalmRule:
    """When slow tiers are not believed any more.

    Args:
        window: Over which the burn rate must be below one.
        evidence: Bad requests to be expected in it at the tier's burn rate, for its silence to mean something. [count]
    """

    window: timedelta
    evidence: float


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """How an incident holds still.

    Args:
        keep: What fires goes on down to this share of the threshold. [ratio]
        quiet: How long nothing may fire before it is resolved.
        reopen: The same trouble so soon after the end is the same incident.
        abandon: Without any data for so long, it is closed as unknown.
        update: The least time between two messages about a change of cause.
    """

    keep: float
    quiet: timedelta
    reopen: timedelta
    abandon: timedelta
    update: timedelta


@dataclass(frozen=True, slots=True)
class BurnRatePolicy:
    """All of it.

    Args:
        rules: The tiers.
        guard: How many bad requests it takes.
        calm: When slow tiers are not believed any more.
        patience: How an incident holds still.
        stale: How long the collector may do nothing before nothing is judged by what it has collected.
    """

    rules: tuple[BurnRateRule, ...]
    guard: MinimumBadRequests
    calm: CalmRule
    patience: Hysteresis
    stale: timedelta


@cache
def default_burn_rate_policy() -> BurnRatePolicy:
    """Return the policy that comes with Stagelens."""
    text = (Path(__file__).parent / "policy" / "multiwindow.yaml").read_text(encoding="utf-8")
    return read_burn_rate_policy(yaml.safe_load(text))


def read_burn_rate_policy(raw: dict[str, Any]) -> BurnRatePolicy:
    """Return the policy written as *raw*."""
    calm, patience = raw["calm"], raw["incident"]
    return BurnRatePolicy(
        rules=tuple(
            BurnRateRule(rule["severity"], rule["budget"], _length(rule, "long"), _length(rule, "short"))
            for rule in raw["tiers"]
        ),
        guard=MinimumBadRequests(**raw["guard"]),
        calm=CalmRule(_length(calm, "window"), calm["evidence"]),
        patience=Hysteresis(
            keep=patience["keep"],
            quiet=_length(patience, "quiet"),
            reopen=_length(patience, "reopen"),
            abandon=_length(patience, "abandon"),
            update=_length(patience, "update"),
        ),
        stale=_length(raw, "stale"),
    )


def _length(raw: dict[str, Any], key: str) -> timedelta:
    return parse_duration(raw[key], key)


T = TypeVar("T")

# The type of a field that is written as a duration and kept in whole minutes.
InMinutes = Annotated[int, "written as a duration"]


def shipped_policy(kind: type[T], name: str) -> T:
    """Return the policy that comes with Stagelens as `policy/NAME.yaml`."""
    path = Path(__file__).parent / "policy" / f"{name}.yaml"
    return read_policy_fields(kind, yaml.safe_load(path.read_text(encoding="utf-8")))


def read_policy_fields(kind: type[T], raw: Mapping[str, Any]) -> T:
    """Return the dataclass *kind* whose fields *raw* has as keys.

    Fields that are dataclasses are read alike, tuples of one kind from lists, and durations from texts such as `5m`.

    Raises:
        TypeError: A key is missing, or none of its fields.
        ConfigError: What should be a duration is none.
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
