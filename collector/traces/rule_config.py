"""Span rules and their configuration: the section `rules:` of the collector's file (docs/traces.md), and the built-in rules in the same format.

Texts of a condition may contain * and ?. A rule must not name an attribute that may contain user content (`holds_content`), such as
prompts, responses and queries. Other attributes are never read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, StrictBool, ValidationInfo, field_validator

from ...core import names, stages
from ...core.errors import ConfigError
from ...core.settings.field_types import Text, Texts, as_text, as_texts, one_of, reject
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place, Problem, meant, parse
from ..ingest.validation import MAX_STAGE_CHARS
from ..otlp.model import Scalar

# Texts of a condition that allow every value.
ANY = ("*",)

# opentelemetry/proto/trace/v1/trace.proto, Span.SpanKind; unspecified counts as internal.
KINDS = ("internal", "internal", "server", "client", "producer", "consumer")

# Units of measurements, in nanoseconds. `text` is a number with its unit, as Rust and Go write durations: 1.5ms.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
TEXT = "text"

# Longer texts are cut before they are matched.
MAX_MATCHED_CHARS = 1000

TEMPLATE = re.compile(r"\{([^{}]*)\}")
# Glob syntax that is not supported here.
_SETS = re.compile(r"\[[^\]]*\]|\{[^}]*,[^}]*\}")

# From the semantic conventions of OpenTelemetry, OpenInference, OpenLLMetry, LangSmith and the Vercel AI SDK.
_CONTENT = """
db.statement db.query.text db.query.summary db.query.parameter.* db.operation.parameter.* db.mongodb.* db.response.returned_rows.*
url.full url.original url.path url.query url.fragment http.url http.target http.request.header.* http.response.header.* http.request.body*
http.response.body*
gen_ai.prompt gen_ai.prompt.* gen_ai.completion gen_ai.completion.* gen_ai.input.* gen_ai.output.messages gen_ai.output.messages.*
gen_ai.system_instructions gen_ai.tool.call.arguments gen_ai.tool.call.result gen_ai.tool.definitions gen_ai.retrieval.query*
gen_ai.retrieval.documents* gen_ai.evaluation.explanation
input.* output.* llm.input_messages* llm.output_messages* llm.prompts* llm.completions* llm.prompt_template* llm.invocation_parameters
llm.function_call retrieval.documents* reranker.query reranker.input_documents* reranker.output_documents* embedding.text
embedding.embeddings* embedding.vector tool.parameters tool_call.* document.* message.*
traceloop.entity.input traceloop.entity.output traceloop.prompt.*
ai.prompt ai.prompt.* ai.response.text ai.response.object ai.response.toolCalls ai.toolCall.args ai.toolCall.result ai.value* ai.result.*
ai.embedding* ai.values*
exception.message exception.stacktrace messaging.message.body* process.command process.command_args process.command_line
enduser.* user.* session.id
"""
_PATTERN = re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in _CONTENT.split()))
_Unit = Annotated[str, one_of((*UNITS, TEXT))]
BUILT_IN = "rules.yaml"
MAX_RULES = 200


def holds_content(attribute: str) -> bool:
    """Return whether *attribute* may contain user content.

    >>> holds_content("db.query.text"), holds_content("db.operation.name")
    (True, False)
    """
    return _PATTERN.fullmatch(attribute) is not None


class SpanFacts(NamedTuple):
    """Properties of a span that rules match; *attributes* are those of `RuleSet.exact`, and of `RuleSet.present` with any value."""

    scope: str
    name: str
    kind: str
    attributes: Mapping[str, Scalar]
    resource: Mapping[str, Scalar]
    root: bool


def _globs(value: Any) -> tuple[str, ...]:
    if value is None:
        reject('is empty; write a pattern, "*" for any value')
    globs = value if isinstance(value, list | tuple) else [value]
    if wrong := [glob for glob in globs if not isinstance(glob, str | int | float) or not str(glob)]:
        reject(f'has {wrong[0]!r}; write a text, such as rerank, or "*" for any')
    return tuple(_text_of(glob) for glob in globs)


def _kinds(value: Any) -> tuple[str, ...]:
    kinds, allowed = as_texts(value), sorted(set(KINDS))
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        reject(f"has {wrong[0]!r}; write {', '.join(allowed)}{meant(wrong[0], allowed)}")
    return kinds


def _stage(value: Any, info: ValidationInfo) -> str:
    text = as_text(value)
    if info.context and text not in (allowed := info.context["stages"]):
        fix = meant(text, allowed) or "; add a custom stage to `stages` first"
        reject(f"is {text!r}, which is not a stage{fix}")
    return text


def _sources(value: Any) -> tuple[str, ...]:
    sources = as_texts(value)
    for name in (name for source in sources for name in template_attributes(source)):
        if holds_content(name):
            reject(f"has {name}, which may contain user content; Stagelens never stores user content: remove it")
    return sources


def _template(value: Any) -> str:
    text = as_text(value)
    return _sources(text)[0] if "{" in text else text


def _as_list(value: Any) -> Any:
    return value if isinstance(value, tuple) or (isinstance(value, list) and value) else [value]


_Globs = Annotated[tuple[str, ...], BeforeValidator(_globs)]
_Stage = Annotated[str, BeforeValidator(_stage)]
_Sources = Annotated[tuple[str, ...], BeforeValidator(_sources)]


class SpanCondition(Section):
    """Condition of a rule: every given property must match one of its texts.

    Args:
        scope: Names of the instrumentation scope; empty for any.
        span: Names of the span; empty for any.
        kind: Kinds, of `KINDS`; empty for any.
        attributes: Attributes of the span, with their texts; `ANY` for every value.
        resource: Attributes of the resource, in the same form.
    """

    example = "span: rerank"

    scope: _Globs = ()
    span: _Globs = ()
    kind: Annotated[tuple[str, ...], BeforeValidator(_kinds)] = ()
    attributes: dict[str, _Globs] = Field(default={}, examples=['rerank.model: "*"'])
    resource: dict[str, _Globs] = Field(default={}, examples=["service.name: rerank"])

    def faults(self) -> Iterator[Fault]:
        if not self.model_fields_set:
            yield Fault("", "has no condition; write one, such as `span: rerank`")
        texts: dict[Place, tuple[str, ...]] = {("scope",): self.scope, ("span",): self.span}
        texts |= {("attributes", name): globs for name, globs in self.attributes.items()}
        texts |= {("resource", name): globs for name, globs in self.resource.items()}
        for path, globs in texts.items():
            for glob in filter(_SETS.search, globs):
                text = f"has {glob!r}, matched literally: only * and ? are wildcards; write a list for several"
                yield Fault(path, text, is_warning=True)

    def concerns(self, scope: str, kind: str) -> bool:
        return (not self.kind or kind in self.kind) and (not self.scope or _any(self.scope, scope))

    def matches(self, span: SpanFacts) -> bool:
        return (
            self.concerns(span.scope, span.kind)
            and (not self.span or _any(self.span, span.name))
            and _all(self.attributes, span.attributes)
            and _all(self.resource, span.resource)
        )

    def covers(self, other: SpanCondition) -> bool:
        return (
            (not self.kind or (bool(other.kind) and set(other.kind) <= set(self.kind)))
            and _wider(self.scope, other.scope)
            and _wider(self.span, other.span)
            and _implied(self.attributes, other.attributes)
            and _implied(self.resource, other.resource)
        )


@cache
def _regex(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _any(globs: Iterable[str], text: str) -> bool:
    return any(_regex(glob).fullmatch(text[:MAX_MATCHED_CHARS]) for glob in globs)


def _all(conditions: Mapping[str, tuple[str, ...]], attributes: Mapping[str, Scalar]) -> bool:
    return all(
        key in attributes and (texts == ANY or _any(texts, _text_of(attributes[key])))
        for key, texts in conditions.items()
    )


def _text_of(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wider(globs: Sequence[str], others: Sequence[str]) -> bool:
    if not globs:
        return True
    # A pattern with ? might match the literal * of the other pattern, so it only covers an equal pattern.
    return bool(others) and all(
        any(glob == other or ("?" not in glob and _any((glob,), other)) for glob in globs) for other in others
    )


def _implied(conditions: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> bool:
    return all(key in others and _wider(texts, others[key]) for key, texts in conditions.items())


class IntervalRule(Section):
    """Rule for an interval within a span, given by attributes or events, with its own stage.

    The position of the interval is given in one of three ways: by *lasts*, *until* or *to_event* alone, starting at the end of
    the previous interval or at the start of the span; by *begins* and *ends*; or by *from_event* and *to_event*, for each pair
    of events.

    Args:
        lasts: Attributes with the duration of the interval; the first one present counts.
        until: Attributes with the time from the start of the span to the end of the interval.
        begins: Attributes with the start of the interval, since 1970.
        ends: Attributes with the end of the interval, since 1970.
        unit: Unit of the attributes, one of `UNITS`, or `TEXT`.
    """

    example = "stage: queue"

    stage: _Stage = Field(examples=["queue"])
    lasts: Texts = ()
    until: Texts = ()
    begins: Texts = ()
    ends: Texts = ()
    from_event: Text = ""
    to_event: Text = ""
    unit: _Unit = "s"

    def needs_only(self, attributes: Collection[str]) -> bool:
        if self.from_event or self.to_event:
            return False
        groups = (self.begins, self.ends) if self.begins else (self.lasts or self.until,)
        return all(any(key in attributes for key in group) for group in groups)

    def faults(self) -> Iterator[Fault]:
        ways = [self.lasts, self.until, self.begins or self.ends, self.from_event or self.to_event]
        whole = bool(self.begins) == bool(self.ends) and (not self.from_event or bool(self.to_event))
        if sum(map(bool, ways)) != 1 or not whole:
            text = "`lasts`, `until`, `begins` and `ends`, `to_event`, or `from_event` and `to_event`"
            yield Fault("", f"needs exactly one position; write {text}")


class StreamRule(Section):
    example = "first_token: [gen_ai.response.time_to_first_chunk]"

    first_token: Texts = ()
    first_token_event: Text = ""
    answers: Texts = ()
    tokens_in: Texts = ()
    tokens_out: Texts = ()
    definition: Annotated[str, one_of(names.DEFINITIONS)] = ""
    unit: _Unit = "s"

    def faults(self) -> Iterator[Fault]:
        if (self.first_token or self.first_token_event or self.answers) and not self.definition:
            yield Fault("definition", f"is missing; add `definition: {names.BY_CLIENT_CHUNK}`")


class Rule(Section):
    """Rule for matching spans.

    A dimension such as the model has a list of attributes in the order of preference, or of templates with attributes in braces.

    Args:
        when: Conditions, of which one must match.
        stage: Stage of the time of a matching span; "" for none.
        head: Stage of the time before the first child of a matching span; "" for none.
        request: Whether a matching span is a request of its service; None decides by kind and parent.
        record: Whether a matching span without a duration is a log record or a placeholder, and no request.
        called: Template of the displayed name, with attributes in braces; "" for the span's name.
        start_event: Name of the event that marks the start of a matching span, if present; "" for the span's own start.
        show: Attributes shown with a retained trace.
        source: URL of the documentation of the matched spans.
    """

    example = "name: our reranker"

    name: Text = Field(examples=["our reranker"])
    when: Annotated[tuple[SpanCondition, ...], BeforeValidator(_as_list)] = Field(examples=["{span: rerank}"])
    stage: _Stage = ""
    head: _Stage = ""
    request: StrictBool | None = None
    record: StrictBool = False
    called: Annotated[str, BeforeValidator(_template)] = ""
    start_event: Text = ""
    model: _Sources = ()
    model_version: _Sources = ()
    route: _Sources = ()
    device: _Sources = ()
    parts: tuple[IntervalRule, ...] = ()
    stream: StreamRule = StreamRule()
    show: _Sources = ()
    source: Text = ""

    @property
    def measured(self) -> frozenset[str]:
        named = [(part.lasts, part.until, part.begins, part.ends) for part in self.parts]
        named.append((self.stream.first_token, self.stream.tokens_in, self.stream.tokens_out, ()))
        return frozenset(key for several in named for keys in several for key in keys)

    @property
    def events(self) -> frozenset[str]:
        events = {self.start_event, self.stream.first_token_event, *self.stream.answers}
        for part in self.parts:
            events |= {part.from_event, part.to_event}
        return frozenset(events - {""})

    @property
    def exact(self) -> frozenset[str]:
        sources = (*self.model, *self.model_version, *self.route, *self.device)
        conditions = (condition for when in self.when for condition in when.attributes.items())
        return frozenset(
            {key for source in sources for key in template_attributes(source)}
            | {key for key, texts in conditions if texts != ANY}
            | {*self.show, *TEMPLATE.findall(self.called)}
        )


def template_attributes(source: str) -> list[str]:
    return TEMPLATE.findall(source) if "{" in source else [source]


class _RuleFile(Section):
    example = "spans: [{name: our reranker, when: {span: rerank}, stage: forward}]"

    stages: Texts = ()
    spans: tuple[Rule, ...] = ()

    @field_validator("stages")
    @classmethod
    def _own_stages(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        assert info.context is not None  # noqa: S101 - see `read_rules`
        info.context["stages"] += value
        if len(value) > stages.MAX_CUSTOM_STAGES:
            reject(f"has {len(value)} stages; use at most {stages.MAX_CUSTOM_STAGES}")
        for stage in value:
            if stage in stages.BY_KEY:
                reject(f"has {stage!r}, which is a built-in stage; remove it")
            if len(stage) > MAX_STAGE_CHARS or not stage.isprintable() or stage == stages.OTHER:
                reject(f"has {stage[:40]!r}; write 1 to {MAX_STAGE_CHARS} printable characters")
        return value

    @field_validator("spans", mode="before")
    @classmethod
    def _limited(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) > MAX_RULES:
            reject(f"has {len(value)} rules; use at most {MAX_RULES}, with wildcards")
        return value


def read_rules(document: Document, path: Place, value: Any) -> tuple[Rule, ...]:
    """Read the section `rules:`; errors are added to the document's problems, unreachable rules to its warnings."""
    section = read_section(_RuleFile, document, path, value, {"stages": [*stages.BY_KEY]})
    if section is None:
        return ()
    rules = [(document.line((*path, "spans", position)), rule) for position, rule in enumerate(section.spans)]
    _check_names(document, rules)
    document.warnings.extend(_never(rules))
    return section.spans


@cache
def built_in() -> tuple[Rule, ...]:
    document = parse((files(__package__ or "") / BUILT_IN).read_text(encoding="utf-8"))
    rules = read_rules(document, (), document.value)
    wrong = [*document.problems, *document.warnings]
    if wrong:
        raise ConfigError("\n".join(f"{BUILT_IN}:{problem.line}: {problem.text}" for problem in wrong))
    return rules


def _check_names(document: Document, rules: Iterable[tuple[int, Rule]]) -> None:
    seen: dict[str, int] = {}
    for line, rule in rules:
        if rule.name in seen:
            text = f"the rule on line {seen[rule.name]} has the same name {rule.name!r}; use unique names"
            document.problems.append(Problem(line, text))
        seen.setdefault(rule.name, line)


def _never(rules: list[tuple[int, Rule]]) -> Iterable[Problem]:
    for position, (line, rule) in enumerate(rules):
        for first_line, earlier in rules[:position]:
            if rule.when and all(any(wide.covers(when) for wide in earlier.when) for when in rule.when):
                yield Problem(
                    line,
                    f"the rule {rule.name!r} never matches: {earlier.name!r} on line {first_line} matches all its spans; "
                    "move it above that rule, or remove it",
                )
                break
