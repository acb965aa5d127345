"""Section `rules:` of the collector's file: parsing, errors and warnings."""

from __future__ import annotations

import pytest

from stagelens.collector.traces import rule_config
from stagelens.collector.traces.rule_config import IntervalRule, Rule, SpanCondition, StreamRule
from stagelens.core import names
from stagelens.core.settings.yaml_config import Document, parse


def read(text: str) -> tuple[tuple[Rule, ...], Document]:
    document = parse(text)
    # With the path of the section `rules:` in the collector's file.
    document.lines = {("rules", *place): line for place, line in document.lines.items()}
    return rule_config.read_rules(document, ("rules",), document.value), document


def problems(text: str) -> list[str]:
    return [f"{problem.line}: {problem.text}" for problem in read(text)[1].problems]


def one(rule: str) -> str:
    return f"spans:\n  - name: ours\n    when: {{span: rerank}}\n    {rule}\n"


def test_a_rule_with_every_key_is_parsed() -> None:
    text = """
stages: [rerank]
spans:
  - name: our reranker
    source: https://wiki/rerank
    when:
      - {scope: shop.*, span: [rerank, "rerank *"], kind: internal, attributes: {rerank.model: "*", rerank.top: [3, 5]}}
      - {resource: {service.name: rerank}, attributes: {rerank.cold: true}}
    stage: rerank
    head: queue
    request: true
    called: rerank {rerank.size}
    start_event: taken
    model: rerank.model
    model_version: [rerank.version]
    route: ["{rerank.size}/{rerank.kind}", rerank.kind]
    device: rerank.device
    parts:
      - {stage: queue, lasts: rerank.waited, unit: ms}
      - {stage: tokenize, until: [rerank.tokenized]}
      - {stage: forward, begins: rerank.begun, ends: rerank.done, unit: ns}
      - {stage: network, from_event: sending, to_event: sent}
      - {stage: prefill, to_event: first}
    stream:
      first_token: rerank.first
      first_token_event: first
      answers: [sent]
      unit: text
      tokens_in: rerank.in
      tokens_out: [rerank.out]
      definition: client_first_chunk
    show: [rerank.size]
"""
    (rule,), document = read(text)

    assert (document.problems, document.warnings) == ([], [])
    assert rule == Rule(
        name="our reranker",
        source="https://wiki/rerank",
        when=(
            SpanCondition(
                scope=("shop.*",),
                span=("rerank", "rerank *"),
                kind=("internal",),
                attributes={"rerank.model": ("*",), "rerank.top": ("3", "5")},
            ),
            SpanCondition(resource={"service.name": ("rerank",)}, attributes={"rerank.cold": ("true",)}),
        ),
        stage="rerank",
        head="queue",
        request=True,
        called="rerank {rerank.size}",
        start_event="taken",
        model=("rerank.model",),
        model_version=("rerank.version",),
        route=("{rerank.size}/{rerank.kind}", "rerank.kind"),
        device=("rerank.device",),
        parts=(
            IntervalRule(stage="queue", lasts=("rerank.waited",), unit="ms"),
            IntervalRule(stage="tokenize", until=("rerank.tokenized",)),
            IntervalRule(stage="forward", begins=("rerank.begun",), ends=("rerank.done",), unit="ns"),
            IntervalRule(stage="network", from_event="sending", to_event="sent"),
            IntervalRule(stage="prefill", to_event="first"),
        ),
        stream=StreamRule(
            first_token=("rerank.first",),
            first_token_event="first",  # noqa: S106 - the name of an event
            answers=("sent",),
            tokens_in=("rerank.in",),
            tokens_out=("rerank.out",),
            definition=names.BY_CLIENT_CHUNK,
            unit="text",
        ),
        show=("rerank.size",),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- rules", "1: rules is a list; write keys and values, such as `spans: [{name: our reranker"),
        ("span: []", "1: rules.span is not known; did you mean spans?"),
        ("spans: [3]", "1: rules.spans[0] is 3; write keys and values, such as `name: our reranker`"),
        ("spans:\n  - when: {span: a}", "2: rules.spans[0].name is missing; add `name: our reranker`"),
        ("spans:\n  - name: a", "2: rules.spans[0].when is missing; add `when: {span: rerank}`"),
        ("spans:\n  - name: a\n    when: {}", "3: rules.spans[0].when has no condition; write one, such as"),
        ("spans:\n  - name: a\n    when: [{span: b}, 3]", "3: rules.spans[0].when[1] is 3; write keys and values"),
        (one("stage: prefil"), "4: rules.spans[0].stage is 'prefil', which is not a stage; did you mean prefill?"),
        (
            one("head: rerank"),
            "4: rules.spans[0].head is 'rerank', which is not a stage; add a custom stage to `stages`",
        ),
        (one("request: maybe"), "4: rules.spans[0].request is 'maybe'; write true or false"),
        (one("modle: x"), "4: rules.spans[0].modle is not known; did you mean model?"),
        (one("show: [db.statement]"), "4: rules.spans[0].show has db.statement, which may contain user content"),
        (one('called: "{gen_ai.prompt}"'), "4: rules.spans[0].called has gen_ai.prompt, which may contain user"),
        (one('route: ["{url.query}/x"]'), "4: rules.spans[0].route has url.query, which may contain user content"),
        (one("parts: [{lasts: x}]"), "4: rules.spans[0].parts[0].stage is missing; add `stage: queue`"),
        (one("parts: [{stage: queue}]"), "4: rules.spans[0].parts[0] needs exactly one position; write `lasts`"),
        (one("parts: [{stage: queue, lasts: a, until: b}]"), "4: rules.spans[0].parts[0] needs exactly one position"),
        (one("parts: [{stage: queue, begins: a}]"), "4: rules.spans[0].parts[0] needs exactly one position"),
        (one("parts: [{stage: queue, from_event: a}]"), "4: rules.spans[0].parts[0] needs exactly one position"),
        (
            one("parts: [{stage: queue, lasts: a, unit: sec}]"),
            "4: rules.spans[0].parts[0].unit is 'sec'; write one of s, ms, us, ns, text",
        ),
        (one("stream: {first_token: a}"), "4: rules.spans[0].stream.definition is missing; add `definition: client_"),
        (
            one("stream: {answers: a, definition: first_chnk}"),
            "4: rules.spans[0].stream.definition is 'first_chnk'; write one of generate, first_chunk",
        ),
        (
            "spans:\n  - name: a\n    when: {kind: [servr]}",
            "3: rules.spans[0].when.kind has 'servr'; write client, consumer, internal, producer, server; did you mean",
        ),
        (
            "spans:\n  - name: a\n    when: {atributes: {b: c}}",
            "3: rules.spans[0].when.atributes is not known; did you mean attributes?",
        ),
        (
            "spans:\n  - name: a\n    when: {attributes: {b: }}",
            '3: rules.spans[0].when.attributes.b is empty; write a pattern, "*" for any value',
        ),
        (
            "spans:\n  - name: a\n    when: {span: [{b: c}]}",
            "3: rules.spans[0].when.span has {'b': 'c'}; write a text, such as rerank, or \"*\" for any",
        ),
        ("stages: [a, b, c, d]", "1: rules.stages has 4 stages; use at most 3"),
        ("stages: [queue]", "1: rules.stages has 'queue', which is a built-in stage; remove it"),
        (
            "spans:\n  - {name: a, when: {span: b}}\n  - {name: a, when: {span: c}}",
            "3: the rule on line 2 has the same name 'a'; use unique names",
        ),
    ],
)
def test_an_error_is_reported_with_its_line_and_fix(text: str, problem: str) -> None:
    (found,) = problems(text)

    assert found.startswith(problem)


