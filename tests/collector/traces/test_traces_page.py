"""Consistency of docs/traces.md and the built-in rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from stagelens.collector.traces import rule_config
from stagelens.collector.traces.rule_config import Rule, SpanCondition
from stagelens.core.settings.yaml_config import parse

PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")


def row(rule: Rule) -> str:
    """Return the table row of *rule*."""
    spans = "; or ".join(dict.fromkeys(_spans(when) for when in rule.when))
    stages = [
        *([f"{rule.head} (until its first child span)"] if rule.head else []),
        *dict.fromkeys(part.stage for part in rule.parts),
    ]
    stages += [f"{rule.stage} (rest)" if stages else rule.stage] if rule.stage else []
    request = (
        "default; no without a duration" if rule.record else {True: "yes", False: "no", None: "default"}[rule.request]
    )
    return f"| {rule.name} | {spans} | {', '.join(stages)} | {request} |"


def _spans(when: SpanCondition) -> str:
    conditions = [
        *(f"scope `{scope}`" for scope in when.scope),
        f"name {_quoted(when.span)}" if when.span else "",
        f"kind {' or '.join(when.kind)}" if when.kind else "",
        *(
            f"has `{key}`" if texts == ("*",) else f"`{key}` is {_quoted(texts)}"
            for key, texts in when.attributes.items()
        ),
    ]
    return ", ".join(filter(None, conditions))


def _quoted(texts: Iterable[str]) -> str:
    *first, last = (f"`{text}`" for text in texts)
    return f"{', '.join(first)} or {last}" if first else last


def test_the_table_has_every_built_in_rule() -> None:
    table = "\n".join(row(rule) for rule in rule_config.built_in())

    assert table in PAGE, f"put this table into docs/traces.md:\n{table}"


def test_the_example_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = parse(example)
    rules = rule_config.read_rules(document, ("rules",), document.value["rules"])

    assert (document.problems, document.warnings) == ([], [])
    assert len(rules) == 4


def test_every_key_of_a_rule_is_on_the_page() -> None:
    assert [key for key in Rule.model_fields if f"`{key}`" not in PAGE] == []
