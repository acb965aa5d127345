"""Sections of YAML files and settings of the environment as pydantic models; each error names the key, the value and the fix.

A section declares its keys as fields. `Field(examples=[...])` gives the example of error messages, as a user would write it:

    class Limit(Section):
        name: Text = Field(examples=["checkout"])
        window: Duration = Field(default=timedelta(days=30), examples=["30d"])

        def faults(self) -> Iterator[Fault]:
            if self.window > timedelta(days=90):
                yield Fault("window", "is longer than 90d; the data are gone by then")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ..errors import ConfigError
from .field_types import Secret
from .yaml_config import Document, Place, Problem, meant, show, spell

# What to write instead, by the type of pydantic's error; with the values of its context.
_FIXES = {
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "finite_number": "write a number",
    "float_parsing": "write a number",
    "float_type": "write a number",
    "greater_than": "write a number above {gt:g}",
    "greater_than_equal": "write at least {ge}",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "int_parsing_size": "write a whole number",
    "int_type": "write a whole number",
    "less_than_equal": "write at most {le}",
    "list_type": "write a list: one `- ` for each",
    "tuple_type": "write a list: one `- ` for each",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Error or warning about a value of the right form."""

    key: str | Place
    text: str
    is_warning: bool = False

    @property
    def loc(self) -> Place:
        if isinstance(self.key, str):
            return (self.key,) if self.key else ()
        return self.key


class Section(BaseModel):
    """Mapping of a YAML file; unknown keys are errors, and an empty value counts as missing.

    Attributes:
        example: A key and a value of the section, for the message about another value than a mapping.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True, protected_namespaces=()
    )
    example: ClassVar[str] = ""

    def faults(self) -> Iterator[Fault]:
        """Yield the errors and warnings of values in combination; called for a section whose values are valid."""
        yield from ()

    def secrets(self) -> list[Secret]:
        return [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Secret)]

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            section = handler(_without_empty(cls, value) if isinstance(value, dict) else value)
        except ValidationError as error:
            errors = [_explained(*explain(cls, detail)) for detail in error.errors(include_url=False)]
        else:
            errors = [_explained(fault.loc, fault.text) for fault in section.faults() if not fault.is_warning]
            if not errors:
                return section
        raise ValidationError.from_exception_data(cls.__name__, errors)


def _without_empty(model: type[Section], value: dict[Any, Any]) -> dict[str, Any]:
    """Return *value* without empty values, with the sources of each secret under its key."""
    given = {str(key): item for key, item in value.items()}
    for key, others in _sources(model).items():
        sources = {source: given.pop(source, None) for source in (key, *others)}
        if any(item is not None for item in sources.values()):
            given[key] = sources if others else sources[key]
    return given


S = TypeVar("S", bound=Section)


def read_section(
    model: type[S], document: Document, location: Place, value: Any, context: Mapping[str, Any] | None = None
) -> S | None:
    """Validate *value*, which is at *location* of *document*, as a section; None if it is invalid."""
    try:
        section = model.model_validate(value, context=context)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            document.problems.append(_problem(document, (*location, *detail["loc"]), detail["msg"]))
        return None
    document.warnings += (_problem(document, at, text) for at, text in _warnings(section, location))
    return section


def _problem(document: Document, location: Place, text: str) -> Problem:
    # Without the position of a value that is written alone instead of in a list.
    written: Place = ()
    for step in location:
        if isinstance(step, str) or (*written, step) in document.lines:
            written = (*written, step)
    # A secret may be at another key than its own.
    sources = ((*written[:-1], f"{written[-1]}{suffix}") for suffix in ("_env", "_file")) if written else ()
    line = document.line(next((source for source in sources if source in document.lines), written))
    return Problem(line, f"{spell(written) or 'the file'} {text}")


def _warnings(value: object, location: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Section):
        yield from (((*location, *fault.loc), fault.text) for fault in value.faults() if fault.is_warning)
        for key, name in zip(_keys(type(value)), type(value).model_fields, strict=True):
            yield from _warnings(getattr(value, name), (*location, key))
    elif isinstance(value, Secret) and value.warning:
        yield (*location[:-1], f"{location[-1]}_file"), value.warning
    elif isinstance(value, tuple | list):
        for position, item in enumerate(value):
            yield from _warnings(item, (*location, position))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _warnings(item, (*location, key))


class Settings(BaseModel):
    """Settings of a server, read once from environment variables, which are the aliases of the fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, populate_by_name=True, hide_input_in_errors=True
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from *env*, without the space around them; an empty value selects the default."""
        # Only the aliases: an environment may have a variable with the name of a field, such as `host`.
        variables = [str(field.validation_alias) for field in cls.model_fields.values() if field.validation_alias]
        given = {key: value for key in variables if (value := env.get(key, "").strip())}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = [explain(cls, detail) for detail in error.errors(include_url=False)]
            raise ConfigError("\n".join(dict.fromkeys(f"{spell(at)} {text}" for at, text in problems))) from error


def explain(model: type[BaseModel], error: ErrorDetails) -> tuple[Place, str]:
    """Return the place of *error* in *model*, and a text with the value and the fix, to be read after the place."""
    at, kind, value, context = tuple(error["loc"]), error["type"], error["input"], error.get("ctx", {})
    key = str(at[-1]) if at else ""
    field = _keys(model).get(str(at[0])) if at else None
    example = context.get("example") or _example(model, field)
    if len(at) > 1:  # a value of a mapping, whose example has key and value
        example = example.rpartition(": ")[2]
    such_as = f", such as {example}" if example else ""
    match kind:
        case "explained" | "text":
            return at, error["msg"]
        case "missing":
            key += "_env" if _is_secret(field) else ""
            return (*at[:-1], key), f"is missing; add `{key}: {example}`"
        case "extra_forbidden":
            keys = [known_key for key, named in _sources(model).items() for known_key in (key, *named)]
            return at, "is not known" + (meant(key, keys) or f"; known keys are {', '.join(keys)}")
        case "string_too_long":
            return at, f"has {len(value)} characters; use at most {context['max_length']}"
        case "form":
            text = f"{context['fix']}{such_as}"
        case "literal_error":
            allowed = re.findall(r"'(.*?)'", context["expected"])
            text = f"write one of {', '.join(allowed)}{meant(str(value), allowed)}"
        case "model_type" | "dict_type":
            text = f"write keys and values, such as `{example}`"
        case _:
            fix = _FIXES.get(kind) or f"{error['msg'][:1].lower()}{error['msg'][1:]}"
            text = f"{fix.format(**context)}{such_as}"
    return at, f"is {show(value)}{context.get('why', '')}; {text}"


def _explained(location: Place, text: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("explained", "{text}", {"text": text}), loc=location, input=None)


@cache
def _keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {str(field.validation_alias or name): field for name, field in model.model_fields.items()}


@cache
def _sources(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the other keys that name the source of a secret, by key; empty for another value."""
    return {key: (f"{key}_env", f"{key}_file") if _is_secret(field) else () for key, field in _keys(model).items()}


def _is_secret(field: FieldInfo | None) -> bool:
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Secret)


def _example(model: type[BaseModel], field: FieldInfo | None) -> str:
    """Return the example of *field*; without a field, one of the whole *model*."""
    if field is not None:
        return str(field.examples[0]) if field.examples else ""
    first = ((key, field) for key, field in _keys(model).items() if field.examples)
    return getattr(model, "example", "") or next((f"{key}: {_example(model, field)}" for key, field in first), "")
