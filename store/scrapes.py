"""Targets that are scraped: who reads each, and what was read last.

Any number of collectors may be given the same targets. One of them holds a target, for a while that every reading renews; what
it has counted is committed together with the reading it was counted from, and only if it still holds the target then. So the
time between two readings is counted once, whoever dies or is slow in between, and whatever their clocks say.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from ..core.errors import StagelensError
from .schema import scrapes


class LostError(StagelensError):
    """Somebody else reads the target now: what was to be counted here is counted there."""


def take(connection: Connection, target: str, holder: str, now: float, seconds: float) -> bytes | None:
    """Take *target* for *holder*, or go on holding it.

    Args:
        connection: In a write transaction.
        target: Its name.
        holder: Who wants it.
        now: The time. [Unix seconds]
        seconds: For how long. [seconds]

    Returns:
        What was read last; empty where nothing was; None if somebody else holds it.
    """
    found = connection.execute(select(scrapes).where(scrapes.c.target == target)).one_or_none()
    if found is None:
        row = {"target": target, "holder": holder, "until": now + seconds, "reading": b""}
        connection.execute(insert(scrapes).values(row))
        return b""
    if found.holder != holder and found.until > now:
        return None
    mine = update(scrapes).where(scrapes.c.target == target)
    connection.execute(mine.values(holder=holder, until=now + seconds))
    return found.reading


def keep(connection: Connection, target: str, holder: str, until: float, reading: bytes) -> None:
    """Keep what *holder* has read of *target*, and hold it *until* then, in Unix seconds.

    Raises:
        LostError: It was taken by somebody else meanwhile.
    """
    mine = update(scrapes).where(scrapes.c.target == target, scrapes.c.holder == holder)
    if not connection.execute(mine.values(until=until, reading=reading)).rowcount:
        msg = f"another collector reads {target} now"
        raise LostError(msg)


def release(connection: Connection, holder: str) -> None:
    """Give back everything *holder* holds, so that others need not wait for its end."""
    connection.execute(update(scrapes).where(scrapes.c.holder == holder).values(until=0.0))
