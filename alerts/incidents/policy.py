"""The policy of incidents, read from `policy/incidents.yaml`: what is one story, when silence is trouble, what is caught up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from ...core.settings.values import parse_duration


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
def default_policy() -> IncidentPolicy:
    """Return the policy that comes with Stagelens."""
    text = (Path(__file__).parent.parent / "policy" / "incidents.yaml").read_text(encoding="utf-8")
    return read_policy(yaml.safe_load(text))


def read_policy(raw: dict[str, Any]) -> IncidentPolicy:
    """Return the policy written as *raw*."""
    fleet, silent, missed = raw["fleet"], raw["no_data"], raw["catch_up"]
    before = tuple(parse_duration(text, "before") for text in silent["before"])
    return IncidentPolicy(
        fleet=Fleet(fleet["services"], parse_duration(fleet["within"], "within")),
        no_data=NoData(parse_duration(silent["after"], "after"), silent["expected"], before, silent["severity"]),
        catch_up=CatchUp(parse_duration(missed["gap"], "gap"), parse_duration(missed["reach"], "reach")),
        kept=parse_duration(raw["kept"], "kept"),
    )
