"""YAML files that are reloaded when they change; an invalid file leaves the last valid content in force."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import ConfigError
from .section import Section, read_section
from .values import format_size
from .yaml_config import MAX_BYTES, Document, Problem, parse, parse_all

T = TypeVar("T")
S = TypeVar("S", bound=Section)

log = logging.getLogger(__name__)


class FileError(ConfigError):
    """A file is invalid; the text has one line for each problem."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        def sort_key(problem: Problem) -> tuple[bool, str, int]:
            return problem.path is not None, str(problem.path), problem.line

        self.problems = tuple(sorted(problems, key=sort_key))
        self.files = tuple({problem.path: None for problem in self.problems if problem.path is not None})
        super().__init__("\n".join(spell_problem(path, problem) for problem in self.problems))


def spell_problem(path: Path, problem: Problem) -> str:
    """Return *problem*, found while reading *path*, as `file:line: text`."""
    return f"{problem.path or path}:{problem.line}: {problem.text}"


def read_document(path: Path, kind: str) -> Document:
    return parse(_text(path, kind))


def read_documents(path: Path, kind: str) -> list[Document]:
    """Read all YAML documents in the file at *path*, at least one, as `read_document` does."""
    return parse_all(_text(path, kind))


def read_file(path: Path, kind: str, example: str, section: type[S]) -> S:
    """Read the YAML file at *path*, whose content is one *section*."""
    document = read_document(path, kind)
    if document.value is None and not document.problems:
        document.problems.append(Problem(1, f"the file is empty; write, for example:\n{example}"))
    section_value = None if document.value is None else read_section(section, document, (), document.value)
    if section_value is None or document.problems:
        raise FileError(path, document.problems)
    return section_value


def _text(path: Path, kind: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode().removeprefix("\ufeff")
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; give the path of {kind}"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        raise ConfigError(msg) from error
    msg = f"{path} is larger than {format_size(MAX_BYTES)}, the maximum of {kind}; write fewer entries"
    raise ConfigError(msg)


class LiveFile(Generic[T]):
    """A file that is reloaded when it changes; an invalid version leaves the last valid content in force. Thread-safe.

    `current` is None until the file was valid once; `errors` are those of the current version of the file.
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
        # Stamps of the file and its includes; empty before the first reading.
        self._stamps: dict[Path, tuple[int, ...] | None] = {}
        self._lock = threading.Lock()

    def refresh(self, now: datetime) -> None:
        if self.path is None:
            return
        with self._lock:
            if not self._stamps or any(stamp_of(path) != stamp for path, stamp in self._stamps.items()):
                # The stamps are read before the files, so that a change meanwhile causes another reload.
                before = {path: stamp_of(path) for path in (self.path, *self._stamps)}
                files = (self.path, *self._take(self.path, now))
                self._stamps = {path: before[path] if path in before else stamp_of(path) for path in files}

    def accepted(self, content: T) -> None:
        """Log the new content in force; called after a valid version was read."""
        log.info("%s: %s", self.path, content)

    def refused(self) -> None:
        for line in self.errors:
            log.error("%s", line)
        effect = "no setting of it is in effect" if self.current is None else "the previous version stays in effect"
        log.error("%s: %s until it is fixed; it is read again when it changes", self.path, effect)

    def _take(self, path: Path, now: datetime) -> Sequence[Path]:
        try:
            content = self._read(path)
        except ConfigError as error:
            self.errors = tuple(str(error).splitlines())
            self.refused()
            return (*self._stamps, *(error.files if isinstance(error, FileError) else ()))
        self.current, self.errors, self.changed_at = content, (), now
        self.accepted(content)
        return self._included(content)


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return a stamp that changes whenever the file at *path* or its access rights change; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
