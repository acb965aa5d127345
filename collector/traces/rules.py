"""Span rules: match a span by scope, name, kind, attributes and resource, and define its stage, request, model and measurements.

The first matching rule applies; user rules come before those of `rules.yaml`. A span without a matching rule has no stage: its time
belongs to the spans around it. Texts of a condition may contain * and ?.

`RuleCache` evaluates rules once for each kind of span. Its key consists of the origin, name, kind, the relevant attributes that the
span has, and the values of some of them. The cache is bounded: when it is full, it is cleared. Several threads may use it; in the worst
case a result is computed twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from ...core import names
from ..ingest.validation import printable_text
from ..otlp.model import Attributes, Scalar
from .columns import Flag, Label

# Attributes with their allowed texts, which may contain * and ?; `ANY` for every value.
Conditions: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
ANY = ("*",)

# opentelemetry/proto/trace/v1/trace.proto, Span.SpanKind; unspecified counts as internal.
KINDS = ("internal", "internal", "server", "client", "producer", "consumer")

# Longer texts are cut before they are matched.
MAX_MATCHED_CHARS = 1000


class SpanFacts(NamedTuple):
    """Properties of a span that rules match.

    Args:
        scope: Name of its instrumentation scope.
        name: Name of the span.
        kind: One of `KINDS`.
        attributes: Attributes of `RuleSet.exact` with their values, and those of `RuleSet.present` with any value.
        resource: Resource attributes.
        root: Whether the span has no parent.
    """

    scope: str
    name: str
    kind: str
    attributes: Mapping[str, Scalar]
    resource: Mapping[str, Scalar]
    root: bool


@dataclass(frozen=True, slots=True)
class SpanCondition:
    """Condition of a rule: every given property must match one of its texts.

    Args:
        scopes: Names of the instrumentation scope; empty for any.
        spans: Names of the span; empty for any.
        kinds: Kinds, of `KINDS`; empty for any.
        attributes: Attributes of the span.
        resource: Attributes of the resource.
    """

    scopes: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    attributes: Conditions = ()
    resource: Conditions = ()

    def concerns(self, scope: str, kind: str) -> bool:
        """Return whether spans of *scope* and *kind* may match the condition."""
        return (not self.kinds or kind in self.kinds) and (not self.scopes or _any(self.scopes, scope))

    def matches(self, span: SpanFacts) -> bool:
        """Return whether *span* matches the condition."""
        return (
            self.concerns(span.scope, span.kind)
            and (not self.spans or _any(self.spans, span.name))
            and _all(self.attributes, span.attributes)
            and _all(self.resource, span.resource)
        )

    def covers(self, other: SpanCondition) -> bool:
        """Return whether every span that matches *other* matches this condition."""
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
    # A pattern with ? might match the literal * of the other pattern, so it only covers an equal pattern.
    return bool(others) and all(
        any(glob == other or ("?" not in glob and _any((glob,), other)) for glob in globs) for other in others
    )


def _implied(condition: tuple[str, tuple[str, ...]], others: Conditions) -> bool:
    key, texts = condition
    return any(key == other and _wider(texts, found) for other, found in others)


_REQUESTS = ("server", "consumer")
# Cached candidate rules by scope and kind, a few kilobytes each. [count]
_MAX_NEARBY = 1000
_TEMPLATE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """Rule for an interval within a span, given by attributes or events, with its own stage.

    The position of the interval is given in one of three ways: by *lasts*, *until* or *to_event* alone, starting at the end of
    the previous interval or at the start of the span; by *begins* and *ends*; or by *from_event* and *to_event*, for each pair
    of events.

    Args:
        stage: Stage of the interval.
        lasts: Attributes with the duration of the interval; the first one present counts.
        until: Attributes with the time from the start of the span to the end of the interval.
        begins: Attributes with the start of the interval, since 1970.
        ends: Attributes with the end of the interval, since 1970.
        from_event: Name of the event at the start of the interval.
        to_event: Name of the event at the end of the interval.
        unit: Unit of the attributes, one of `span_validation.UNITS`.
    """

    stage: str
    lasts: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    from_event: str = ""
    to_event: str = ""
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class StreamRule:
    """Attributes and events of a span that describe a streamed response.

    Args:
        first_token: Attributes with the time from the start of the span to the first token.
        first_token_event: Name of the event at the first token.
        answers: Names of the events at each part of the response; the first of two or more events is the first token.
        tokens_in: Attributes with the number of input tokens.
        tokens_out: Attributes with the number of output tokens.
        definition: Definition of the first token, one of `names.DEFINITIONS`.
        unit: Unit of the first token attributes.
    """

    first_token: tuple[str, ...] = ()
    first_token_event: str = ""
    answers: tuple[str, ...] = ()
    tokens_in: tuple[str, ...] = ()
    tokens_out: tuple[str, ...] = ()
    definition: str = ""
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for matching spans.

    A dimension such as the model has a list of attributes in the order of preference, or of templates with attributes in braces.

    Args:
        name: Name of the rule.
        when: Conditions, of which one must match.
        stage: Stage of the time of a matching span; "" for none.
        head: Stage of the time before the first child of a matching span; "" for none.
        request: Whether a matching span is a request of its service; None decides by kind and parent.
        called: Template of the displayed name, with attributes in braces; "" for the span's name.
        start: Name of the event that marks the start of a matching span, if present; "" for the span's own start.
        model: Sources of the model name.
        model_version: Sources of the model version.
        route: Sources of the route.
        device: Sources of the device.
        parts: Intervals within the span.
        stream: Measurements of a streamed response.
        show: Attributes shown with a retained trace.
        source: URL of the documentation of the matched spans.
    """

    name: str
    when: tuple[SpanCondition, ...]
    stage: str = ""
    head: str = ""
    request: bool | None = None
    called: str = ""
    start: str = ""
    model: tuple[str, ...] = ()
    model_version: tuple[str, ...] = ()
    route: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    parts: tuple[IntervalRule, ...] = ()
    stream: StreamRule = StreamRule()
    show: tuple[str, ...] = ()
    source: str = ""

    @property
    def measured(self) -> frozenset[str]:
        """Names of the attributes whose numbers are read."""
        named = [(part.lasts, part.until, part.begins, part.ends) for part in self.parts]
        named.append((self.stream.first_token, self.stream.tokens_in, self.stream.tokens_out, ()))
        return frozenset(key for several in named for keys in several for key in keys)

    @property
    def events(self) -> frozenset[str]:
        """Names of the events that are read."""
        found = {self.start, self.stream.first_token_event, *self.stream.answers}
        for part in self.parts:
            found |= {part.from_event, part.to_event}
        return frozenset(found - {""})

    @property
    def exact(self) -> frozenset[str]:
        """Names of the span attributes whose values affect the result."""
        sources = (*self.model, *self.model_version, *self.route, *self.device)
        conditions = (condition for when in self.when for condition in when.attributes)
        return frozenset(
            {key for source in sources for key in template_attributes(source)}
            | {key for key, texts in conditions if texts != ANY}
            | {*self.show, *_TEMPLATE.findall(self.called)}
        )


