"""Cache of rule results: rules are evaluated once for each kind of span, not for each span.

The key of a span consists of its origin, name, kind, the relevant attributes that it has, and the values of some of them. The cache
is bounded: when it is full, it is cleared. It may be used by several threads; in the worst case a result is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from ..otlp.model import Attributes, Scalar
from .rules import KINDS, RuleSet, SpanFacts, SpanMeaning

# Approximate memory limits of the cached shapes and rule results. [bytes]
MAX_SHAPES_BYTES, MAX_MEANINGS_BYTES = 8 * 1024**2, 24 * 1024**2
# Larger entries rarely repeat.
MAX_REMEMBERED_BYTES = 8 * 1024
# Memory of an entry and of each of its attributes, without texts. [bytes]
_FIXED_BYTES, _ATTRIBUTE_BYTES = 400, 100
MAX_PLACES = 20_000


class Shape:
    """The relevant attributes of a span; compared by identity.

    Args:
        exact: Attributes whose values are relevant, in a fixed order.
        present: Attributes whose presence is relevant.

    Attributes:
        values: Returns the values of *exact* from the attributes of a span; of a single attribute the value itself.
    """

    __slots__ = ("exact", "present", "values")

    def __init__(self, exact: tuple[str, ...], present: tuple[str, ...]) -> None:
        self.exact, self.present = exact, present
        self.values: Callable[[Any], Hashable] = itemgetter(*exact) if exact else _nothing


def _nothing(_attributes: Any) -> Hashable:
    return ()


class SpanOrigin:
    """Origin of spans; compared by identity.

    Args:
        scope: Name of the instrumentation scope.
        resource: Relevant resource attributes.
    """

    __slots__ = ("resource", "scope")

    def __init__(self, scope: str, resource: Mapping[str, Scalar]) -> None:
        self.scope, self.resource = scope, resource


# Origin, name, kind, whether it is a root, shape, and the values of the shape.
Key: TypeAlias = tuple[SpanOrigin, bytes, int, bool, Shape, Hashable]


class Shapes(dict[tuple[str, ...], Shape]):
    """Shapes by the attribute names of a span.

    Args:
        rules: The rules in force.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self._rules = rules
        # Irrelevant attributes and the order of attributes do not create another shape.
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
    """Cached rule results.

    Args:
        rules: The rules in force.

    Attributes:
        shapes: Shapes by attribute names.
        meanings: Rule results by key.
    """

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.shapes = Shapes(rules)
        self.meanings: dict[Key, SpanMeaning] = {}
        self._places: dict[tuple[str, tuple[tuple[str, Scalar], ...]], SpanOrigin] = {}
        self._bytes = 0

    def place(self, scope: str, resource: Attributes) -> SpanOrigin:
        """Return the origin of spans of *scope* in a process with the attributes *resource*."""
        counts = tuple(sorted((key, value) for key, value in resource.items() if key in self.rules.resource))
        found = self._places.get((scope, counts))
        if found is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            found = self._places[scope, counts] = SpanOrigin(scope, dict(counts))
        return found

    def learn(self, key: Key, values: Mapping[str, Scalar], size_bytes: int) -> SpanMeaning:
        """Evaluate the rules for spans with *key*, and cache the result.

        Args:
            key: Key of the spans.
            values: Scalar values of the exact attributes.
            size_bytes: Size of the attribute values in *key*.

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
