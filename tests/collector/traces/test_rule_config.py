"""Section `rules:` of the collector's file and docs/traces.md: parsing, errors and warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagelens.collector.traces import rule_config
from stagelens.collector.traces.rule_config import Rule
from stagelens.core.settings.yaml_config import Document, parse


def read(text: str) -> tuple[tuple[Rule, ...], Document]:
    document = parse(text)
    # With the path of the section `rules:` in the collector's file.
    document.lines = {("rules", *place): line for place, line in document.lines.items()}
    return rule_config.read_rules(document, ("rules",), document.value), document


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


PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_example_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = parse(example)
    rules = rule_config.read_rules(document, ("rules",), document.value["rules"])

    assert (document.problems, document.warnings) == ([], [])
    assert len(rules) == 4


def test_every_key_of_a_rule_is_on_the_page() -> None:
    assert [key for key in Rule.model_fields if f"`{key}`" not in PAGE] == []
