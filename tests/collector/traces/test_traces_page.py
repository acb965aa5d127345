"""The rules in docs/traces.md."""

from __future__ import annotations

import re
from pathlib import Path

from stagelens.collector.traces import rule_config
from stagelens.collector.traces.rule_config import Rule
from stagelens.core.settings.yaml_config import parse

PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_example_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = parse(example)
    rules = rule_config.read_rules(document, ("rules",), document.value["rules"])

    assert (document.problems, document.warnings) == ([], [])
    assert len(rules) == 4


def test_every_key_of_a_rule_is_on_the_page() -> None:
    assert [key for key in Rule.model_fields if f"`{key}`" not in PAGE] == []
