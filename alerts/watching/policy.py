"""What the search for regressions does with a store, read from `policy/watching.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...core.settings import parse_duration
from ..policy_file import Severity


@dataclass(frozen=True, slots=True)
class Watching:
    """All of it.

    Args:
        severity: Who is told.
        delay: How long after its end a minute is judged.
        stretch: How much is read in one evaluation, at most.
        catch_up: From when on what was missed is stepped through.
        busy: So many minutes with requests it takes to learn from.
        refresh: How often an incident is described anew.
        blamed: Of how long the requests are looked at to describe it, at most.
        silence: Without a request for so long nothing can be said.
        released_before: A release so long before the trouble came with it.
        released_after: One so long after it too.
        together: Two versions are compared once both have served for so long.
        share: Of the minutes of that time each must have had requests in. [ratio]
    """

    severity: Severity
    delay: timedelta
    stretch: timedelta
    catch_up: timedelta
    busy: timedelta
    refresh: timedelta
    blamed: timedelta
    silence: timedelta
    released_before: timedelta
    released_after: timedelta
    together: timedelta
    share: float


@cache
def default_watching() -> Watching:
    """Return the policy that comes with Stagelens."""
    text = (Path(__file__).parents[1] / "policy" / "watching.yaml").read_text(encoding="utf-8")
    return read_watching(yaml.safe_load(text))


def read_watching(raw: Mapping[str, Any]) -> Watching:
    """Return the policy written as *raw*."""
    names = ("delay", "stretch", "catch_up", "busy", "refresh", "blamed", "silence")
    plain = {name: parse_duration(raw[name], name) for name in names}
    return Watching(
        severity=raw["severity"],
        released_before=parse_duration(raw["release"]["before"], "before"),
        released_after=parse_duration(raw["release"]["after"], "after"),
        together=parse_duration(raw["canary"]["together"], "together"),
        share=raw["canary"]["share"],
        **plain,
    )
