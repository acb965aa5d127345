"""YAML documents with the line of every value, and the texts of error messages about them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

# Path of a value: keys and list positions from the top of the document.
Place = tuple[str | int, ...]

# libyaml takes a tenth of the time; a PyYAML that was built without it has the other loader only.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Maximum number of places, with aliases expanded: a few lines of nested aliases can expand to millions of values.
MAX_PLACES = 100_000
# Maximum size of a file, which is read before its values are counted. [bytes]
MAX_BYTES = 4 * 1024 * 1024
_LARGE = 1_000_000
# Python neither reads nor shows numbers with more than 4300 digits.
_MAX_DIGITS = 40
# Number of characters of a value in an error.
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a file; *path*: the file, if it is another file than the one that was read."""

    line: int
    text: str
    path: Path | None = None


@dataclass(slots=True)
class Document:
    """A YAML document; *warnings*: values that YAML may interpret differently than intended."""

    value: Any
    lines: dict[Place, int] = field(default_factory=dict[Place, int])
    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[Problem] = field(default_factory=list[Problem])

    def line(self, location: Place) -> int:
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def parse(text: str) -> Document:
    """Parse one YAML document; errors are added to its `problems`."""
    first, *more = parse_all(text)
    if more:
        line = more[0].line(())
        first.problems.append(Problem(line, "a second document begins here; write one, without the line `---`"))
    return first


def parse_all(text: str) -> list[Document]:
    """Parse all YAML documents of *text*, at least one; errors are added to the `problems` of their document."""
    documents: list[Document] = []
    document = Document(None)
    try:
        loader = _Loader(text)
        _check_size(text)
        roots = list[Any]()
        while loader.check_node():
            roots.append(loader.get_node())
        for root in roots:
            document = Document(None)
            documents.append(document)
            _note(root, (), document)
            document.value = loader.construct_document(root)
    except yaml.YAMLError as error:
        document.problems.append(_syntax(error, text))
    except _TooManyError:
        has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _Loader))
        why, fix = ("its aliases expand to", "plain lists and keys") if has_aliases else ("it has", "fewer entries")
        document.problems.append(Problem(1, f"{why} more than {MAX_PLACES:,} values; write {fix}"))
    except RecursionError:
        document.problems.append(Problem(1, "it is nested too deeply, or contains itself; write plain lists and keys"))
    except ValueError as error:  # a date that is none, such as 2026-99-99
        document.problems.append(Problem(1, f"a value is ambiguous: {error}; put quotes around it"))
    return documents or [document]


def spell(location: Place) -> str:
    """Return *location* in the notation of error messages.

    >>> spell(("slos", 0, "objective"))
    'slos[0].objective'
    """
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return text.removeprefix(".")


class _TooManyError(Exception):
    """A document has more places than `MAX_PLACES`."""


def _check_size(text: str) -> None:
    """Reject a text with certainly too many values, in a fifth of the time that it takes to read them."""
    nodes = (node for node in yaml.parse(text, _Loader) if isinstance(node, yaml.NodeEvent))
    if len(text) > _LARGE and next(islice(nodes, 2 * MAX_PLACES, None), None):
        raise _TooManyError


def _note(node: yaml.Node, location: Place, document: Document) -> None:
    if len(document.lines) > MAX_PLACES:
        raise _TooManyError
    document.lines.setdefault(location, node.start_mark.line + 1)
    if node.tag.endswith(":int") and len(node.value) > _MAX_DIGITS:
        text = f"{spell(location)} is a number with {len(node.value):,} digits; write at most {_MAX_DIGITS}"
        document.problems.append(Problem(node.start_mark.line + 1, text))
        node.tag, node.value = "tag:yaml.org,2002:int", "1"
    if isinstance(node, yaml.MappingNode):
        _note_mapping(node, location, document)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _note(item, (*location, position), document)


def _note_mapping(node: yaml.MappingNode, location: Place, document: Document) -> None:
    seen: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            text = f"{spell((*location, name))} is written twice, first on line {seen[name]}; keep one"
            document.problems.append(Problem(line, text))
        seen[name] = line
        document.lines[*location, name] = line
        _note(value, (*location, name), document)


def _syntax(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        what = (error.problem or error.context or "it cannot be read").replace("in this context", "here")
        # The mark of an early end is on the line after the last one.
        line = min(error.problem_mark.line + 1, len(text.splitlines()) or 1)
        return Problem(line, f"this is not YAML: {what}; check this line and the line above")
    return Problem(1, f"this is not YAML: {error}")


def show(value: object) -> str:
    """Return *value* for an error message: a mapping or list by its kind, anything else as it was written."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, date):
        return repr(str(value))
    text = "a list" if isinstance(value, list) else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def meant(word: str, allowed: Iterable[str]) -> str:
    """Return a "did you mean" hint with the most similar of *allowed*; "" if none is similar."""
    near = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {near[0]}?" if near else ""
