"""Complete events of Chrome traces.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..otlp.json_encoding import Object
from .source import ImportFile

# Later times are invalid. [microseconds]
_MAX_MICROSECONDS = 2.0**53


class ChromeEvent(NamedTuple):
    name: str
    category: str
    start: int
    end: int
    lane: tuple[str, str]


def complete_events(source: ImportFile, path: str) -> Iterator[tuple[ChromeEvent, Object]]:
    """Yield the complete events of the list at *path*, each with its JSON object; invalid events are reported.

    Events of other kinds, such as process names, are ignored.
    """
    for number, item in enumerate(source.items(path), 1):
        event = read_event(item)
        if event is not None:
            yield event, item
        elif not isinstance(item, dict) or item.get("ph") in ("X", None):
            source.diagnostics.skip(f"event {number}", "has no name, no time or no duration")


def read_event(item: Any) -> ChromeEvent | None:
    if not isinstance(item, dict) or item.get("ph") != "X":
        return None
    name, start, duration = item.get("name"), _finite_number(item.get("ts")), _finite_number(item.get("dur"))
    if not isinstance(name, str) or start is None or duration is None or duration < 0:
        return None
    begin, end = round(start * 1000), round((start + duration) * 1000)
    return ChromeEvent(name, str(item.get("cat", "")), begin, end, (str(item.get("pid")), str(item.get("tid"))))


def _finite_number(value: Any) -> float | None:
    # Some profilers write times as text.
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < _MAX_MICROSECONDS else None
