"""What a server says of a call, checked: a call of one `dependency` becomes the server's stages and `network`.

Nothing it says is believed that cannot be true: a number that is none, or negative; parts that are longer than their total,
or than the call; a model that was a thousand times too fast, for then the unit is wrong. Such a call stays a `dependency`,
and the request says so (`@suspect`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ..records import MAX_MARKS, REPORTED, REST, Marks
from .server_reports import BRIEF_NS, TO_FIRST, TOTAL, Dialect

_logger = logging.getLogger("stagelens")

# What the server did, in order: stage, nanoseconds.
Parts: TypeAlias = list[tuple[str, int]]

DEPENDENCY: Final = "dependency"
# What the server does not take.
_REST: Final = f"network@{REST}"
# From the first token on.
_AFTER: Final = "decode"
# What is longer is no time that anybody waits for; also what a float cannot hold.
_MAX_NS: Final = 86_400 * 10**9
# A model that took less than its unit allows, but would have taken most of the call in the next larger one.
_NEXT_UNIT: Final = 1000


class Wait(NamedTuple):
    """How long somebody waited for an answer, by the recorder's clock.

    Args:
        begun: When it was asked for. [nanoseconds]
        ended: When all that is told of was there. [nanoseconds]
        first: When the first token was there; 0 for an answer that came as a whole. [nanoseconds]
        headers: When its headers were there, if that was earlier: who answers as a whole has done all by then. [nanoseconds]
    """

    begun: int
    ended: int
    first: int = 0
    headers: int = 0


def told(said: Iterable[tuple[Dialect, Mapping[str, Any]]], marks: Marks, wait: Wait) -> bool:
    """Mark the first of what was *said* that can be true, and all before it that cannot."""
    for dialect, values in said:
        parts = parts_of(dialect, values)
        if parts is not None and is_possible(dialect, parts, wait.ended - wait.begun):
            if len(marks) < MAX_MARKS:
                marks.extend(split(parts, wait))
            return True
        _suspect(dialect, marks, wait)
    return False


def _suspect(dialect: Dialect, marks: Marks, wait: Wait) -> None:
    if len(marks) < MAX_MARKS:
        marks.extend(("@suspect", dialect.name, wait.ended - wait.begun))
    if dialect not in _complained:
        _complained.add(dialect)
        _logger.warning(
            "stagelens: what a server says of its time cannot be true (%s: %s). Such calls stay a dependency as a whole and "
            "are counted as inference.suspect_report.duration; is a proxy or a version of it using another unit?",
            dialect.name,
            ", ".join(field.name for field in dialect.fields),
        )


_complained: set[Dialect] = set()


def parts_of(dialect: Dialect, values: Mapping[str, Any]) -> Parts | None:
    """Return what the server did, in order; what it does not split is `dependency`. None where it cannot be true."""
    parts: Parts = []
    whole: dict[str, int] = {}
    for field in dialect.fields:
        value = values.get(field.name)
        if value is None:
            continue
        spent = _nanoseconds(value, field.unit_ns)
        if spent is None:
            return None
        if field.stage in {TOTAL, TO_FIRST}:
            whole[field.stage] = spent
        else:
            parts.append((field.brief if field.brief and spent < BRIEF_NS else field.stage, spent))
    return _filled(parts, whole, dialect.rounding_ns)


def _filled(parts: Parts, whole: dict[str, int], rounding_ns: int) -> Parts | None:
    """Add what is left of the whole to *parts*, before or after the first token."""
    before = sum(spent for stage, spent in parts if stage != _AFTER)
    after = sum(spent for _, spent in parts) - before
    total = whole.get(TOTAL, whole.get(TO_FIRST))
    if total is None:
        return parts
    if before + after > total + rounding_ns:
        return None
    first = whole.get(TO_FIRST)
    if first is None or after or TOTAL not in whole:
        return [*parts, (DEPENDENCY, max(0, total - before - after))]
    # What came before the first token is not split any further, what came after it is known.
    return [*parts, (DEPENDENCY, first - before), (_AFTER, total - first)] if before <= first <= total else None


def _nanoseconds(value: Any, unit_ns: int) -> int | None:
    try:
        spent = float(value) * unit_ns
    except (TypeError, ValueError, OverflowError):
        return None
    # False of what is no number, too.
    return round(spent) if 0 <= spent <= _MAX_NS and not isinstance(value, bool) else None


def is_possible(dialect: Dialect, parts: Parts, wall_ns: int) -> bool:
    """Say whether a call of *wall_ns* can have held *parts*."""
    total = sum(spent for _, spent in parts)
    if total > wall_ns + dialect.rounding_ns:
        return False
    return not (dialect.generates and wall_ns // 2 < total * _NEXT_UNIT <= wall_ns)


def split(parts: Parts, wait: Wait) -> Marks:
    """Return *parts* as marks, and as `network` what is left of the *wait*: half of it on each side.

    Of a stream the wait for its first token is all that is known to be on the wire: afterwards its reader may take its time.

    >>> split([("queue", 20), ("prefill", 40)], Wait(100, 200))
    ['network@rest', 100, 120, 'queue@reported', 120, 140, 'prefill@reported', 140, 180, 'network@rest', 180, 200]
    """
    begun, ended, first, headers = wait
    total = sum(spent for _, spent in parts)
    if total <= headers - begun:
        ended = headers
    if total > ended - begun:
        # By no more than was rounded up.
        parts = [(stage, spent * (ended - begun) // total) for stage, spent in parts]
        total = sum(spent for _, spent in parts)
    lead = sum(spent for stage, spent in parts if stage != _AFTER) if first else total
    at = min(begun + max(0, (first or ended) - begun - lead) // 2, ended - total)
    marks: Marks = []
    for stage, until in ((_REST, at), *_ends(parts, at), *(() if first else ((_REST, ended),))):
        if until > begun:
            marks += (stage, begun, until)
            begun = until
    return marks


def _ends(parts: Parts, at: int) -> Iterator[tuple[str, int]]:
    for stage, spent in parts:
        at += spent
        yield f"{stage}@{REPORTED}", at
