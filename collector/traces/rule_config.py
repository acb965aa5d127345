"""Rule configuration: the section `rules:` of the collector's file, and the built-in rules in the same format.

rules:
  stages: [rerank]                          # at most three stages of your own
  spans:
    - name: our reranker
      when: {scope: shop.search, span: "rerank *"}
      stage: rerank

A rule must not name an attribute that may contain user content (`holds_content`), such as prompts, responses and queries. Other
attributes are never read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from ...core import names, stages
from ...core.errors import ConfigError
from ...core.settings.yaml_config import Document, Fields, Place, Problem, meant, parse, spell
from ..ingest.validation import MAX_STAGE_CHARS
from .rules import KINDS, Conditions, IntervalRule, Rule, SpanCondition, StreamRule, template_attributes
from .span_validation import TEXT, UNITS

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


def holds_content(attribute: str) -> bool:
    """Return whether *attribute* may contain user content.

    >>> holds_content("db.query.text"), holds_content("db.operation.name")
    (True, False)
    """
    return _PATTERN.fullmatch(attribute) is not None


BUILT_IN = "rules.yaml"
MAX_RULES = 200
_EXAMPLE = "spans: [{name: our reranker, when: {span: rerank}, stage: forward}]"


def read_rules(document: Document, place: Place, value: Any) -> tuple[Rule, ...]:
    """Read the section `rules:`; errors are added to the document's problems, unreachable rules to its warnings."""
    fields = Fields(document, place, value, example=_EXAMPLE)
    if fields.broken:
        return ()
    allowed = (*stages.BY_KEY, *_own_stages(fields))
    items = fields.items("spans")
    if len(items) > MAX_RULES:
        fields.complain(
            f"{fields.name('spans')} has {len(items)} rules; {MAX_RULES} are read, write wider ones", "spans"
        )
    found = [RuleReader(document, at, item, allowed).rule() for at, item in items[:MAX_RULES]]
    fields.finish()
    rules = [(document.line(at), rule) for (at, _), rule in zip(items, found, strict=False) if rule is not None]
    _check_names(document, rules)
    document.warnings.extend(_never(rules))
    return tuple(rule for _, rule in rules)


@cache
def built_in() -> tuple[Rule, ...]:
    """Return the rules of `rules.yaml`.

    Raises:
        ConfigError: The built-in rules are invalid, which a test excludes.
    """
    document = parse((files(__package__ or "") / BUILT_IN).read_text(encoding="utf-8"))
    rules = read_rules(document, (), document.value)
    wrong = [*document.problems, *document.warnings]
    if wrong:
        raise ConfigError("\n".join(f"{BUILT_IN}:{problem.line}: {problem.text}" for problem in wrong))
    return rules


def _own_stages(fields: Fields) -> list[str]:
    found = [str(stage) for stage in fields.texts("stages")]
    name = fields.name("stages")
    if len(found) > stages.MAX_CUSTOM_STAGES:
        fields.complain(
            f"{name} has {len(found)} stages; a chart stays readable with {stages.MAX_CUSTOM_STAGES}", "stages"
        )
    for stage in found:
        if stage in stages.BY_KEY:
            fields.complain(f"{name} has {stage!r}, which is there already; leave it out", "stages")
        elif len(stage) > MAX_STAGE_CHARS or not stage.isprintable() or stage == stages.OTHER:
            fields.complain(f"{name} has {stage[:40]!r}; write 1 to {MAX_STAGE_CHARS} printable characters", "stages")
    return found[: stages.MAX_CUSTOM_STAGES]


def _check_names(document: Document, rules: Iterable[tuple[int, Rule]]) -> None:
    seen: dict[str, int] = {}
    for line, rule in rules:
        if rule.name in seen:
            text = f"two rules are called {rule.name!r}, the first on line {seen[rule.name]}; give each its own name"
            document.problems.append(Problem(line, text))
        seen.setdefault(rule.name, line)


