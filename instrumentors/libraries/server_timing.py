"""A response's header `Server-Timing`, for whoever asked: which stages the request had been in when its answer began.

Off unless STAGELENS_SERVER_TIMING says otherwise: it tells every caller how long each stage took. Our own modules for clients
read it, and so do browsers, in their tools for networks.

Source: https://www.w3.org/TR/server-timing/
"""

from __future__ import annotations

import os
from typing import Any, Final

from ...core.partition import partition
from ...core.stages import BY_KEY, OVERHEAD, ordered
from ..facts import read
from ..instrumentor import report
from ..records import Marks
from .answers import metrics_of
from .server_reports import TOTAL

VARIABLE: Final = "STAGELENS_SERVER_TIMING"
_NAME: Final = b"server-timing"

# Whether it is sent.
is_on = os.environ.get(VARIABLE, "").strip().lower() == "true"


def with_timing(message: Any, marks: Marks, start: int, now: int) -> Any:
    """Return the start of a response with the header, or *message* itself where it has stages of another server; never raises.

    Args:
        message: ASGI's; it is not changed.
        marks: The request's.
        start: When the request started, by the recorder's clock. [nanoseconds]
        now: By the same. [nanoseconds]
    """
    try:
        headers = list(message.get("headers", ()))
        present = b", ".join(value for name, value in headers if name.lower() == _NAME)
        # A gateway hands on what it was told: nobody could tell which stages are whose.
        if metrics_of(present.decode("latin-1")):
            return message
        return {**message, "headers": [*headers, (_NAME, timing_of(marks, start, now).encode())]}
    except Exception:
        report("sending Server-Timing")
        return message


def timing_of(marks: Marks, start: int, now: int) -> str:
    """Return the header: the time of each stage until *now*, cut off to whole microseconds, and all of it.

    >>> timing_of(["@open", 0, 0, "queue", 0, 2_500_000, "forward", 3_000_000, 9_000_000], 0, 10_000_000)
    'forward;dur=6.0, queue;dur=2.5, total;dur=10.0'
    """
    own = partition([each for each in read(marks[:]).intervals if each[0] in BY_KEY], start, now)
    spent = [(stage, own[stage]) for stage in ordered(own) if own[stage] and stage != OVERHEAD]
    return ", ".join(f"{name};dur={duration // 1000 / 1000}" for name, duration in (*spent, (TOTAL, now - start)))
