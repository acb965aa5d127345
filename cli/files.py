"""Files that are replaced atomically, and temporary folders that are removed even after SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from ..core.errors import StagelensError


@contextmanager
def temporary_folder(purpose: str) -> Generator[Path]:
    """Create a temporary folder `stagelens-PURPOSE-…` in TMPDIR, and remove those left by killed processes.

    The folder is locked while in use; the operating system releases the lock when the process is killed, in any container.
    """
    prefix = f"stagelens-{purpose}-"
    try:
        folder = TemporaryDirectory(prefix=prefix)
    except OSError as error:
        msg = f"no directory for temporary files: {error}; set TMPDIR to a directory with free space"
        raise StagelensError(msg) from error
    with folder as name, _open_folder(Path(name)) as held:
        path = Path(name)
        with contextlib.suppress(OSError):  # a file system without locks, where abandoned folders are not removed
            fcntl.flock(held, fcntl.LOCK_EX)
        for other in path.parent.glob(f"{prefix}*"):
            if other != path:
                _remove_if_abandoned(other)
        yield path


def _remove_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError), _open_folder(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # An empty folder may belong to a process that has created but not locked it yet.
        if os.fstat(held).st_uid == os.geteuid() and any(path.iterdir()):
            shutil.rmtree(path)


@contextmanager
def _open_folder(path: Path) -> Generator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


def check_writable(path: Path, option: str) -> None:
    if path.is_dir():
        msg = f"{option} {path} is a folder; name a file in it, such as {path / 'run'}"
        raise StagelensError(msg)
    if path.exists() and not path.is_file():
        msg = f"{option} {path} is a pipe or a device, which would be replaced; name an ordinary file"
        raise StagelensError(msg)
    beside = _temporary_name(path)
    try:
        beside.touch()
        beside.unlink()
    except OSError as error:
        msg = f"{option} {path} cannot be written: {error.strerror or error}; name a file in a folder you may write to"
        raise StagelensError(msg) from error


@contextmanager
def open_atomic(path: Path) -> Generator[IO[str]]:
    """Open a text file that replaces *path*, or its link target, at the end; after any failure *path* is unchanged."""
    beside = _temporary_name(path)
    try:
        with beside.open("w", encoding="utf-8") as file:
            yield file
        beside.replace(path.resolve())
    except OSError as error:
        msg = f"{path} could not be written: {error.strerror or error}"
        raise StagelensError(msg) from error
    finally:
        beside.unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    resolved = path.resolve()
    return resolved.with_name(f".{resolved.name}.{os.getpid()}")
