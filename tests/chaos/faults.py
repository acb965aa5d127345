"""Faults around collectors; each is over when its function returns, and the load continues meanwhile."""

from __future__ import annotations

import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy.engine import make_url

from tests.chaos.deployment import TIMEOUT_SECONDS, Deployment, Member

# Nothing of ours is larger, and all of it is to be written at once.
_CHUNK_BYTES = 65_536


def _some(deployment: Deployment) -> Member:
    return deployment.rng.choice([member for member in deployment.members if member.process is not None])


def cut_network(deployment: Deployment, seconds: float) -> None:
    deployment.network.cut()
    time.sleep(seconds)
    deployment.network.mend()


def stop_and_go_on(deployment: Deployment, seconds: float) -> None:
    member = _some(deployment)
    deployment.signal(member, signal.SIGSTOP)
    time.sleep(seconds)
    deployment.signal(member, signal.SIGCONT)


def lock_database(deployment: Deployment, seconds: float) -> None:
    if deployment.postgresql is None:
        database = _database(deployment)
        with closing(sqlite3.connect(database, timeout=TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        return
    with deployment.postgresql.connect(_database(deployment)) as connection, connection.transaction():
        connection.execute("LOCK TABLE batches IN ACCESS EXCLUSIVE MODE")
        time.sleep(seconds)


def fill_disk(deployment: Deployment, seconds: float) -> None:
    """The file system is full (ENOSPC)."""
    assert deployment.disk is not None
    ballast = deployment.disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(_CHUNK_BYTES)):
            pass
    time.sleep(seconds)
    ballast.unlink()


def refuse_writes(deployment: Deployment, seconds: float) -> None:
    """The kernel lets a collector write nothing past the present size of the database (EFBIG)."""
    member = _some(deployment)
    assert member.process is not None
    log = Path(f"{_database(deployment)}-wal")
    # The log is overwritten from its start: nearly all of it is within.
    size = log.stat().st_size // 2 if log.exists() else 0
    _, hard = resource.prlimit(member.process, resource.RLIMIT_FSIZE)
    resource.prlimit(member.process, resource.RLIMIT_FSIZE, (size, hard))
    time.sleep(seconds)
    resource.prlimit(member.process, resource.RLIMIT_FSIZE, (hard, hard))


def restart_server(deployment: Deployment, seconds: float, mode: str) -> None:
    """PostgreSQL ends and comes back; `immediate` is a crash, after which it recovers."""
    assert deployment.postgresql is not None
    deployment.postgresql.run("pg_ctl", "stop", "--mode", mode)
    time.sleep(seconds)
    deployment.postgresql.start()


def crash_server(deployment: Deployment, seconds: float) -> None:
    restart_server(deployment, seconds, "immediate")


def reboot_server(deployment: Deployment, seconds: float) -> None:
    restart_server(deployment, seconds, "fast")


def known(deployment: Deployment) -> Sequence[Callable[[Deployment, float], None]]:
    anywhere = (cut_network, stop_and_go_on, lock_database)
    if deployment.postgresql is not None:
        return (*anywhere, crash_server, reboot_server)
    return (*anywhere, fill_disk if deployment.disk else refuse_writes)


def _database(deployment: Deployment) -> str:
    return make_url(deployment.url).database or ""
