"""Check whether one function accepts every call of another function, independent of its signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

ABSENT: Final = object()
PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def refused(original: Any, replacement: Any) -> Iterator[str]:
    try:
        theirs = inspect.signature(original)
        ours = inspect.signature(replacement, follow_wrapped=False)
    except (ValueError, TypeError):
        # Written in C: nothing to compare with.
        return
    for way, (args, options) in ways(theirs).items():
        try:
            bound = ours.bind(*args, **options)
        except TypeError as error:
            yield f"{way}: {error}"
        else:
            yield from defaulted(way, bound, theirs)


def defaulted(way: str, bound: inspect.BoundArguments, theirs: inspect.Signature) -> Iterator[str]:
    """Yield the defaults that we would fill in and that are not the library's."""
    for name, parameter in bound.signature.parameters.items():
        if name not in bound.arguments and parameter.default is not parameter.empty:
            default = theirs.parameters[name].default if name in theirs.parameters else ABSENT
            if default != parameter.default:
                yield f"{way}: {name} is {parameter.default!r} with us and {default!r} without"


def ways(signature: inspect.Signature) -> dict[str, tuple[list[object], dict[str, object]]]:
    """Return calls: all by position, all by name as far as that goes, and the shortest; the instance is never named."""
    listed = list(signature.parameters.values())
    placed = [each for each in listed if each.kind in PLACED]
    unnamed = [each for each in placed if each.kind is each.POSITIONAL_ONLY or each.name in {"self", "cls"}]
    named = {each.name: object() for each in placed if each not in unnamed}
    only_named = {each.name: object() for each in listed if each.kind is each.KEYWORD_ONLY}
    needed = {each.name for each in listed if each.default is each.empty}
    return {
        "by position": ([object() for _ in placed], only_named),
        "by name": ([object() for _ in unnamed], named | only_named),
        "without defaults": (
            [object() for each in placed if each.name in needed],
            {name: value for name, value in only_named.items() if name in needed},
        ),
    }
