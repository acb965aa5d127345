"""One event of a Chrome trace, which profilers write: complete events (`ph` X) with microseconds.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..otlp.json_fields import Object
from .source import Source

# Microseconds that are no time any more.
_MOST = 2.0**53


class Event(NamedTuple):
    """A complete event.

    Args:
        name: What it is called.
        category: Of what kind it is.
        start: [nanoseconds]
        end: [nanoseconds]
        lane: Its process and thread, or its device and stream.
    """

    name: str
    category: str
    start: int
    end: int
    lane: tuple[str, str]


def events(source: Source, path: str) -> Iterator[tuple[Event, Object]]:
    """Yield the complete events of the list at *path*, each with the object it was read from; what is none is told.

    Events of other kinds, such as names of processes, are passed over.
    """
    for place, item in enumerate(source.items(path), 1):
        event = read_event(item)
        if event is not None:
            yield event, item
        elif not isinstance(item, dict) or item.get("ph") in ("X", None):
            source.told.skip(f"event {place}", "has no name, no time or no duration")


def read_event(item: Any) -> Event | None:
    """Return *item* as an event; None where it is no complete one."""
    if not isinstance(item, dict) or item.get("ph") != "X":
        return None
    name, start, duration = item.get("name"), _number(item.get("ts")), _number(item.get("dur"))
    if not isinstance(name, str) or start is None or duration is None or duration < 0:
        return None
    begin, end = round(start * 1000), round((start + duration) * 1000)
    return Event(name, str(item.get("cat", "")), begin, end, (str(item.get("pid")), str(item.get("tid"))))


def _number(value: Any) -> float | None:
    # Some profilers write times as text.
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < _MOST else None
