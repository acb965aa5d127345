"""A real PostgreSQL server of the tests' own: a new cluster in a temporary folder, reached by a socket in it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from stagelens.store.engines import database

_USER = "stagelens"
# Its databases would fill the memory that other tests work in.
_ON_DISK = Path("/var/tmp")  # noqa: S108 - the folder in it is its own
# It does not wait for the disk; vacuuming would take locks, and change sizes, at a moment of its own.
_UNSAFE = ("fsync=off", "full_page_writes=off", "autovacuum=off", "max_connections=1000")


def find_programs() -> Path | None:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return installed[-1].parent if installed else Path(on_path).parent if on_path else None


@dataclass
class Server:
    programs: Path
    folder: Path
    owner: dict[str, Any]
    settings: Sequence[str] = _UNSAFE
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.folder), user=_USER, dbname=database, autocommit=True)

    def new_database(self, template: str = "template1") -> str:
        """Make a database, a copy of *template*, and return its URL."""
        name = f"site_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self.url(name)

    def new_store(self) -> str:
        """Make a database with the tables of a store, without the migrations, which take 250 ms; return its URL."""
        return self.new_database(self._migrated)

    @cached_property
    def _migrated(self) -> str:
        with self.connect() as connection:
            connection.execute("CREATE DATABASE migrated")
        engine = database.open_engine(self.url("migrated"))
        database.migrate(engine)
        engine.dispose()
        return "migrated"

    def start(self) -> None:
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", *self.settings)
        options = " ".join(f"-c {setting}" for setting in settings)
        self.run("pg_ctl", "start", "--wait", "--log", str(self.folder / "log"), "--options", options)

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "--mode", "immediate")

    def run(self, program: str, *arguments: str) -> None:
        command = [self.programs / program, "--pgdata", self.folder / "data", *arguments]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self.owner)


@contextmanager
def postgresql(programs: Path, settings: Sequence[str] = _UNSAFE, parent: Path = _ON_DISK) -> Generator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="stagelens-pg", dir=parent))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:
        # The user of Debian's package.
        owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
        entry = pwd.getpwnam("postgres")
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    server = Server(programs, folder, owner, settings)
    server.run("initdb", "--username", _USER, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
