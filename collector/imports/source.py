"""Reader of an imported file: streams its JSON values, compressed or not, and records the positions of errors."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import io
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import ijson

from ...core.errors import StagelensError
from .gunzip import TolerantGunzip

_GZIP = b"\x1f\x8b"
_READ_BYTES = 1 << 20
# ijson needs memory by the square of the depth, so the depth is checked in chunks of this size. [bytes]
_DEEPEST, _SUMMED_BYTES = 1000, 16 * 1024
# A file up to this size is parsed again to find the line of an error.
_MAX_PARSED_BYTES = 32 * 1024**2
# Limit of a line of JSON lines, which is read at once.
MAX_LINE_BYTES = 64 * 1024**2
_MAX_SHOWN = 5


class ImportFileError(StagelensError):
    """A file cannot be imported; the message names the file, the position and the fix."""


@dataclass(slots=True)
class Diagnostics:
    notes: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])
    broken_count: int = 0

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def skip(self, location: str, why: str, count: int = 1) -> None:
        self.broken_count += count
        if len(self.broken) < _MAX_SHOWN:
            self.broken.append(f"{location}: {why}")


class ImportFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.diagnostics = Diagnostics()
        try:
            self._modified = _modified(path)
            self._is_compressed = self._begins_with(_GZIP)
            self.digest, size = self._summed()
        except OSError as error:
            msg = f"{path}: cannot be read ({error.strerror or error})"
            raise ImportFileError(msg) from error
        if not size:
            msg = f"{path}: {self.diagnostics.broken[0]}" if self.diagnostics.broken else f"{path}: is empty"
            raise ImportFileError(msg)

    @property
    def ended_ns(self) -> int:
        """End of measurements without a date: the modification time of the file, in Unix nanoseconds."""
        return int(self._modified * 1e9)

    def note_undated(self) -> None:
        at = datetime.fromtimestamp(self._modified, UTC)
        self.diagnostics.note(
            f"its times have no date: the modification time of the file is used for the last, {at:%Y-%m-%d %H:%M:%S} UTC"
        )

    def items(self, prefix: str, *, quiet: bool = False) -> Iterator[Any]:
        """Yield the JSON values at *prefix*, an ijson path, in every top-level value of the file.

        The part after invalid JSON is skipped; the skip is reported unless *quiet*.
        """
        count = 0
        with self._open() as file:
            try:
                for item in ijson.items(file, prefix, use_float=True, multiple_values=True):
                    count += 1
                    yield item
            except (ijson.JSONError, ValueError) as error:
                if not quiet:
                    self.diagnostics.skip(
                        self._place(error), f"the rest is skipped; {count} records before it were read"
                    )

    def lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        with self._open() as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    self.diagnostics.skip(f"line {number}", f"is longer than {MAX_LINE_BYTES // 1024**2} MiB")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(_READ_BYTES)
                elif line.strip():
                    yield number, line

    def keys(self) -> Iterator[tuple[str, str]]:
        """Yield each key of a top-level object as `("", key)`, and of an object in a top-level list as `("item", key)`."""
        with self._open() as file:
            try:
                for prefix, event, value in ijson.parse(file, use_float=True, multiple_values=True):
                    if event == "map_key" and prefix in ("", "item"):
                        yield prefix, cast("str", value)
            except (ijson.JSONError, ValueError) as error:
                raise ImportFileError(self._place(error)) from error

    def first_line_is_whole(self) -> bool:
        with self._open() as file:
            try:
                json.loads(file.readline(_MAX_PARSED_BYTES))
            except (ValueError, RecursionError):
                return False
        return True

    def _begins_with(self, magic: bytes) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(magic)) == magic

    def _open(self) -> io.BufferedReader:
        raw = self.path.open("rb", buffering=0)
        file: io.BufferedReader = io.BufferedReader(TolerantGunzip(raw) if self._is_compressed else raw)
        begins = file.peek(len(codecs.BOM_UTF8))
        if begins.startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
        elif begins.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            file.close()
            msg = f"{self.path}: is in UTF-16; write it in UTF-8 instead:  iconv -f UTF-16 -t UTF-8 FILE > NEW"
            raise ImportFileError(msg)
        return file

    def _summed(self) -> tuple[str, int]:
        digest, size, opened, most = hashlib.blake2b(digest_size=16), 0, 0, 0
        with self._open() as file:
            while piece := file.read(_SUMMED_BYTES):
                digest.update(piece)
                size += len(piece)
                opened += sum(map(piece.count, (b"[", b"{"))) - sum(map(piece.count, (b"]", b"}")))
                most = max(most, opened)
            broken = file.raw.broken if isinstance(file.raw, TolerantGunzip) else ""
        if broken:
            self.diagnostics.skip(f"after {size} bytes inflated", broken)
            digest.update(b"cut off")
        if most > _DEEPEST and self._is_deep():
            msg = f"{self.path}: is nested more than {_DEEPEST} levels deep; no supported format is"
            raise ImportFileError(msg)
        return digest.hexdigest(), size

    def _is_deep(self) -> bool:
        depth = 0
        with self._open() as file, contextlib.suppress(ijson.JSONError, ValueError):
            for event, _ in ijson.basic_parse(file, use_float=True, multiple_values=True):
                depth += event.startswith("start_") - event.startswith("end_")
                if depth > _DEEPEST:
                    return True
        return False

    def _place(self, error: Exception) -> str:
        """Return the position of *error*; line and column if the file is small enough to parse it again."""
        try:
            with self._open() as file:
                text = file.read(_MAX_PARSED_BYTES + 1)
            if len(text) <= _MAX_PARSED_BYTES:
                json.loads(text)
        except json.JSONDecodeError as fault:
            return f"line {fault.lineno} column {fault.colno} is not JSON ({fault.msg})"
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as fault:
            return f"it is not JSON ({_short(fault)})"
        return f"it is not JSON ({_short(error)})"


def _modified(path: Path) -> float:
    file_status = path.stat()
    if not stat.S_ISREG(file_status.st_mode) and not stat.S_ISDIR(file_status.st_mode):
        msg = f"{path}: is a pipe or a device, which cannot be read twice; save the data to a file first"
        raise ImportFileError(msg)
    return file_status.st_mtime


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
