"""YAML configuration: documents with the line of every value, typed access to the keys of a mapping, and secrets.

Each wrong value becomes a problem of the document, with its line, key, value and the allowed form. Secrets come from the
environment, from files, or (where allowed) from the YAML file itself.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .values import parse_duration

# Path of a value: keys and list positions from the top of the document.
Place = tuple[str | int, ...]

# Maximum number of places, with aliases expanded: a few lines of nested aliases can expand to millions of values.
MAX_PLACES = 100_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a file.

    Args:
        line: Line, counted from 1.
        text: The error and its fix.
        path: The file, if it is another file than the one that was read.
    """

    line: int
    text: str
    path: Path | None = None


@dataclass(slots=True)
class Document:
    """A YAML document.

    Args:
        value: Content as Python objects.
        lines: Line of every key and list item.
        problems: Errors in the document.
        warnings: Values that YAML may interpret differently than intended.
    """

    value: Any
    lines: dict[Place, int] = field(default_factory=dict[Place, int])
    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[Problem] = field(default_factory=list[Problem])

    def line(self, place: Place) -> int:
        """Return the line of *place*, or of the nearest enclosing place that exists."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def parse(text: str) -> Document:
    """Parse one YAML document; errors are added to its `problems`."""
    first, *more = parse_all(text)
    if more:
        line = more[0].line(())
        first.problems.append(Problem(line, "a second document begins here; write one, without the line `---`"))
    return first


def parse_all(text: str) -> list[Document]:
    """Parse all YAML documents of *text*, at least one; errors are added to the `problems` of their document."""
    made: list[Document] = []
    document = Document(None)
    try:
        roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        values = yaml.safe_load_all(text)
        for root in roots:
            document = Document(None)
            made.append(document)
            _note(root, (), document)
            document.value = next(values)
    except yaml.YAMLError as error:
        document.problems.append(_syntax(error))
    except _TooManyError:
        text = f"its aliases make more than {MAX_PLACES:,} values of it; write plain lists and keys"
        document.problems.append(Problem(1, text))
    except RecursionError:
        document.problems.append(Problem(1, "it is nested without end; write plain lists and keys"))
    except ValueError as error:  # a date that is none, such as 2026-99-99
        document.problems.append(Problem(1, f"a value is ambiguous: {error}; put quotes around it"))
    return made or [document]


def spell(place: Place) -> str:
    """Return *place* in the notation of error messages.

    >>> spell(("slos", 0, "objective"))
    'slos[0].objective'
    """
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


class _TooManyError(Exception):
    """A document has more places than `MAX_PLACES`."""


def _note(node: yaml.Node, place: Place, document: Document) -> None:
    if len(document.lines) > MAX_PLACES:
        raise _TooManyError
    document.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        _note_mapping(node, place, document)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _note(item, (*place, position), document)


def _note_mapping(node: yaml.MappingNode, place: Place, document: Document) -> None:
    seen: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            text = f"{spell((*place, name))} is written twice, first on line {seen[name]}; keep one"
            document.problems.append(Problem(line, text))
        seen[name] = line
        document.lines[*place, name] = line
        _note(value, (*place, name), document)


def _syntax(error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        what = error.problem or error.context or "it cannot be read"
        return Problem(error.problem_mark.line + 1, f"this is not YAML: {what}; look at this line and the one above")
    return Problem(1, f"this is not YAML: {error}")


class Fields:
    """The keys of one mapping; `finish` reports the keys that were never requested.

    For a wrong or missing value, a problem is added and the default is returned, so that one pass finds all problems.

    Args:
        document: Document of the mapping; problems are added to it.
        place: Place of the mapping in the document.
        value: Parsed value of the mapping; anything but a mapping is a problem.
        example: Example of a key and a value.
    """

    def __init__(
        self, document: Document, place: Place, value: Any, *, example: str = "name: checkout-latency"
    ) -> None:
        self._document = document
        self._place = place
        self._known: list[str] = []
        self._values: dict[str, Any] = {}
        if isinstance(value, dict):
            self._values = {str(key): item for key, item in value.items()}
        else:
            name = spell(place) or "the file"
            self.complain(f"{name} is {show(value)}; write keys and values, such as `{example}`")
        self.broken = not isinstance(value, dict)

    def text(self, key: str, *, default: str = "", example: str = "") -> str:
        """Return the text at *key*; with an *example* it is required."""
        value = self._take(key)
        if value is None:
            if example:
                self.missing(key, example)
            return default
        # YAML reads a version such as 1.0 or 2 as a number; its text is meant.
        if isinstance(value, bool | list | dict) or not str(value).strip():
            self.complain(f"{self.name(key)} is {show(value)}; write a text{_such_as(example)}", key)
            return default
        return str(value).strip()

    def optional(self, key: str) -> str | None:
        """Return the text at *key*, or None."""
        return self.text(key) or None

    def ratio(self, key: str, *, example: float) -> float:
        """Return the ratio at *key*, which is required; *example* is returned for a wrong value."""
        value = self._take(key)
        if value is None:
            self.missing(key, str(example))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            better = _as_ratio(value) or example
            self.complain(f"{self.name(key)} is {show(value)}; write a ratio between 0 and 1, such as {better:g}", key)
        else:
            return float(value)
        return example

    def amount(self, key: str, *, example: str, whole: bool = False) -> float | None:
        """Return the number above zero at *key*, or None if it is missing or wrong; *whole* allows only whole numbers."""
        value = self._take(key)
        if value is None:
            return None
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            kind = "a whole number" if whole else "a number"
            self.complain(f"{self.name(key)} is {show(value)}; write {kind} above 0, such as {example}", key)
            return None
        return float(value)

    def duration(self, key: str, *, example: str, required: bool = True) -> timedelta | None:
        """Return the duration at *key*, or None if it is missing or wrong."""
        value = self._take(key)
        if value is None:
            if required:
                self.missing(key, example)
            return None
        try:
            length = parse_duration(str(value), self.name(key))
        except (ConfigError, OverflowError):
            self.complain(f"{self.name(key)} is {show(value)}; write a number and a unit, such as {example}", key)
            return None
        if not length:
            self.complain(f"{self.name(key)} is {show(value)}; it must be longer than nothing, such as {example}", key)
            return None
        return length

    def moment(self, key: str, *, example: str = "") -> datetime | None:
        """Return the time at *key* in UTC, or None if it is missing or wrong; with an *example* it is required."""
        value = self._take(key)
        if value is None:
            if example:
                self.missing(key, example)
            return None
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
            return found.astimezone(UTC) if found.tzinfo is not None else self._no_moment(key, "has no zone", example)
        except (ValueError, OverflowError):
            return self._no_moment(key, "is not a time with a zone", example)

    def _no_moment(self, key: str, why: str, example: str) -> None:
        fix = f"write one such as {example or '2026-11-01T00:00Z'}"
        self.complain(f"{self.name(key)} is {str(self._values[key])!r}, which {why}; {fix}", key)

    def texts(self, key: str, *, example: str = "") -> list[str]:
        """Return the texts at *key*, a list or a single text; with an *example* the key is required."""
        value = self._take(key)
        if value is None:
            if example:
                self.missing(key, example)
            return []
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float) and str(each).strip() for each in found):
            self.complain(f"{self.name(key)} is {show(value)}; write texts, such as [{example or 'checkout'}]", key)
            return []
        return [str(each).strip() for each in found]

    def mapping(self, key: str, *, example: str) -> Fields | None:
        """Return the mapping at *key*, or None if it is missing; *example* is a key and a value of the mapping."""
        value = self._take(key)
        return None if value is None else Fields(self._document, (*self._place, key), value, example=example)

    def value(self, key: str) -> Any:
        """Return the unchecked value at *key*, or None."""
        return self._take(key)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that are present."""
        return tuple(self._values)

    def line_of(self, key: str = "") -> int:
        """Return the line of *key*, or of the mapping if *key* is missing."""
        return self._document.line((*self._place, key) if key else self._place)

    def items(self, key: str) -> list[tuple[Place, Any]]:
        """Return the items of the list at *key*, each with its place."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.complain(f"{self.name(key)} is {show(value)}; write a list: one `- ` for each", key)
            return []
        return [((*self._place, key, position), item) for position, item in enumerate(value)]

    def address(self, key: str, *, example: str = "") -> str:
        """Return the web address at *key*; with an *example* it is required."""
        value = self.text(key, example=example)
        if value and not value.startswith(("http://", "https://")):
            # The value may contain a secret: do not show it.
            self.complain(f"{self.name(key)} is not a web address; it starts with https://", key)
            return ""
        return value

    def one_of(self, key: str, allowed: Sequence[str]) -> str:
        """Return the text at *key*, which must be one of *allowed*."""
        value = self.text(key, example=allowed[0])
        if value and value not in allowed:
            self.complain(
                f"{self.name(key)} is {value!r}; write one of {', '.join(allowed)}{meant(value, allowed)}", key
            )
            return ""
        return value

    def has(self, key: str) -> bool:
        """Return whether *key* is present."""
        return self._values.get(key) is not None

    def finish(self) -> None:
        """Report every key that was never requested."""
        for key in self._values:
            if key not in self._known:
                fix = meant(key, self._known) or f"; known are {', '.join(self._known)}"
                self.complain(f"{self.name(key)} is not known{fix}", key)

    def complain(self, text: str, key: str = "") -> None:
        """Add a problem at the line of *key*, or of the mapping if *key* is missing."""
        self._document.problems.append(Problem(self.line_of(key), text))

    def missing(self, key: str, example: str) -> None:
        """Add the problem that *key* is missing."""
        self.complain(f"{self.name(key)} is missing; add `{key}: {example}`")

    def name(self, key: str) -> str:
        """Return *key* with its path from the top of the file."""
        return spell((*self._place, key))

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._values.get(key)


def _as_ratio(value: object) -> float | None:
    """Return the ratio for a probable percentage such as 99.9 or "99.9%"."""
    try:
        number = float(str(value).strip().removesuffix("%"))
    except ValueError:
        return None
    return round(number / 100, 10) if 1 < number < 100 else None  # noqa: PLR2004 - percent


def show(value: object) -> str:
    """Return *value* for an error message: a mapping or list by its kind, anything else as it was written."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, date):
        return repr(str(value))
    return "a list" if isinstance(value, list) else repr(value)


