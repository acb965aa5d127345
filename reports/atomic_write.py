"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..core.errors import StagelensError


def check_writable(path: Path, option: str) -> None:
    """Find out before anything is done for it whether *path* can be written.

    Args:
        path: A file, there or not.
        option: What named it, for the message.

    Raises:
        StagelensError: It cannot.
    """
    if path.is_dir():
        msg = f"{option} {path} is a folder; name a file in it, such as {path / 'run'}"
        raise StagelensError(msg)
    if path.exists() and not path.is_file():
        msg = f"{option} {path} is a pipe or a device, which would be replaced; name an ordinary file"
        raise StagelensError(msg)
    beside = _beside(path)
    try:
        beside.touch()
        beside.unlink()
    except OSError as error:
        msg = f"{option} {path} cannot be written: {error.strerror or error}; name a file in a folder you may write to"
        raise StagelensError(msg) from error


@contextmanager
def written(path: Path) -> Generator[IO[str]]:
    """Give a file to write text to, which replaces *path* at the end, or what it links to; when anything fails, that stays as it was.

    Raises:
        StagelensError: It cannot be written.
    """
    beside = _beside(path)
    try:
        with beside.open("w", encoding="utf-8") as file:
            yield file
        beside.replace(path.resolve())
    except OSError as error:
        msg = f"{path} could not be written: {error.strerror or error}"
        raise StagelensError(msg) from error
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    place = path.resolve()
    return place.with_name(f".{place.name}.{os.getpid()}")
