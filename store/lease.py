"""Leases in the database: the exclusive right of one process to do some work, which expires unless renewed."""

from __future__ import annotations

import hashlib
import os
import secrets

from sqlalchemy import Connection, delete, insert, or_, select, update

from .schema import leases

# A lease that lasts longer than this beyond its own length was written with a wrong clock. [seconds]
MAX_SKEW_SECONDS = 60.0


def new_holder() -> str:
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def hold(connection: Connection, name: str, holder: str, now: float, seconds: float, *, longest: float = 0.0) -> bool:
    """Acquire or renew lease *name* within a write transaction; return whether *holder* has the lease now.

    *longest* is the length of the longest lease of this name in seconds, if some are longer than *seconds*.
    """
    expired = or_(leases.c.until <= now, leases.c.until > now + max(seconds, longest) + MAX_SKEW_SECONDS)
    free_or_mine = or_(leases.c.holder == holder, expired)
    acquired = connection.execute(
        update(leases).where(leases.c.name == name, free_or_mine).values(holder=holder, until=now + seconds)
    )
    if acquired.rowcount:
        return True
    if connection.execute(select(leases.c.name).where(leases.c.name == name)).first() is not None:
        return False
    connection.execute(insert(leases).values(name=name, holder=holder, until=now + seconds))
    return True


def renew(connection: Connection, name: str, holder: str, until: float) -> bool:
    """Extend lease *name* to *until*, in Unix seconds, if *holder* was its last holder; return whether it was.

    A paused process does not continue after a takeover.
    """
    mine = update(leases).where(leases.c.name == name, leases.c.holder == holder)
    return bool(connection.execute(mine.values(until=until)).rowcount)


def release(connection: Connection, name: str, holder: str) -> None:
    """Release lease *name* if *holder* has it, so that another process can acquire it before it expires."""
    connection.execute(update(leases).where(leases.c.name == name, leases.c.holder == holder).values(until=0.0))


def release_all(connection: Connection, prefix: str, holder: str) -> None:
    mine = update(leases).where(leases.c.name.startswith(prefix, autoescape=True), leases.c.holder == holder)
    connection.execute(mine.values(until=0.0))


def done_at(connection: Connection, name: str) -> float | None:
    """Return the time at which any process last finished the work of lease *name*, in Unix seconds; None for never."""
    return connection.execute(select(leases.c.done_at).where(leases.c.name == name)).scalar()


def note_done(connection: Connection, name: str, now: float) -> None:
    """Record, in the same transaction, that the work of lease *name* finished at *now* (Unix seconds)."""
    connection.execute(update(leases).where(leases.c.name == name).values(done_at=now))


def holder_of(connection: Connection, name: str, now: float) -> str | None:
    """Return the holder of lease *name* at *now* (Unix seconds), or None if the lease is free."""
    return connection.execute(select(leases.c.holder).where(leases.c.name == name, leases.c.until > now)).scalar()


def remember(connection: Connection, prefix: str, content: bytes, now: float, seconds: float) -> bool:
    forget(connection, prefix, now)
    return hold(connection, name_of(prefix, content), new_holder(), now, seconds)


def name_of(prefix: str, content: bytes) -> str:
    return prefix + hashlib.sha256(content).hexdigest()[:48]


def held(connection: Connection, prefix: str, now: float) -> set[str]:
    """Return the names of leases that start with *prefix* and are held at *now* (Unix seconds)."""
    mine = leases.c.name.startswith(prefix, autoescape=True), leases.c.until > now
    return set(connection.scalars(select(leases.c.name).where(*mine)))


def forget(connection: Connection, prefix: str, now: float) -> None:
    """Delete the leases whose names start with *prefix* and that have expired at *now* (Unix seconds)."""
    connection.execute(delete(leases).where(leases.c.name.startswith(prefix, autoescape=True), leases.c.until <= now))