def _such_as(example: str) -> str:
    return f", such as {example}" if example else ""


def meant(word: str, allowed: Iterable[str]) -> str:
    """Return a "did you mean" hint with the most similar of *allowed*; "" if none is similar."""
    near = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# Maximum size of a secret file, which holds a key or an address; a larger file was mounted by mistake.
MAX_FILE_BYTES = 16_384


class Secrets:
    """Reader of the secrets of one entry.

    Args:
        document: Document of the entry; a secret file that is now empty or missing becomes a warning there.
        fields: Fields of the entry.
        env: The environment.
        held: Last secret of each file by path, updated by each read. During a rotation the file may be empty or
            missing for a moment; the last secret is used until the file is readable again.

    Attributes:
        lacking: Environment variable or file with a missing secret; empty if no secret is missing.
        files: Files that hold secrets.
    """

    def __init__(self, document: Document, fields: Fields, env: Mapping[str, str], held: dict[str, str]) -> None:
        self.lacking = ""
        self.files: list[Path] = []
        self._document = document
        self._fields = fields
        self._env = env
        self._held = held

    def take(self, key: str, *, example: str = "", is_address: bool = False) -> str:
        """Return the secret *key*; the secret is required if an *example*, the name of an environment variable, is given.

        The secret is read from the environment variable named by `<key>_env`, from the file named by `<key>_file`, or from
        *key* itself.
        """
        here = self._fields.address(key) if is_address else self._fields.text(key)
        given = {f"{key}_env": self._fields.text(f"{key}_env"), f"{key}_file": self._fields.text(f"{key}_file")}
        named = [(name, value) for name, value in given.items() if value]
        if len(named) + bool(here) > 1:
            keep = named[0][0]
            extra = named[1][0] if len(named) > 1 else keep
            self._fields.complain(f"{self._fields.name(key)} is given twice; keep {keep} alone", extra)
        if here or not named:
            if example and not here and not self._fields.has(key):
                self._fields.missing(f"{key}_env", example)
            return here
        name, source = named[0]
        value = self._env.get(source, "").strip() if name.endswith("_env") else self._content(name, source)
        if not value:
            self.lacking = source if name.endswith("_env") else f"the file {source}"
        return value

    def _content(self, key: str, path: str) -> str:
        """Return the secret in the file at *path*, or the last secret that was read from it; "" if there is none."""
        self.files.append(Path(path))
        found, trouble = _read(path)
        if found:
            self._held[path] = found
        elif path in self._held:
            text = f"{self._fields.name(key)} names {path}, which {trouble}; the previous secret stays in use"
            self._document.warnings.append(Problem(self._fields.line_of(key), text))
        return self._held.get(path, "")


def _read(path: str) -> tuple[str, str]:
    """Return the single line of text in the file at *path*, and a description of the error, "" for none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode().strip()
    except OSError as error:
        return "", f"cannot be read ({error.strerror})"
    except ValueError:
        return "", "is no text"
    if not text:
        return "", "is empty"
    return (text, "") if text.isprintable() and len(text) <= MAX_FILE_BYTES else ("", "is not one line of text")
