"""The families of optimisations, read from `advice.yaml`: what helps against which stage, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..core.stages import BY_KEY

_FILE = Path(__file__).with_name("advice.yaml")


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be done; every field is a few words.

    Args:
        name: What it is called.
        does: What it does.
        gain: How much it can bring: a bound, not a promise.
        accuracy: What it does to the answers.
        complexity: `low`, `medium` or `high`.
        hardware: What it needs beside what runs already.
        reversible: How to go back.
        source: Where it is described.
    """

    name: str
    does: str
    gain: str
    accuracy: str
    complexity: str
    hardware: str
    reversible: str
    source: str


@dataclass(frozen=True, slots=True)
class Family:
    """Options against the same kind of time.

    Args:
        key: Its name in addresses and events.
        name: Its name on the screen.
        stages: Which stages it is about.
        options: What can be done, the first to try first.
        own_stages: Whether it is about stages of the user's own, too.
    """

    key: str
    name: str
    stages: tuple[str, ...]
    options: tuple[Option, ...]
    own_stages: bool = False


@cache
def families() -> tuple[Family, ...]:
    """Return all families, as the file has them."""
    entries: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(_family(entry) for entry in entries)


def family_of(stage: str) -> Family | None:
    """Return what helps against *stage*; None where nothing is known to.

    >>> family_of("queue").key, family_of("my_rerank").key
    ('batching', 'cpu')
    """
    own = stage not in BY_KEY
    return next((each for each in families() if stage in each.stages or (own and each.own_stages)), None)


def _family(entry: dict[str, Any]) -> Family:
    options = tuple(Option(**option) for option in entry["options"])
    own_stages = bool(entry.get("own_stages"))
    return Family(str(entry["key"]), str(entry["name"]), tuple(entry["stages"]), options, own_stages=own_stages)
