"""A window as an address spells it: its start in UTC and its length, `2026-11-21T12:00/6h`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ...core.errors import ConfigError
from ...core.settings.values import parse_duration

EXAMPLE = "2026-11-21T12:00/6h"
_MAX_LENGTH = timedelta(days=400)
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def window_name(start: datetime, end: datetime) -> str:
    """Return what `[start, end)` is called; seconds are the finest it knows.

    >>> window_name(datetime(2026, 11, 21, 12, tzinfo=UTC), datetime(2026, 11, 21, 18, tzinfo=UTC))
    '2026-11-21T12:00/6h'
    """
    begin = start.astimezone(UTC).replace(microsecond=0)
    seconds = max(round((end - start).total_seconds()), 1)
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    spelled = begin.strftime("%Y-%m-%dT%H:%M:%S" if begin.second else "%Y-%m-%dT%H:%M")
    return f"{spelled}/{seconds // size}{unit}"


def window_of(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Read the name of a window; None for what is none, is longer than 400 days or begins in the future.

    >>> window_of("2026-11-21T12:00/yesterday", datetime(2026, 11, 22, tzinfo=UTC)) is None
    True
    """
    # A plus in an address that was typed by hand comes as a space.
    begin, _, length = text.strip().replace(" ", "+").partition("/")
    try:
        start = datetime.fromisoformat(begin)
        start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
        span = parse_duration(length, "window")
    except (ConfigError, ValueError, OverflowError):
        return None
    if not (_EPOCH <= start <= now and timedelta(seconds=1) <= span <= _MAX_LENGTH):
        return None
    return start, start + span
