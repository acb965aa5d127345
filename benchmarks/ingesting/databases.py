"""The databases that the collector writes to, each in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


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
def postgresql(folder: Path, name: str) -> Generator[Database]:
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]), default=None)
    if programs is None:
        msg = "no PostgreSQL on this machine; `apt-get install postgresql`"
        raise SystemExit(msg)
    home = folder / "postgresql"
    home.mkdir(parents=True, exist_ok=True)
    is_root = os.geteuid() == 0
    if is_root:
        # The server refuses to run as root.
        shutil.chown(home, "postgres", "postgres")
    user, groups = ("postgres", []) if is_root else (None, None)

    def run(program: str, *arguments: str) -> None:
        # A file, not a pipe: the server would keep a pipe open.
        with (home / "output").open("w") as output:
            command = [str(programs / program), *arguments]
            subprocess.run(
                command, check=True, cwd=home, stdout=output, stderr=output, user=user, group=user, extra_groups=groups
            )

    data = ("--pgdata", str(home / "data"))
    run("initdb", *data, "--username=stagelens", "--auth=trust", "--encoding=UTF8", "--locale=C")
    options = f"-c listen_addresses= -c unix_socket_directories={home} -c shared_buffers=1GB -c jit=off"
    run("pg_ctl", "start", *data, "--wait", "--log", str(home / "log"), "--options", options)
    try:
        run("createdb", "--host", str(home), "--username=stagelens", name)
        process = int((home / "data" / "postmaster.pid").read_text().split()[0])
        yield Database(f"postgresql://stagelens@/{name}?host={home}", (home / "data" / "base",), process)
    finally:
        run("pg_ctl", "stop", *data, "--mode=fast")


DATABASES = {"sqlite": sqlite, "postgresql": postgresql}
