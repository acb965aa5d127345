"""Which spans a rule is about: texts with * and ? for the scope, the name, the kind, attributes and the process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from ..otlp.model import Scalar

# Attributes, each with the texts it may have, with * and ?; `ANY` for whichever.
Conditions: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
ANY = ("*",)

# opentelemetry/proto/trace/v1/trace.proto, Span.SpanKind; what is unspecified counts as internal.
KINDS = ("internal", "internal", "server", "client", "producer", "consumer")

# Of the texts that are looked at; longer ones are cut.
MAX_MATCHED_CHARS = 1000


class Facts(NamedTuple):
    """What of a span rules look at.

    Args:
        scope: The name of its instrumentation scope.
        name: Its own.
        kind: One of `KINDS`.
        attributes: Those that `Rules.exact` names, and of `Rules.present` at least that they are there.
        resource: Of the process.
        root: Whether it has no parent.
    """

    scope: str
    name: str
    kind: str
    attributes: Mapping[str, Scalar]
    resource: Mapping[str, Scalar]
    root: bool


@dataclass(frozen=True, slots=True)
class When:
    """Which spans a rule is about; all that is written must hold, and of several texts one.

    Args:
        scopes: Of the instrumentation scope's name, with * and ?; empty for any.
        spans: Of the span's name, the same.
        kinds: Of `KINDS`; empty for any.
        attributes: Of the span.
        resource: Of the process.
    """

    scopes: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    attributes: Conditions = ()
    resource: Conditions = ()

    def concerns(self, scope: str, kind: str) -> bool:
        """Say whether spans of *scope* and *kind* may be among them."""
        return (not self.kinds or kind in self.kinds) and (not self.scopes or _any(self.scopes, scope))

    def matches(self, span: Facts) -> bool:
        """Say whether *span* is one of them."""
        return (
            self.concerns(span.scope, span.kind)
            and (not self.spans or _any(self.spans, span.name))
            and _all(self.attributes, span.attributes)
            and _all(self.resource, span.resource)
        )

    def covers(self, other: When) -> bool:
        """Say whether this certainly matches whatever *other* does."""
        return (
            (not self.kinds or (bool(other.kinds) and set(other.kinds) <= set(self.kinds)))
            and _wider(self.scopes, other.scopes)
            and _wider(self.spans, other.spans)
            and all(_implied(condition, other.attributes) for condition in self.attributes)
            and all(_implied(condition, other.resource) for condition in self.resource)
        )


@cache
def _regex(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _any(globs: Iterable[str], found: str) -> bool:
    return any(_regex(glob).fullmatch(found[:MAX_MATCHED_CHARS]) for glob in globs)


def _all(conditions: Conditions, found: Mapping[str, Scalar]) -> bool:
    return all(key in found and (texts == ANY or _any(texts, _text_of(found[key]))) for key, texts in conditions)


def _text_of(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wider(globs: Sequence[str], others: Sequence[str]) -> bool:
    if not globs:
        return True
    # A * in the other is matched by a * only; a ? of ours might match it, too: only equal texts count then.
    return bool(others) and all(
        any(glob == other or ("?" not in glob and _any((glob,), other)) for glob in globs) for other in others
    )


def _implied(condition: tuple[str, tuple[str, ...]], others: Conditions) -> bool:
    key, texts = condition
    return any(key == other and _wider(texts, found) for other, found in others)
