"""The databases that the collector writes to, each in a folder."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import postgresql_server


@dataclass(frozen=True)
class Database:
    url: str
    files: tuple[Path, ...]
    server: int | None = None

    def stored_bytes(self) -> int:
        paths = [path for file in self.files for path in ([file] if file.is_file() else file.rglob("*"))]
        return sum(path.stat().st_size for path in paths if path.is_file())


@contextmanager
def sqlite(folder: Path, name: str) -> Generator[Database]:
    path = folder / f"{name}.db"
    yield Database(f"sqlite:///{path}", (path, path.with_name(f"{path.name}-wal")))


@contextmanager
def postgresql(folder: Path, _name: str) -> Generator[Database]:
    programs = postgresql_server.find_programs()
    if programs is None:
        msg = "no PostgreSQL on this machine; `apt-get install postgresql`"
        raise SystemExit(msg)
    with postgresql_server.postgresql(programs, ("shared_buffers=1GB", "jit=off"), folder) as server:
        data = server.folder / "data"
        process = int((data / "postmaster.pid").read_text().split()[0])
        yield Database(server.new_database(), (data / "base",), process)


DATABASES = {"sqlite": sqlite, "postgresql": postgresql}
