"""What can go wrong around collectors; each is over when it returns, and the load goes on meanwhile."""

from __future__ import annotations

import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from place import PATIENCE_SECONDS, Member, Place
from sqlalchemy.engine import make_url

# Nothing of ours is larger, and all of it is to be written at once.
_CHUNK_BYTES = 65_536


def _some(place: Place) -> Member:
    return place.rng.choice([member for member in place.members if member.process is not None])


def cut_network(place: Place, seconds: float) -> None:
    """Nothing reaches anybody."""
    place.network.cut()
    time.sleep(seconds)
    place.network.mend()


def stop_and_go_on(place: Place, seconds: float) -> None:
    """A collector stands still in the middle of whatever it does, and goes on as if nothing had been."""
    member = _some(place)
    place.signal(member, signal.SIGSTOP)
    time.sleep(seconds)
    place.signal(member, signal.SIGCONT)


def lock_database(place: Place, seconds: float) -> None:
    """Another program holds the database."""
    if place.postgresql is None:
        database = _database(place)
        with closing(sqlite3.connect(database, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        return
    with place.postgresql.connect(_database(place)) as connection, connection.transaction():
        connection.execute("LOCK TABLE batches IN ACCESS EXCLUSIVE MODE")
        time.sleep(seconds)


def fill_disk(place: Place, seconds: float) -> None:
    """The file system has no room left (ENOSPC)."""
    assert place.disk is not None
    ballast = place.disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(_CHUNK_BYTES)):
            pass
    time.sleep(seconds)
    ballast.unlink()


def refuse_writes(place: Place, seconds: float) -> None:
    """The kernel lets a collector write nothing past the present size of the database (EFBIG)."""
    member = _some(place)
    assert member.process is not None
    log = Path(f"{_database(place)}-wal")
    # The log is overwritten from its start: nearly all of it is within.
    size = log.stat().st_size // 2 if log.exists() else 0
    _, hard = resource.prlimit(member.process, resource.RLIMIT_FSIZE)
    resource.prlimit(member.process, resource.RLIMIT_FSIZE, (size, hard))
    time.sleep(seconds)
    resource.prlimit(member.process, resource.RLIMIT_FSIZE, (hard, hard))


def restart_server(place: Place, seconds: float, mode: str) -> None:
    """PostgreSQL ends and comes back; `immediate` is a crash, after which it recovers."""
    assert place.postgresql is not None
    place.postgresql.run("pg_ctl", "stop", "--mode", mode)
    time.sleep(seconds)
    place.postgresql.start()


def crash_server(place: Place, seconds: float) -> None:
    """PostgreSQL is killed in the middle of everything."""
    restart_server(place, seconds, "immediate")


def reboot_server(place: Place, seconds: float) -> None:
    """PostgreSQL is restarted: connections are closed, transactions rolled back."""
    restart_server(place, seconds, "fast")


def known(place: Place) -> Sequence[Callable[[Place, float], None]]:
    """Return what can happen at *place*."""
    anywhere = (cut_network, stop_and_go_on, lock_database)
    if place.postgresql is not None:
        return (*anywhere, crash_server, reboot_server)
    return (*anywhere, fill_disk if place.disk else refuse_writes)


def _database(place: Place) -> str:
    return make_url(place.url).database or ""
