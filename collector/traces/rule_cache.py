"""What spans are, remembered: rules are tried once for each kind of span, not once for each span.

Of a span counts which attributes it has, of those that rules ask for, and what some of them say. What is remembered is bounded:
when it is full, all of it is forgotten, and what comes again is learnt again. Several threads may read at once; the worst they
can do to each other is to learn something twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from ..otlp.model import Attributes, Scalar
from .rules import KINDS, RuleSet, SpanFacts, SpanMeaning

# What is remembered of shapes, and of kinds of spans: about so much memory each. [bytes]
MAX_SHAPES_BYTES, MAX_MEANINGS_BYTES = 8 * 1024**2, 24 * 1024**2
# Larger ones are hardly ever met again.
MAX_REMEMBERED_BYTES = 8 * 1024
# What one takes beside its texts, and each attribute of it. [bytes]
_FIXED_BYTES, _ATTRIBUTE_BYTES = 400, 100
MAX_PLACES = 20_000


class Shape:
    """Which attributes of a span count; known by its identity.

    Args:
        exact: Those whose values count, in some order that is always the same.
        present: Those of which counts only that they are there.

    Attributes:
        values: Takes the values of *exact* from the attributes of a span; of a single one that itself.
    """

    __slots__ = ("exact", "present", "values")

    def __init__(self, exact: tuple[str, ...], present: tuple[str, ...]) -> None:
        self.exact, self.present = exact, present
        self.values: Callable[[Any], Hashable] = itemgetter(*exact) if exact else _nothing


def _nothing(_attributes: Any) -> Hashable:
    return ()


class SpanOrigin:
    """Where spans come from; known by its identity.

    Args:
        scope: The name of the instrumentation scope.
        resource: What of the process counts.
    """

    __slots__ = ("resource", "scope")

    def __init__(self, scope: str, resource: Mapping[str, Scalar]) -> None:
        self.scope, self.resource = scope, resource


# The name of the span, its kind, whether it is a root, and what its shape takes from its attributes.
Key: TypeAlias = tuple[SpanOrigin, bytes, int, bool, Shape, Hashable]


class Shapes(dict[tuple[str, ...], Shape]):
    """The shapes of spans with these attributes.

    Args:
        rules: Which attributes count.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self._rules = rules
        # Attributes that do not count, and their order, make no other shape.
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], Shape] = {}
        self._bytes = 0

    def __missing__(self, keys: tuple[str, ...]) -> Shape:
        exact, present = (
            tuple(sorted(wanted.intersection(keys))) for wanted in (self._rules.exact, self._rules.present)
        )
        size = _FIXED_BYTES + _ATTRIBUTE_BYTES * len(keys) + 4 * sum(map(len, keys))
        if self._bytes + size > MAX_SHAPES_BYTES:
            self.clear()
            self._known.clear()
            self._bytes = 0
        shape = self._known.setdefault((exact, present), Shape(exact, present))
        if size <= MAX_REMEMBERED_BYTES:
            self._bytes += size
            self[keys] = shape
        return shape


class RuleCache:
    """What spans are.

    Args:
        rules: Those that hold.

    Attributes:
        shapes: By the attributes of a span.
        meanings: What was learnt of spans.
    """

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.shapes = Shapes(rules)
        self.meanings: dict[Key, SpanMeaning] = {}
        self._places: dict[tuple[str, tuple[tuple[str, Scalar], ...]], SpanOrigin] = {}
        self._bytes = 0

    def place(self, scope: str, resource: Attributes) -> SpanOrigin:
        """Return where spans of *scope* in a process that says *resource* of itself come from."""
        counts = tuple(sorted((key, value) for key, value in resource.items() if key in self.rules.resource))
        found = self._places.get((scope, counts))
        if found is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            found = self._places[scope, counts] = SpanOrigin(scope, dict(counts))
        return found

    def learn(self, key: Key, values: Mapping[str, Scalar], size_bytes: int) -> SpanMeaning:
        """Return what spans of *key* are, and remember it.

        Args:
            key: What is known of them.
            values: What the attributes say that it has the values of; those left out say nothing that counts.
            size_bytes: How much *key* holds of them.

        Raises:
            UnicodeDecodeError: The name is not valid UTF-8.
        """
        place, name, kind, root, shape, _ = key
        kind_name = KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]
        attributes = {**dict.fromkeys(shape.present, True), **values}
        found = self.rules.meaning(SpanFacts(place.scope, name.decode(), kind_name, attributes, place.resource, root))
        size = _FIXED_BYTES + _ATTRIBUTE_BYTES * len(values) + len(name) + size_bytes
        if size <= MAX_REMEMBERED_BYTES:
            if self._bytes + size > MAX_MEANINGS_BYTES:
                self.meanings.clear()
                self._bytes = 0
            self._bytes += size
            self.meanings[key] = found
        return found
