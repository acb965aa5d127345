"""A YAML file that people edit while it is in force: read again when it changes, its last good state kept when it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import ConfigError
from .yaml_lines import Document, Problem, parse, parse_all

T = TypeVar("T")

log = logging.getLogger(__name__)


class FileError(ConfigError):
    """A file is wrong; its text has one line for each problem.

    Args:
        path: The file, as the user named it.
        problems: What is wrong in it, and in those it includes.

    Attributes:
        problems: The same, in order of files and lines.
        files: The files they are in.
    """

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        def place(problem: Problem) -> tuple[bool, str, int]:
            return problem.path is not None, str(problem.path), problem.line

        self.problems = tuple(sorted(problems, key=place))
        self.files = tuple({problem.path: None for problem in self.problems if problem.path is not None})
        super().__init__("\n".join(spell_problem(path, problem) for problem in self.problems))


def spell_problem(path: Path, problem: Problem) -> str:
    """Return *problem*, found when *path* was read, as people write it: file, line, what."""
    return f"{problem.path or path}:{problem.line}: {problem.text}"


def read_document(path: Path, kind: str) -> Document:
    """Read the YAML document in the file at *path*, which is called *kind* in messages: `an SLO file`.

    Raises:
        ConfigError: It cannot be read.
    """
    return parse(_text(path, kind))


def read_documents(path: Path, kind: str) -> list[Document]:
    """Read all YAML documents in the file at *path*, at least one, as `read_document` does.

    Raises:
        ConfigError: It cannot be read.
    """
    return parse_all(_text(path, kind))


def _text(path: Path, kind: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; give the path of {kind}"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        raise ConfigError(msg) from error


class LiveFile(Generic[T]):
    """A file that is read again when it changes; a broken one leaves in force what was read before. Thread-safe.

    Args:
        path: The file, or None when there is none.
        read: Reads it; what is wrong with it is a ConfigError.
        included: Says which other files were read for it; it is read again when one of them changes.

    Attributes:
        current: What is in force; None until the file was read once without mistakes.
        errors: What is wrong with the file as it is now; empty when nothing is.
        changed_at: When what is in force was read.
    """

    def __init__(
        self, path: Path | None, read: Callable[[Path], T], included: Callable[[T], Sequence[Path]] = lambda _: ()
    ) -> None:
        self.path = path
        self.current: T | None = None
        self.errors: tuple[str, ...] = ()
        self.changed_at: datetime | None = None
        self._read = read
        self._included = included
        # Of the file and those it includes; empty until it was read.
        self._stamps: dict[Path, tuple[int, int, int] | None] = {}
        self._lock = threading.Lock()

    def refresh(self, now: datetime) -> None:
        """Read the file if it changed since the last time."""
        if self.path is None:
            return
        with self._lock:
            if not self._stamps or any(stamp_of(path) != stamp for path, stamp in self._stamps.items()):
                # Before it is read: what changes meanwhile is read again.
                before = {path: stamp_of(path) for path in (self.path, *self._stamps)}
                files = (self.path, *self._take(self.path, now))
                self._stamps = {path: before[path] if path in before else stamp_of(path) for path in files}

    def accepted(self, found: T) -> None:
        """Say in the log what is in force now."""
        log.info("%s: %s", self.path, found)

    def refused(self) -> None:
        """Say in the log what is wrong, and what is in force meanwhile."""
        for line in self.errors:
            log.error("%s", line)
        kept = "nothing of it is in force" if self.current is None else "what was read before stays in force"
        log.error("%s: %s until it is mended; it is read again when it changes", self.path, kept)

    def _take(self, path: Path, now: datetime) -> Sequence[Path]:
        """Read the file; return which others belong to it."""
        try:
            found = self._read(path)
        except ConfigError as error:
            self.errors = tuple(str(error).splitlines())
            self.refused()
            return (*self._stamps, *(error.files if isinstance(error, FileError) else ()))
        self.current, self.errors, self.changed_at = found, (), now
        self.accepted(found)
        return self._included(found)


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file at *path* does, None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
