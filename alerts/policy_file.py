"""The burn-rate policy, read from `policy/multiwindow.yaml`: which windows, which thresholds, which patience."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from ..core.settings.values import parse_duration

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the policy: *budget* of the error budget spent within *long*, and still being spent in *short*."""

    severity: Severity
    budget: float
    long: timedelta
    short: timedelta


@dataclass(frozen=True, slots=True)
class Guard:
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
class Calm:
    """When slow tiers are not believed any more.

    Args:
        window: Over which the burn rate must be below one.
        evidence: Bad requests to be expected in it at the tier's burn rate, for its silence to mean something. [count]
    """

    window: timedelta
    evidence: float


@dataclass(frozen=True, slots=True)
class Patience:
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
class Policy:
    """All of it.

    Args:
        rules: The tiers.
        guard: How many bad requests it takes.
        calm: When slow tiers are not believed any more.
        patience: How an incident holds still.
        stale: How long the collector may do nothing before nothing is judged by what it has collected.
    """

    rules: tuple[Rule, ...]
    guard: Guard
    calm: Calm
    patience: Patience
    stale: timedelta


@cache
def default_policy() -> Policy:
    """Return the policy that comes with Stagelens."""
    text = (Path(__file__).parent / "policy" / "multiwindow.yaml").read_text(encoding="utf-8")
    return read_policy(yaml.safe_load(text))


def read_policy(raw: dict[str, Any]) -> Policy:
    """Return the policy written as *raw*."""
    calm, patience = raw["calm"], raw["incident"]
    return Policy(
        rules=tuple(
            Rule(rule["severity"], rule["budget"], _length(rule, "long"), _length(rule, "short"))
            for rule in raw["tiers"]
        ),
        guard=Guard(**raw["guard"]),
        calm=Calm(_length(calm, "window"), calm["evidence"]),
        patience=Patience(
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