def _never(rules: list[tuple[int, Rule]]) -> Iterable[Problem]:
    for position, (line, rule) in enumerate(rules):
        for first_line, earlier in rules[:position]:
            if rule.when and all(any(wide.covers(when) for wide in earlier.when) for when in rule.when):
                yield Problem(
                    line,
                    f"the rule {rule.name!r} never holds: {earlier.name!r} on line {first_line} takes all its spans; "
                    "put it above that one, or leave it out",
                )
                break


_UNITS = (*UNITS, TEXT)
# Glob syntax that is not supported here.
_SETS = re.compile(r"\[[^\]]*\]|\{[^}]*,[^}]*\}")


class RuleReader:
    """Reader of one rule.

    Args:
        document: Document of the rule; errors are added to its problems.
        place: Position of the rule in the document.
        item: YAML value of the rule.
        allowed: Names of all stages.
    """

    def __init__(self, document: Document, place: Place, item: Any, allowed: Collection[str]) -> None:
        self._document, self._place, self._allowed = document, place, allowed
        self._fields = Fields(document, place, item, example="name: our reranker")

    def rule(self) -> Rule | None:
        """Return the rule; None if the YAML value is not a mapping."""
        fields = self._fields
        if fields.broken:
            return None
        rule = Rule(
            name=fields.text("name", example="our reranker"),
            source=fields.text("source"),
            when=self._when(),
            stage=self._stage(fields, "stage"),
            head=self._stage(fields, "head"),
            request=self._request(),
            called=self._called(),
            start=fields.text("start_event"),
            model=self._sources("model"),
            model_version=self._sources("model_version"),
            route=self._sources("route"),
            device=self._sources("device"),
            parts=tuple(self._part(place, item) for place, item in fields.items("parts")),
            stream=self._stream(),
            show=self._sources("show"),
        )
        fields.finish()
        return rule

    def _when(self) -> tuple[SpanCondition, ...]:
        fields = self._fields
        if not fields.has("when"):
            fields.value("when")
            fields.missing("when", "{span: rerank}")
            return ()
        value = fields.value("when")
        at = (*self._place, "when")
        several = [((*at, position), item) for position, item in enumerate(value)] if isinstance(value, list) else []
        return tuple(self._one_when(place, item) for place, item in several or [(at, value)])

    def _one_when(self, place: Place, item: Any) -> SpanCondition:
        fields = Fields(self._document, place, item, example="span: rerank")
        when = SpanCondition(
            scopes=self._globs(fields, "scope"),
            spans=self._globs(fields, "span"),
            kinds=self._kinds(fields),
            attributes=self._conditions(fields, place, "attributes"),
            resource=self._conditions(fields, place, "resource"),
        )
        fields.finish()
        if not fields.broken and not fields.keys:
            fields.complain(f"{spell(place)} matches nothing; write a condition, such as `span: rerank`")
        return when

    def _globs(self, fields: Fields, key: str) -> tuple[str, ...]:
        """Return the texts at *key*, which may contain * and ?."""
        value = fields.value(key)
        found = value if isinstance(value, list) else [value] if fields.has(key) else []
        made: list[str] = []
        for each in found:
            if isinstance(each, bool):
                made.append(str(each).lower())
            elif isinstance(each, str | int | float) and str(each):
                made.append(str(each))
            else:
                fields.complain(f'{fields.name(key)} has {each!r}; write a text, such as rerank, or "*" for any', key)
        for each in made:
            if _SETS.search(each):
                text = f"{fields.name(key)} has {each!r}, matched literally: only * and ? are wildcards"
                self._document.warnings.append(Problem(fields.line_of(key), f"{text}; write a list for several"))
        return tuple(made)

    def _kinds(self, fields: Fields) -> tuple[str, ...]:
        found = fields.texts("kind")
        for kind in found:
            if kind not in KINDS:
                allowed = sorted(set(KINDS))
                fix = f"write {', '.join(allowed)}{meant(kind, allowed)}"
                fields.complain(f"{fields.name('kind')} has {kind!r}; {fix}", "kind")
        return tuple(found)

    def _conditions(self, fields: Fields, place: Place, key: str) -> Conditions:
        value = fields.value(key)
        if value is None:
            return ()
        within = Fields(self._document, (*place, key), value, example='rerank.model: "*"')
        for name in within.keys:
            if not within.has(name):
                within.complain(f'{within.name(name)} is empty; write a pattern, "*" for any value', name)
        return tuple((name, self._globs(within, name)) for name in within.keys)

    def _stage(self, fields: Fields, key: str) -> str:
        found = fields.text(key)
        if found and found not in self._allowed:
            fix = meant(found, self._allowed) or "; name a stage of your own in `stages` first"
            fields.complain(f"{fields.name(key)} is {found!r}, which is no stage{fix}", key)
            return ""
        return found

    def _request(self) -> bool | None:
        fields = self._fields
        found = fields.value("request")
        if found is not None and not isinstance(found, bool):
            fields.complain(f"{fields.name('request')} is {found!r}; write true or false", "request")
            return None
        return found

    def _called(self) -> str:
        found = self._fields.text("called")
        if "{" in found:
            self._check_content("called", template_attributes(found))
        return found

    def _sources(self, key: str) -> tuple[str, ...]:
        found = self._fields.texts(key)
        self._check_content(key, (name for source in found for name in template_attributes(source)))
        return tuple(found)

    def _check_content(self, key: str, attributes: Iterable[str]) -> None:
        for name in attributes:
            if holds_content(name):
                text = f"{self._fields.name(key)} has {name}, which may contain user content; Stagelens never stores user content"
                self._fields.complain(f"{text}: leave it out", key)

    def _part(self, place: Place, item: Any) -> IntervalRule:
        fields = Fields(self._document, place, item, example="stage: queue")
        part = IntervalRule(
            stage=self._stage(fields, "stage"),
            lasts=tuple(fields.texts("lasts")),
            until=tuple(fields.texts("until")),
            begins=tuple(fields.texts("begins")),
            ends=tuple(fields.texts("ends")),
            from_event=fields.text("from_event"),
            to_event=fields.text("to_event"),
            unit=_unit(fields),
        )
        fields.finish()
        if fields.broken:
            return part
        if not fields.has("stage"):
            fields.missing("stage", "queue")
        ways = [
            bool(part.lasts),
            bool(part.until),
            bool(part.begins or part.ends),
            bool(part.from_event or part.to_event),
        ]
        whole = bool(part.begins) == bool(part.ends) and (not part.from_event or bool(part.to_event))
        if sum(ways) != 1 or not whole:
            fields.complain(
                f"{spell(place)} needs exactly one position; write `lasts`, `until`, `begins` and "
                "`ends`, `to_event`, or `from_event` and `to_event`"
            )
        return part

    def _stream(self) -> StreamRule:
        fields = self._fields.mapping("stream", example="first_token: [gen_ai.response.time_to_first_chunk]")
        if fields is None:
            return StreamRule()
        stream = StreamRule(
            first_token=tuple(fields.texts("first_token")),
            first_token_event=fields.text("first_token_event"),
            answers=tuple(fields.texts("answers")),
            tokens_in=tuple(fields.texts("tokens_in")),
            tokens_out=tuple(fields.texts("tokens_out")),
            definition=fields.one_of("definition", tuple(names.DEFINITIONS)) if fields.has("definition") else "",
            unit=_unit(fields),
        )
        fields.finish()
        if (stream.first_token or stream.first_token_event or stream.answers) and not fields.has("definition"):
            fields.missing("definition", names.BY_CLIENT_CHUNK)
        return stream


def _unit(fields: Fields) -> str:
    return (fields.one_of("unit", _UNITS) or "s") if fields.has("unit") else "s"