def test_all_errors_are_found_together() -> None:
    text = "spans:\n  - name: a\n    when: {span: b}\n    stage: quue\n    request: 3\n    sho: [c]\n"

    assert [problem.split(":")[0] for problem in problems(text)] == ["4", "5", "6"]


@pytest.mark.parametrize(
    ("first", "second", "is_unreachable"),
    [
        ("{kind: [server, client]}", "{kind: server, span: a}", True),
        ('{span: "a*"}', '{span: ["ab", "abc*"]}', True),
        ('{attributes: {a: "*"}}', "{attributes: {a: [x, y], b: z}}", True),
        ("[{span: a}, {span: b}]", "[{span: b, kind: server}, {span: a}]", True),
        ('{resource: {service.name: "shop*"}}', "{resource: {service.name: shop-eu}}", True),
        ("{kind: server}", "{span: a}", False),
        ('{span: "a?"}', '{span: "a*"}', False),
        ("{attributes: {a: x}}", '{attributes: {a: "*"}}', False),
        ("{span: a}", "[{span: a}, {span: b}]", False),
        ("{scope: a, span: b}", "{span: b}", False),
    ],
)
def test_an_unreachable_rule_gets_a_warning(first: str, second: str, is_unreachable: bool) -> None:
    text = f"spans:\n  - name: wide\n    when: {first}\n  - name: narrow\n    when: {second}\n"
    document = read(text)[1]
    warning = (
        "the rule 'narrow' never matches: 'wide' on line 2 matches all its spans; move it above that rule, or remove it"
    )

    assert [(each.line, each.text) for each in document.warnings] == ([(4, warning)] if is_unreachable else [])
    assert document.problems == []


def test_a_set_like_value_gets_a_warning() -> None:
    (rule,), document = read('spans:\n  - {name: a, when: {span: "job [0-9]"}}')
    (warning,) = document.warnings

    assert rule.when[0].span == ("job [0-9]",)
    assert warning.line == 2
    assert warning.text.startswith("rules.spans[0].when.span has 'job [0-9]', matched literally: only * and ? are")
