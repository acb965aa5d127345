"""Which time to go by: clocks jump, and nothing may be deleted or put in the wrong place because of it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from . import schema

# How far a sender's clock may run ahead of ours before we stop believing it. [seconds]
MAX_SKEW_SECONDS = 60
# How long after the newest data time still passes: until the last hour is rolled up. [seconds]
GRACE_SECONDS = 2 * 3600


@dataclass(frozen=True, slots=True)
class Now:
    """What time it is.

    Args:
        present: By our clock; by the newest data if it lies too far behind them. [Unix seconds]
        settled: To roll up and to forget by: not much later than the newest data. A clock that is years ahead would
            delete everything; time that brings no data makes nothing old. [Unix seconds]
    """

    present: int
    settled: int


def now(connection: Connection, clock: int) -> Now:
    """Return what time it is when our own clock says *clock*, in Unix seconds."""
    newest = connection.execute(select(func.max(schema.series.c.last_seen))).scalar()
    if newest is None:
        return Now(clock, clock)
    present = clock if clock >= newest - MAX_SKEW_SECONDS else newest
    return Now(present, min(present, newest + GRACE_SECONDS))
