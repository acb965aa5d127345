"""Temporary folders that are gone in the end, and at the next start if whoever made them was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core.errors import StagelensError


@contextmanager
def folder_for(purpose: str) -> Generator[Path]:
    """Give a folder `stagelens-PURPOSE-…` in TMPDIR, and remove those that killed processes have left there.

    It is locked while it is used: the system takes the lock from whoever is killed, in whatever container.

    Raises:
        StagelensError: There is no place for one.
    """
    prefix = f"stagelens-{purpose}-"
    try:
        made = TemporaryDirectory(prefix=prefix)
    except OSError as error:
        msg = f"there is no place for temporary files: {error}; set TMPDIR to a folder with room"
        raise StagelensError(msg) from error
    with made as name, _opened(Path(name)) as held:
        path = Path(name)
        with contextlib.suppress(OSError):  # a file system without locks, where nobody removes any
            fcntl.flock(held, fcntl.LOCK_EX)
        for other in path.parent.glob(f"{prefix}*"):
            if other != path:
                _remove_if_left(other)
        yield path


def _remove_if_left(path: Path) -> None:
    with contextlib.suppress(OSError), _opened(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # An empty one may be about to be locked by who has just made it.
        if os.fstat(held).st_uid == os.geteuid() and any(path.iterdir()):
            shutil.rmtree(path)


@contextmanager
def _opened(path: Path) -> Generator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)
