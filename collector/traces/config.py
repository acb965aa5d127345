"""The section `rules:` of the collector's file: what spans of the user's own programs are; and the built-in rules, written alike.

rules:
  stages: [rerank]                          # stages of your own, three at most
  spans:
    - name: our reranker
      when: {scope: shop.search, span: "rerank *"}
      stage: rerank
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from ...core import stages
from ...core.errors import ConfigError
from ...core.settings.yaml_document import Document, Place, Problem, parse
from ...core.settings.yaml_fields import Fields
from ..ingest.dimensions import MAX_STAGE_CHARS
from .rule_reader import RuleReader
from .rules import Rule

BUILT_IN = "rules.yaml"
MAX_RULES = 200
_EXAMPLE = "spans: [{name: our reranker, when: {span: rerank}, stage: forward}]"


def read(document: Document, place: Place, value: Any) -> tuple[Rule, ...]:
    """Read the section; what is wrong with it is added to the document's problems, what never holds to its warnings."""
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
        ConfigError: They are wrong; a test holds that they are not.
    """
    document = parse((files(__package__ or "") / BUILT_IN).read_text(encoding="utf-8"))
    rules = read(document, (), document.value)
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
