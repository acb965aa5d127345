"""The numbers that come with Stagelens, read from `policy/NAME.yaml` into the dataclass that says what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from ..core.settings.values import parse_duration

T = TypeVar("T")

# The type of a field that is written as a duration and kept in whole minutes.
InMinutes = Annotated[int, "written as a duration"]


def shipped(kind: type[T], name: str) -> T:
    """Return the policy that comes with Stagelens as `policy/NAME.yaml`."""
    path = Path(__file__).parent / "policy" / f"{name}.yaml"
    return read(kind, yaml.safe_load(path.read_text(encoding="utf-8")))


def read(kind: type[T], raw: Mapping[str, Any]) -> T:
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
        return read(kind, raw)
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], item, key) for item in raw)
    if kind is timedelta:
        return parse_duration(raw, key)
    if kind is InMinutes:
        return round(parse_duration(raw, key) / timedelta(minutes=1))
    return raw
