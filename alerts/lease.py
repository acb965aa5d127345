"""Leases in the database: exclusive rights of one process, lost when the holder stops renewing them."""

from __future__ import annotations

import os
import secrets

from sqlalchemy import Connection, delete, insert, or_, select, update

from .schema import leases


def new_holder() -> str:
    """Return a name for this process that no other has."""
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def hold(connection: Connection, name: str, holder: str, now: float, seconds: float) -> bool:
    """Take or renew lease *name*, within a write transaction.

    Args:
        connection: An open write transaction; what else is written in it is written by the holder or not at all.
        name: What the lease is for.
        holder: Who wants it.
        now: The time. [Unix seconds]
        seconds: How long it is kept without renewal. [seconds]

    Returns:
        Whether *holder* has it now.
    """
    free_or_mine = or_(leases.c.holder == holder, leases.c.until <= now)
    taken = connection.execute(
        update(leases).where(leases.c.name == name, free_or_mine).values(holder=holder, until=now + seconds)
    )
    if taken.rowcount:
        return True
    if connection.execute(select(leases.c.name).where(leases.c.name == name)).first() is not None:
        return False
    connection.execute(insert(leases).values(name=name, holder=holder, until=now + seconds))
    return True


def renew(connection: Connection, name: str, holder: str, now: float, seconds: float) -> bool:
    """Keep lease *name*, if *holder* was the last to have it: whoever slept does not go on with what another has taken over.

    The arguments are those of `hold`, and so is what is returned.
    """
    mine = update(leases).where(leases.c.name == name, leases.c.holder == holder)
    return bool(connection.execute(mine.values(until=now + seconds)).rowcount)


def release(connection: Connection, name: str, holder: str) -> None:
    """Give lease *name* back, if *holder* has it, so that the next one need not wait for its end."""
    connection.execute(update(leases).where(leases.c.name == name, leases.c.holder == holder).values(until=0.0))


def done_at(connection: Connection, name: str) -> float | None:
    """Return when what lease *name* is for was last done, by whom ever, in Unix seconds; None for never."""
    return connection.execute(select(leases.c.done_at).where(leases.c.name == name)).scalar()


def note_done(connection: Connection, name: str, now: float) -> None:
    """Note that it was done, in the transaction that did it; *now* is in Unix seconds."""
    connection.execute(update(leases).where(leases.c.name == name).values(done_at=now))


def holder_of(connection: Connection, name: str, now: float) -> str | None:
    """Return who has lease *name* at *now*, in Unix seconds; None for nobody."""
    return connection.execute(select(leases.c.holder).where(leases.c.name == name, leases.c.until > now)).scalar()


def held(connection: Connection, prefix: str, now: float) -> set[str]:
    """Return the names beginning with *prefix* of the leases that somebody has at *now*, in Unix seconds."""
    mine = leases.c.name.startswith(prefix, autoescape=True), leases.c.until > now
    return set(connection.scalars(select(leases.c.name).where(*mine)))


def forget(connection: Connection, prefix: str, now: float) -> None:
    """Delete the leases whose names begin with *prefix* and that nobody has at *now*, in Unix seconds."""
    connection.execute(delete(leases).where(leases.c.name.startswith(prefix, autoescape=True), leases.c.until <= now))
