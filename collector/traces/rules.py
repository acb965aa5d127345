"""What a span is: rules that tell it by its scope, name, kind and attributes, and what they say of it.

The first rule that matches holds, the user's before those of `rules.yaml`; a span that none matches has no stage of its own:
its time belongs to what is around it.

Which spans a rule is about: texts with * and ? for the scope, the name, the kind, attributes and the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from ...core import names
from ..ingest.validation import printable_text
from ..otlp.model import Scalar
from .columns import Flag, Label

# Attributes, each with the texts it may have, with * and ?; `ANY` for whichever.
Conditions: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
ANY = ("*",)

# opentelemetry/proto/trace/v1/trace.proto, Span.SpanKind; what is unspecified counts as internal.
KINDS = ("internal", "internal", "server", "client", "producer", "consumer")

# Of the texts that are looked at; longer ones are cut.
MAX_MATCHED_CHARS = 1000


class SpanFacts(NamedTuple):
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
class SpanCondition:
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

    def matches(self, span: SpanFacts) -> bool:
        """Say whether *span* is one of them."""
        return (
            self.concerns(span.scope, span.kind)
            and (not self.spans or _any(self.spans, span.name))
            and _all(self.attributes, span.attributes)
            and _all(self.resource, span.resource)
        )

    def covers(self, other: SpanCondition) -> bool:
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


_REQUESTS = ("server", "consumer")
# Scopes and kinds whose rules are remembered: a few kilobytes each.
_MAX_NEARBY = 1000
_TEMPLATE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """An interval, or several, that a span tells of: a stage of their own within it.

    Where it lies is said by *lasts*, *until* or *to_event* alone, from the end of the part before or the start of the span; or by
    both *begins* and *ends*; or by both events, once for each time they come one after the other.

    Args:
        stage: Which stage.
        lasts: Attributes with its length, the first that is there counts.
        until: Attributes with the time from the start of the span to its end.
        begins: Attributes with its start, since 1970.
        ends: Attributes with its end, since 1970.
        from_event: The event at its start.
        to_event: The event at its end.
        unit: Of the attributes, one of `measuring.UNITS`.
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
    """Where a span tells of an answer that came token by token.

    Args:
        first_token: Attributes with the time from its start to the first token.
        first_token_event: The event at the first token.
        answers: Events at each part of the answer; where there are two or more, the first one is the first token.
        tokens_in: Attributes with the tokens it took in.
        tokens_out: Attributes with the tokens it put out.
        definition: How the first token was found, of `names.DEFINITIONS`.
        unit: Of the first token's attributes.
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
    """What spans are.

    Sources of a model, a route and so on are names of attributes in the order of preference, or texts with such names in braces.

    Args:
        name: For people.
        when: Which spans; one of these.
        stage: The stage their time belongs to, "" for none of its own.
        head: The stage of their time before their first child, "" for none.
        request: Whether they are requests of their service; None goes by kind and parent.
        called: What they are shown as, a text with attributes in braces; "" for their own name.
        start: The event they begin at, where they have it; "" for their own start.
        model: Sources of the model's name.
        model_version: Sources of its version.
        route: Sources of the route.
        device: Sources of the device.
        parts: What they tell of themselves.
        stream: What they tell of their answer.
        show: Attributes that are shown with a kept trace.
        source: Where it is written that they are so.
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
        """The attributes it reads numbers from."""
        named = [(part.lasts, part.until, part.begins, part.ends) for part in self.parts]
        named.append((self.stream.first_token, self.stream.tokens_in, self.stream.tokens_out, ()))
        return frozenset(key for several in named for keys in several for key in keys)

    @property
    def events(self) -> frozenset[str]:
        """The events it looks for."""
        found = {self.start, self.stream.first_token_event, *self.stream.answers}
        for part in self.parts:
            found |= {part.from_event, part.to_event}
        return frozenset(found - {""})

    @property
    def exact(self) -> frozenset[str]:
        """The attributes of spans whose values it looks at."""
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
    """What the rules made of a span.

    Args:
        label: What is kept of it.
        flags: Of `Flag`, without `ERROR`.
        rule: How to read what else it tells; None where it tells nothing.
        measured: The attributes to read for it.
        events: The events to look for.
    """

    label: Label
    flags: int
    rule: Rule | None = None
    measured: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()


class RuleSet:
    """All rules that hold.

    Args:
        rules: In the order they are tried.

    Attributes:
        exact: The attributes of spans whose values count.
        present: Those of which counts only that they are there, or how much they say.
        resource: The attributes of processes that count.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.exact = frozenset({names.COUNTED}.union(*(rule.exact for rule in rules)))
        whens = [when for rule in rules for when in rule.when]
        conditions = {key for when in whens for key, _ in when.attributes}
        self.present = frozenset(conditions.union(*(rule.measured for rule in rules))) - self.exact
        self.resource = frozenset(key for when in whens for key, _ in when.resource)
        self._nearby: dict[tuple[str, str], list[tuple[frozenset[str], SpanCondition, Rule]]] = {}
        # Made once: it is looked at for each new kind of span.
        self._tells = {id(rule): (rule.measured, rule.events) for rule in self.rules}

    def find(self, span: SpanFacts) -> Rule:
        """Return the rule that holds for *span*; one that says nothing where none does."""
        there = span.attributes.keys()
        for needed, when, rule in self._near(span.scope, span.kind):
            if needed <= there and when.matches(span):
                return rule
        return _NO_RULE

    def _near(self, scope: str, kind: str) -> list[tuple[frozenset[str], SpanCondition, Rule]]:
        """Return what may match spans of *scope* and *kind*, in order, each with the attributes that it needs."""
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
        """Return what *span* is."""
        rule = self.find(span)
        counted = span.attributes.get(names.COUNTED) is True
        label, flags = _label(rule, span), Flag.COUNTED if counted else 0
        measured, events = self._tells.get(id(rule), (frozenset[str](), frozenset[str]()))
        measured &= span.attributes.keys()
        return SpanMeaning(label, flags, rule, measured, events) if measured or events else SpanMeaning(label, flags)


def _label(rule: Rule, span: SpanFacts) -> Label:
    by_kind = span.kind in _REQUESTS or span.root
    # What follows a ? in a name is part of a URL: content.
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
    """Return the attributes that *source* names."""
    return _TEMPLATE.findall(source) if "{" in source else [source]


def _first(sources: Iterable[str], attributes: Mapping[str, Scalar]) -> str:
    for source in sources:
        found = _fill_template(source, attributes) if "{" in source else attributes.get(source)
        if found is not None and found != "":
            return printable_text(found)
    return ""


def _fill_template(template: str, attributes: Mapping[str, Scalar]) -> str | None:
    """Return *template* with the values of the attributes it names; None where one is not there."""
    if any(key not in attributes for key in _TEMPLATE.findall(template)):
        return None
    return _TEMPLATE.sub(lambda match: printable_text(attributes[match[1]]), template)


def _shown(value: Scalar) -> Scalar:
    return printable_text(value) if isinstance(value, str) else value
