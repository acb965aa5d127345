"""Reading one rule of the section `rules:`, every mistake with its line and its cure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from ...core import names
from ...core.settings.yaml_document import Document, Place, Problem, spell
from ...core.settings.yaml_fields import Fields, meant
from .conditions import KINDS, Conditions, When
from .content import holds_content
from .measuring import TEXT, UNITS
from .rules import Part, Rule, Streaming, named_in

_UNITS = (*UNITS, TEXT)
# What stands for several characters or words elsewhere, and not here.
_SETS = re.compile(r"\[[^\]]*\]|\{[^}]*,[^}]*\}")


class RuleReader:
    """One rule, as it is read.

    Args:
        document: Problems are added to it.
        place: Where in it.
        item: What it says.
        allowed: The stages there are.
    """

    def __init__(self, document: Document, place: Place, item: Any, allowed: Collection[str]) -> None:
        self._document, self._place, self._allowed = document, place, allowed
        self._fields = Fields(document, place, item, example="name: our reranker")

    def rule(self) -> Rule | None:
        """Return it; None where it is no mapping."""
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

    def _when(self) -> tuple[When, ...]:
        fields = self._fields
        if not fields.has("when"):
            fields.value("when")
            fields.missing("when", "{span: rerank}")
            return ()
        value = fields.value("when")
        at = (*self._place, "when")
        several = [((*at, position), item) for position, item in enumerate(value)] if isinstance(value, list) else []
        return tuple(self._one_when(place, item) for place, item in several or [(at, value)])

    def _one_when(self, place: Place, item: Any) -> When:
        fields = Fields(self._document, place, item, example="span: rerank")
        when = When(
            scopes=self._globs(fields, "scope"),
            spans=self._globs(fields, "span"),
            kinds=self._kinds(fields),
            attributes=self._conditions(fields, place, "attributes"),
            resource=self._conditions(fields, place, "resource"),
        )
        fields.finish()
        if not fields.broken and not fields.keys:
            fields.complain(f"{spell(place)} says nothing; write which spans, such as `span: rerank`")
        return when

    def _globs(self, fields: Fields, key: str) -> tuple[str, ...]:
        """Return the texts at *key*, in which * and ? stand for anything."""
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
                text = f"{fields.name(key)} has {each!r}, read as it is written: only * and ? stand for anything"
                self._document.warnings.append(Problem(fields.line_of(key), f"{text}; write a list for several"))
        return tuple(made)

    def _kinds(self, fields: Fields) -> tuple[str, ...]:
        found = fields.texts("kind")
        for kind in found:
            if kind not in KINDS:
                allowed = sorted(set(KINDS))
                cure = f"write {', '.join(allowed)}{meant(kind, allowed)}"
                fields.complain(f"{fields.name('kind')} has {kind!r}; {cure}", "kind")
        return tuple(found)

    def _conditions(self, fields: Fields, place: Place, key: str) -> Conditions:
        value = fields.value(key)
        if value is None:
            return ()
        within = Fields(self._document, (*place, key), value, example='rerank.model: "*"')
        for name in within.keys:
            if not within.has(name):
                within.complain(f'{within.name(name)} is empty; write what it may be, "*" for anything', name)
        return tuple((name, self._globs(within, name)) for name in within.keys)

    def _stage(self, fields: Fields, key: str) -> str:
        found = fields.text(key)
        if found and found not in self._allowed:
            cure = meant(found, self._allowed) or "; name a stage of your own in `stages` first"
            fields.complain(f"{fields.name(key)} is {found!r}, which is no stage{cure}", key)
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
            self._check_content("called", named_in(found))
        return found

    def _sources(self, key: str) -> tuple[str, ...]:
        found = self._fields.texts(key)
        self._check_content(key, (name for source in found for name in named_in(source)))
        return tuple(found)

    def _check_content(self, key: str, attributes: Iterable[str]) -> None:
        for name in attributes:
            if holds_content(name):
                text = (
                    f"{self._fields.name(key)} has {name}, which may hold what people wrote; Stagelens never keeps that"
                )
                self._fields.complain(f"{text}: leave it out", key)

    def _part(self, place: Place, item: Any) -> Part:
        fields = Fields(self._document, place, item, example="stage: queue")
        part = Part(
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
                f"{spell(place)} must say in one way where it lies; write `lasts`, `until`, `begins` and "
                "`ends`, `to_event`, or `from_event` and `to_event`"
            )
        return part

    def _stream(self) -> Streaming:
        fields = self._fields.mapping("stream", example="first_token: [gen_ai.response.time_to_first_chunk]")
        if fields is None:
            return Streaming()
        stream = Streaming(
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
