"""Application of span rules: the first matching rule defines the stage, request, model and measurements of a span.

User rules come before those of `rules.yaml`. A span without a matching rule has no stage: its time belongs to the spans around it.

`RuleCache` evaluates rules once for each kind of span. Its key consists of the origin, name, kind, the relevant attributes that the
span has, and the values of some of them. The cache is bounded: when it is full, it is cleared. Several threads may use it; in the worst
case a result is computed twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypeAlias

from ...core import names
from ...core.health_probes import PROBES, ProbePolicy, is_known_agent, unmatched_route
from ..ingest.validation import printable_text
from ..otlp.model import Attributes, Scalar
from .columns import Flag, Label
from .rule_config import KINDS, MAX_MATCHED_CHARS, TEMPLATE, IntervalRule, Rule, SpanCondition, SpanFacts
from .span_scan import PATHS, ROUTE, SpanStrings

_REQUESTS = ("server", "consumer")
_METHODS = (names.METHOD, "http.method")
# Attributes of which only a class is read: what the value says about a health probe.
_CLASSIFIED = PATHS | {"user_agent.original", "http.user_agent"}
_NOTHING, PATH_OF_PROBE, AGENT_OF_PROBE = range(3)
_MAX_CLASSIFIED_CHARS = 120
# Cached candidate rules by scope and kind, a few kilobytes each. [count]
_MAX_NEARBY = 1000

_NO_RULE = Rule(name="no rule", when=())
# Approximate memory limits of the cached shapes and of the cached rule results. [bytes]
MAX_SHAPES_BYTES, MAX_MEANINGS_BYTES = 8 * 1024**2, 24 * 1024**2
# Larger entries rarely repeat.
MAX_REMEMBERED_BYTES = 8 * 1024
# Memory of an entry and of each of its attributes, without texts. [bytes]
_FIXED_BYTES, _ATTRIBUTE_BYTES = 400, 100
MAX_PLACES = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class SpanMeaning:
    label: Label  # label of the span
    flags: int  # flags of the span, without `Flag.ERROR`
    rule: Rule | None = None  # rule with measurements to read; None if there are none
    measured: frozenset[str] = frozenset()  # names of the attributes to read for the rule
    events: frozenset[str] = frozenset()  # names of the events to read for the rule
    eventless: tuple[IntervalRule, ...] = ()  # intervals of the rule that a span without events may have


class RuleSet:
    """All rules in force.

    Attributes:
        exact: Span attributes whose values affect the result.
        present: Span attributes whose presence affects the result, or which are measured.
        resource: Resource attributes that affect the result.
    """

    def __init__(self, rules: Sequence[Rule], probes: ProbePolicy | None = None) -> None:
        self.rules, self._probes = tuple(rules), probes or ProbePolicy()
        self.exact = frozenset({names.COUNTED, *_METHODS}.union(*(rule.exact for rule in rules)))
        whens = [when for rule in rules for when in rule.when]
        conditions = {key for when in whens for key in when.attributes}
        self.present = frozenset(conditions.union(*(rule.measured for rule in rules))) - self.exact
        self.classified = _CLASSIFIED
        self.resource = frozenset(key for when in whens for key in when.resource)
        self._nearby: dict[tuple[str, str], list[tuple[frozenset[str], SpanCondition, Rule]]] = {}
        # Computed once, because each new kind of span needs it.
        self._tells = {id(rule): (rule.measured, rule.events) for rule in self.rules}

    def classify(self, value: Scalar | None) -> int:
        """Return the class of the *value* of an attribute of `classified`; it is not stored."""
        if not isinstance(value, str) or len(value) > _MAX_CLASSIFIED_CHARS:
            return _NOTHING
        if value.startswith("/"):
            path = value.partition("?")[0]
            return PATH_OF_PROBE if self._probes.route_of(path, None) is not None else _NOTHING
        return AGENT_OF_PROBE if is_known_agent(value) else _NOTHING

    def find(self, span: SpanFacts) -> Rule:
        there = span.attributes.keys()
        for needed, when, rule in self._near(span.scope, span.kind):
            if needed <= there and when.matches(span):
                return rule
        return _NO_RULE

    def _near(self, scope: str, kind: str) -> list[tuple[frozenset[str], SpanCondition, Rule]]:
        nearby_rules = self._nearby.get((scope, kind))
        if nearby_rules is None:
            nearby_rules = [
                (frozenset(when.attributes), when, rule)
                for rule in self.rules
                for when in rule.when
                if when.concerns(scope, kind)
            ]
            if len(scope) <= MAX_MATCHED_CHARS:
                if len(self._nearby) >= _MAX_NEARBY:
                    self._nearby.clear()
                self._nearby[scope, kind] = nearby_rules
        return nearby_rules

    def meaning(self, span: SpanFacts) -> SpanMeaning:
        rule = self.find(span)
        counted = span.attributes.get(names.COUNTED) is True
        label, flags = _label(rule, span), _flags(rule) | (Flag.COUNTED if counted else 0)
        probe = self._probe_route(label, span)
        if probe is not None:
            label, flags = replace(label, route=probe), flags | Flag.PROBE
        measured, events = self._tells.get(id(rule), (frozenset[str](), frozenset[str]()))
        measured = measured.intersection(span.attributes)
        if not measured and not events:
            return SpanMeaning(label, flags)
        eventless = tuple(part for part in rule.parts if part.needs_only(measured))
        return SpanMeaning(label, flags, rule, measured, events, eventless)

    def _probe_route(self, label: Label, span: SpanFacts) -> str | None:
        if span.kind != "server" or not label.request:
            return None
        method = next((str(span.attributes[key]) for key in _METHODS if key in span.attributes), None)
        classes = {span.attributes.get(key) for key in _CLASSIFIED}
        # Without a route, the name may be the method and the path.
        path = PROBES if PATH_OF_PROBE in classes else unmatched_route(label.name.removeprefix(f"{method} "))
        return self._probes.route_of(label.route or path, method, "kube-probe" if AGENT_OF_PROBE in classes else "")


def _label(rule: Rule, span: SpanFacts) -> Label:
    by_kind = span.kind in _REQUESTS or span.root
    # The text after ? in a span name is a URL query, which may be user content.
    name = (_fill_template(rule.called, span.attributes) if rule.called else None) or span.name.partition("?")[0]
    return Label(
        name=printable_text(name),
        kind=span.kind,
        request=by_kind if rule.request is None else rule.request,
        stage=rule.stage,
        head=rule.head,
        model=_first(rule.model, span.attributes),
        model_version=_first(rule.model_version, span.attributes),
        route=_first(rule.route, span.attributes),
        device=_first(rule.device, span.attributes),
        definition=rule.stream.definition,
        attributes=tuple((key, _shown(span.attributes[key])) for key in rule.show if key in span.attributes),
    )


def _flags(rule: Rule) -> int:
    return (Flag.RECORD if rule.record else 0) | (Flag.EXPLICIT if rule.request is not None else 0)


def _first(sources: Iterable[str], attributes: Mapping[str, Scalar]) -> str:
    for source in sources:
        attribute = _fill_template(source, attributes) if "{" in source else attributes.get(source)
        if attribute is not None and attribute != "":
            return printable_text(attribute)
    return ""


def _fill_template(template: str, attributes: Mapping[str, Scalar]) -> str | None:
    if any(key not in attributes for key in TEMPLATE.findall(template)):
        return None
    return TEMPLATE.sub(lambda match: printable_text(attributes[match[1]]), template)


def _shown(value: Scalar) -> Scalar:
    return printable_text(value) if isinstance(value, str) else value


class Shape:
    """The relevant attributes of a span; compared by identity.

    Attributes:
        values: Function that returns a tuple of the values of *exact* from the attributes of a span; for a single attribute it
            returns the value without a tuple.
    """

    __slots__ = ("classified", "exact", "present", "values")

    def __init__(self, exact: tuple[str, ...], present: tuple[str, ...], classified: tuple[str, ...] = ()) -> None:
        self.exact, self.present, self.classified = exact, present, classified
        self.values: Callable[[Any], Hashable] = itemgetter(*exact) if exact else lambda _: ()


class SpanOrigin:
    """Origin of spans; compared by identity."""

    __slots__ = ("resource", "scope")

    def __init__(self, scope: str, resource: Mapping[str, Scalar]) -> None:
        self.scope, self.resource = scope, resource


# Origin, name, kind, whether it is a root, shape, the values of the shape, and the classes of its classified attributes.
Key: TypeAlias = tuple[SpanOrigin, bytes, int, bool, Shape, Hashable, tuple[int, ...]]


class Shapes(dict[tuple[str, ...], Shape]):
    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self._rules = rules
        # Irrelevant attributes and the order of attributes do not create another shape.
        self._known: dict[tuple[tuple[str, ...], ...], Shape] = {}
        self._bytes = 0

    def __missing__(self, keys: tuple[str, ...]) -> Shape:
        rules = self._rules
        exact, present, classified = (
            tuple(sorted(wanted.intersection(keys)))
            for wanted in (rules.exact, rules.present, rules.classified - PATHS if ROUTE in keys else rules.classified)
        )
        size = _FIXED_BYTES + _ATTRIBUTE_BYTES * len(keys) + 4 * sum(map(len, keys))
        if self._bytes + size > MAX_SHAPES_BYTES:
            self.clear()
            self._known.clear()
            self._bytes = 0
        shape = self._known.setdefault((exact, present, classified), Shape(exact, present, classified))
        if size <= MAX_REMEMBERED_BYTES:
            self._bytes += size
            self[keys] = shape
        return shape


class ScannedKinds:
    """Rule results by the keys of `span_scan`; never cleared, only replaced."""

    def __init__(self, rules: RuleSet) -> None:
        self.strings = SpanStrings(rules.exact, rules.present, rules.classified, rules.classify)
        self.meanings: dict[bytes, SpanMeaning] = {}
        self._origins: dict[SpanOrigin, int] = {}
        self._lock = threading.Lock()

    def number_of(self, origin: SpanOrigin) -> int:
        with self._lock:
            return self._origins.setdefault(origin, len(self._origins))

    @property
    def is_full(self) -> bool:
        return self.strings.is_full or max(len(self._origins), len(self.meanings)) >= MAX_PLACES


class RuleCache:
    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.shapes = Shapes(rules)
        self.meanings: dict[Key, SpanMeaning] = {}
        self._scanned = ScannedKinds(rules)
        self._places: dict[tuple[str, tuple[tuple[str, Scalar], ...]], SpanOrigin] = {}
        self._bytes = 0

    def scanned(self) -> ScannedKinds:
        if self._scanned.is_full:
            self._scanned = ScannedKinds(self.rules)
        return self._scanned

    def place(self, scope: str, resource: Attributes) -> SpanOrigin:
        counts = tuple(sorted((key, value) for key, value in resource.items() if key in self.rules.resource))
        origin = self._places.get((scope, counts))
        if origin is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            origin = self._places[scope, counts] = SpanOrigin(scope, dict(counts))
        return origin

    def learn(self, key: Key, values: Mapping[str, Scalar], size_bytes: int) -> SpanMeaning:
        """Return the rule result for spans with *key*, and cache it; UnicodeDecodeError for an invalid name."""
        origin, name, kind, root, shape, _, classes = key
        kind_name = KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]
        classified = dict(zip(shape.classified, classes, strict=True))
        attributes = {**dict.fromkeys(shape.present, True), **values, **classified}
        meaning = self.rules.meaning(
            SpanFacts(origin.scope, name.decode(), kind_name, attributes, origin.resource, root)
        )
        size = _FIXED_BYTES + _ATTRIBUTE_BYTES * len(values) + len(name) + size_bytes
        if size <= MAX_REMEMBERED_BYTES:
            if self._bytes + size > MAX_MEANINGS_BYTES:
                self.meanings.clear()
                self._scanned = ScannedKinds(self.rules)
                self._bytes = 0
            self._bytes += size
            self.meanings[key] = meaning
        return meaning