_NO_RULE = Rule("no rule", ())


@dataclass(frozen=True, slots=True, eq=False)
class SpanMeaning:
    """Result of the rules for a span.

    Args:
        label: Label of the span.
        flags: Flags of the span, without `Flag.ERROR`.
        rule: Rule with measurements to read; None if there are none.
        measured: Names of the attributes to read for the rule.
        events: Names of the events to read for the rule.
    """

    label: Label
    flags: int
    rule: Rule | None = None
    measured: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()


class RuleSet:
    """All rules in force.

    Args:
        rules: The rules in the order of precedence.

    Attributes:
        exact: Span attributes whose values affect the result.
        present: Span attributes whose presence affects the result, or which are measured.
        resource: Resource attributes that affect the result.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.exact = frozenset({names.COUNTED}.union(*(rule.exact for rule in rules)))
        whens = [when for rule in rules for when in rule.when]
        conditions = {key for when in whens for key, _ in when.attributes}
        self.present = frozenset(conditions.union(*(rule.measured for rule in rules))) - self.exact
        self.resource = frozenset(key for when in whens for key, _ in when.resource)
        self._nearby: dict[tuple[str, str], list[tuple[frozenset[str], SpanCondition, Rule]]] = {}
        # Computed once, because each new kind of span needs it.
        self._tells = {id(rule): (rule.measured, rule.events) for rule in self.rules}

    def find(self, span: SpanFacts) -> Rule:
        """Return the first matching rule for *span*, or an empty rule."""
        there = span.attributes.keys()
        for needed, when, rule in self._near(span.scope, span.kind):
            if needed <= there and when.matches(span):
                return rule
        return _NO_RULE

    def _near(self, scope: str, kind: str) -> list[tuple[frozenset[str], SpanCondition, Rule]]:
        """Return the conditions that spans of *scope* and *kind* may match, with their required attributes and rules."""
        found = self._nearby.get((scope, kind))
        if found is None:
            found = [
                (frozenset(key for key, _ in when.attributes), when, rule)
                for rule in self.rules
                for when in rule.when
                if when.concerns(scope, kind)
            ]
            if len(scope) <= MAX_MATCHED_CHARS:
                if len(self._nearby) >= _MAX_NEARBY:
                    self._nearby.clear()
                self._nearby[scope, kind] = found
        return found

    def meaning(self, span: SpanFacts) -> SpanMeaning:
        """Return the label and measurements of *span*."""
        rule = self.find(span)
        counted = span.attributes.get(names.COUNTED) is True
        label, flags = _label(rule, span), Flag.COUNTED if counted else 0
        measured, events = self._tells.get(id(rule), (frozenset[str](), frozenset[str]()))
        measured &= span.attributes.keys()
        return SpanMeaning(label, flags, rule, measured, events) if measured or events else SpanMeaning(label, flags)


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


def template_attributes(source: str) -> list[str]:
    """Return the names of the attributes in *source*, which is a template or a single attribute name."""
    return _TEMPLATE.findall(source) if "{" in source else [source]


def _first(sources: Iterable[str], attributes: Mapping[str, Scalar]) -> str:
    for source in sources:
        found = _fill_template(source, attributes) if "{" in source else attributes.get(source)
        if found is not None and found != "":
            return printable_text(found)
    return ""


def _fill_template(template: str, attributes: Mapping[str, Scalar]) -> str | None:
    """Return *template* with attribute values filled in; None if an attribute is missing."""
    if any(key not in attributes for key in _TEMPLATE.findall(template)):
        return None
    return _TEMPLATE.sub(lambda match: printable_text(attributes[match[1]]), template)


def _shown(value: Scalar) -> Scalar:
    return printable_text(value) if isinstance(value, str) else value


# Approximate memory limits of the cached shapes and of the cached rule results. [bytes]
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
        values: Function that returns a tuple of the values of *exact* from the attributes of a span; for a single attribute it
            returns the value without a tuple.
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
    """Cache of rule results.

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
        """Return the rule result for spans with *key*, and cache it.

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
