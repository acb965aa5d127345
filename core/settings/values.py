"""Parsing and formatting of durations and sizes as users write them; errors name the key, the value and the allowed form."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta

from ..errors import ConfigError

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
# Number of units from which a size would be shown with four digits.
_FOUR_DIGITS = 999.5
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


def parse_duration(text: str, key: str) -> timedelta:
    """Parse a duration such as `250ms`, `5m` or `30d`.

    >>> parse_duration("90s", "window")
    datetime.timedelta(seconds=90)
    """
    match = _QUANTITY.fullmatch(text)
    if match is not None and match[2].lower() in _SECONDS:
        with suppress(OverflowError):
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2].lower()])
    msg = f"{key} is {text!r}; write a number and a unit (us, ms, s, m, h, d, w), such as 250ms or 30d"
    raise ConfigError(msg)


def parse_size(text: str, key: str) -> int:
    """Parse a size such as `16MiB`, and return it in bytes.

    >>> parse_size("16MiB", "limit")
    16777216
    """
    match = _QUANTITY.fullmatch(text)
    if match is not None and match[2].lower() in _BYTES:
        with suppress(OverflowError):
            return int(float(match[1]) * _BYTES[match[2].lower()])
    msg = f"{key} is {text!r}; write a number and a unit (B, kB, MB, GB, KiB, MiB, GiB), such as 16MiB"
    raise ConfigError(msg)


def format_size(size_bytes: float) -> str:
    """Return a size in bytes for display, with three significant digits.

    >>> format_size(10 * 1024**3), format_size(1_300_000), format_size(512)
    ('10 GiB', '1.24 MiB', '512 B')
    """
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < _FOUR_DIGITS:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}"
