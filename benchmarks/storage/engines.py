"""The databases that are measured, each with the data in a folder, so that they are there the next time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from stagelens.store import Store
from stagelens.store.engines.clickhouse import ClickHouseServer, parse_url
from stagelens.store.schema import TIERS, tier_width

from .dataset import NOW

_PROGRAMS = "/usr/lib/postgresql/*/bin/initdb"


@dataclass(frozen=True)
class Site:
    """A database.

    Args:
        url: Of what needs transactions.
        files: Where its bytes are: files or folders.
        points_url: Of the histograms, where they are elsewhere.
        server: The process that serves it; None where it runs in ours.
    """

    url: str
    files: tuple[Path, ...]
    points_url: str | None = None
    server: int | None = None

    def open(self) -> Store:
        """Open the store; it lives at `NOW`."""
        return Store.open(self.url, points_url=self.points_url, clock=lambda: NOW)

    def server_seconds(self) -> float:
        """Return the CPU time the server has taken so far, [seconds]; 0 where there is none."""
        return sum(map(cpu_seconds, self._processes()))

    def written_bytes(self) -> int:
        """Return what this process and the server have had written to the disk so far."""
        processes = ["self", *map(str, self._processes())]
        lines = (Path(f"/proc/{process}/io").read_text().splitlines() for process in processes)
        return sum(int(line.split()[1]) for found in lines for line in found if line.startswith("write_bytes"))

    def _processes(self) -> list[int]:
        if self.server is None:
            return []
        children = Path(f"/proc/{self.server}/task/{self.server}/children").read_text().split()
        return [self.server, *map(int, children)]

    def all_files(self) -> list[Path]:
        """Return the files themselves."""
        found = [path for each in self.files for path in ([each] if each.is_file() else each.rglob("*"))]
        return [path for path in found if path.is_file()]


def cpu_seconds(process: int) -> float:
    """Return what *process* has taken; 0 once it is gone."""
    taken = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError):
            # Nanoseconds; other counters come in hundredths of a second.
            taken += int(thread.read_text().split()[0])
    return taken / 1e9


@contextmanager
def sqlite(folder: Path, name: str) -> Generator[Site]:
    """Give the SQLite file *name*."""
    path = folder / f"{name}.db"
    yield Site(f"sqlite:///{path}", (path, path.with_name(f"{path.name}-wal")))


@contextmanager
def clickhouse(folder: Path, name: str) -> Generator[Site]:
    """Give a ClickHouse in this process, with an SQLite file beside it."""
    path, database = folder / f"{name}.clickhouse", folder / f"{name}.beside.db"
    yield Site(f"sqlite:///{database}", (path, database), f"clickhousedb://?interface=chdb&path={path}&ttl=off")


@contextmanager
def postgresql(folder: Path, name: str) -> Generator[Site]:
    """Run a PostgreSQL, with Debian's programs and its defaults, and give its database *name*."""
    programs = max(Path("/").glob(_PROGRAMS.lstrip("/")), key=lambda path: int(path.parts[-3]), default=None)
    if programs is None:
        msg = "no PostgreSQL on this machine; `apt-get install postgresql`"
        raise SystemExit(msg)
    home = folder / "postgresql"
    _own(home)
    run = _Programs(programs.parent, home)
    if not (home / "data").exists():
        run("initdb", "--username=stagelens", "--auth=trust", "--encoding=UTF8", "--locale=C")
    options = f"-c listen_addresses= -c unix_socket_directories={home} -c shared_buffers=1GB -c jit=off"
    run("pg_ctl", "start", "--wait", "--log", str(home / "log"), "--options", options)
    try:
        made = run.psql("SELECT datname FROM pg_database").split()
        if f"s{name}" not in made:
            run.psql(f'CREATE DATABASE "s{name}"')
        process = int((home / "data" / "postmaster.pid").read_text().split()[0])
        url = f"postgresql://stagelens@/s{name}?host={home}"
        yield Site(url, (home / "data" / "base",), server=process)
    finally:
        run("pg_ctl", "stop", "--mode=fast")


def _own(home: Path) -> None:
    """Make *home*, and give it to the user the server runs as: it refuses to run as root."""
    home.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(home, "postgres", "postgres")


@dataclass(frozen=True)
class _Programs:
    folder: Path
    home: Path

    def __call__(self, program: str, *arguments: str) -> None:
        self._run([str(self.folder / program), "--pgdata", str(self.home / "data"), *arguments])

    def psql(self, statement: str) -> str:
        connection = ["--host", str(self.home), "--username=stagelens", "--dbname=postgres"]
        return self._run(
            [str(self.folder / "psql"), *connection, "--tuples-only", "--no-align", "--command", statement]
        )

    def _run(self, command: list[str]) -> str:
        output = self.home / "output"
        # A file, not a pipe: the server it starts would keep a pipe open.
        with output.open("w") as file:
            user, groups = ("postgres", []) if os.geteuid() == 0 else (None, None)
            subprocess.run(
                command, check=True, cwd=self.home, stdout=file, stderr=file, user=user, group=user, extra_groups=groups
            )
        return output.read_text()


ENGINES = {"sqlite": sqlite, "postgresql": postgresql, "clickhouse": clickhouse}


def tier_bytes(store: Store, site: Site) -> dict[int, int]:
    """Return the bytes of `points` on disk by tier, as a server counts them; empty for SQLite, which does not."""
    if site.points_url is not None:
        query = "SELECT splitByChar(',', partition)[1] AS tier, sum(bytes_on_disk) FROM system.parts WHERE active GROUP BY tier"
        server = ClickHouseServer.open(parse_url(site.points_url))
        return {tier_width(int(str(code).strip("()' "))): int(size) for code, size in server.rows(query)}
    if store.engine.dialect.name == "sqlite":
        return {}
    sizes: dict[int, int] = dict.fromkeys(TIERS, 0)
    query = text(
        "SELECT inhrelid::regclass::text, pg_total_relation_size(inhrelid) FROM pg_inherits WHERE inhparent = 'points'::regclass"
    )
    with store.engine.connect() as connection:
        for name, size in connection.execute(query):
            sizes[tier_width(int(name.split("_")[1]))] += size
    return sizes
