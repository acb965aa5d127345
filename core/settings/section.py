"""Sections of YAML files and settings of the environment as pydantic models; each error names the place, the value and the fix.

A section declares its keys as fields. `Field(examples=[...])` gives the example of error messages, as a user would write it:

    class Limit(Section):
        name: Text = Field(examples=["checkout"])
        window: Duration = Field(default=timedelta(days=30), examples=["30d"])

        def faults(self) -> Iterator[Fault]:
            if self.window > timedelta(days=90):
                yield Fault("window", "is longer than 90d; the data are gone by then")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ..errors import ConfigError
from .field_types import Secret
from .yaml_config import Document, Place, Problem, meant, show, spell


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

    @model_validator(mode="after")
    def _without_faults(self) -> Self:
        errors = [
            InitErrorDetails(
                type=PydanticCustomError("text", "{text}", {"text": fault.text, "key": ""}), loc=fault.loc, input=None
            )
            for fault in self.faults()
            if not fault.is_warning
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def secrets(self) -> list[Secret]:
        return [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Secret)]

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = {str(key): item for key, item in value.items()}
        for key, named in _sources(cls).items():
            if named:
                sources = {each: given.pop(each, None) for each in (key, *named)}
                if any(item is not None for item in sources.values()):
                    given[key] = sources
            elif key in given and given[key] is None:
                del given[key]
        return given


S = TypeVar("S", bound=Section)


def read_section(
    model: type[S], document: Document, place: Place, value: Any, context: Mapping[str, Any] | None = None
) -> S | None:
    """Validate *value*, which is at *place* of *document*, as a section.

    Returns:
        The section; None if it is invalid.
    """
    try:
        found = model.model_validate(value, context=context)
    except ValidationError as error:
        document.problems.extend(_problem(model, document, place, each) for each in error.errors(include_url=False))
        return None
    for inner, text in _warnings(found, place):
        at = _written(document, (), inner)
        document.warnings.append(Problem(document.line(at), f"{spell(at) or 'the file'} {text}"))
    return found


def _warnings(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Section):
        yield from (((*place, *fault.loc), fault.text) for fault in value.faults() if fault.is_warning)
        for key, name in zip(_keys(type(value)), type(value).model_fields, strict=True):
            yield from _warnings(getattr(value, name), (*place, key))
    elif isinstance(value, Secret) and value.warning:
        yield (*place[:-1], f"{place[-1]}_file"), value.warning
    elif isinstance(value, tuple | list):
        for position, item in enumerate(value):
            yield from _warnings(item, (*place, position))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _warnings(item, (*place, key))


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
            lines = dict.fromkeys(_text(cls, (), each)[1] for each in error.errors(include_url=False))
            raise ConfigError("\n".join(lines)) from error


_FIXES = {
    "list_type": "write a list: one `- ` for each",
    "tuple_type": "write a list: one `- ` for each",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
}


def _problem(model: type[Section], document: Document, place: Place, error: ErrorDetails) -> Problem:
    at, text = _text(model, place, {**error, "loc": _written(document, place, error["loc"])})
    return Problem(document.line(at), text)


def _written(document: Document, place: Place, loc: Place) -> Place:
    """Return *loc*, which is below *place*, without the position of a value that is written alone instead of in a list."""
    found: Place = ()
    for step in loc:
        if isinstance(step, str) or (*place, *found, step) in document.lines:
            found = (*found, step)
    return found


def _text(model: type[BaseModel], place: Place, error: ErrorDetails) -> tuple[Place, str]:
    loc, given, context = tuple(error["loc"]), error["input"], error.get("ctx", {})
    owner, field = _field(model, loc)
    at = (*place, *loc)
    annotation, example = field and field.annotation, context.get("example") or _example(field)
    if loc and field is not _keys(owner).get(str(loc[-1])):  # a value of a mapping, whose example has key and value
        example = example.rpartition(": ")[2]
    such_as = f", such as {example}" if example else ""
    match error["type"]:
        case "missing":
            key = str(loc[-1]) + ("_env" if _holds(annotation, Secret) else "")
            return at[:-1], f"{spell((*at[:-1], key))} is missing; add `{key}: {example}`"
        case "text":
            text = context["text"]
            at = (*at[:-1], context["key"]) if context["key"] else at
        case "extra_forbidden":
            known = [each for key, named in _sources(owner).items() for each in (key, *named)]
            text = "is not known" + (meant(str(loc[-1]), known) or f"; known keys are {', '.join(known)}")
        case "form":
            text = f"is {show(given)}{context['why']}; {context['fix']}{such_as}"
        case "literal_error":
            allowed = _choices(annotation)
            text = f"is {show(given)}; write one of {', '.join(allowed)}{meant(str(given), allowed)}"
        case "model_type" | "dict_type":
            section = _section_in(annotation) if field else model
            example = (error["type"] == "model_type" and getattr(section, "example", "")) or example
            text = f"is {show(given)}; write keys and values, such as `{example}`"
        case kind if kind in _FIXES:
            text = f"is {show(given)}; {_FIXES[kind]}"
        case _:
            text = _limit_text(error, field, such_as)
    return at, f"{spell((*place, *loc)) or 'the file'} {text}"


def _field(model: type[BaseModel], loc: Place) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the model of the last key of *loc*, and its field; None for an unknown key and for the whole model."""
    owner, field = model, None
    inner: type[BaseModel] | None = model
    for step in loc:
        if isinstance(step, str) and inner is not None:
            owner, field = inner, _keys(inner).get(step)
            inner = None
        if field is not None:
            inner = _section_in(field.annotation) or inner
    return owner, field


@cache
def _keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {str(field.validation_alias or name): field for name, field in model.model_fields.items()}


@cache
def _sources(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the other keys that name the source of a secret, by key; empty for another value."""
    return {
        key: (f"{key}_env", f"{key}_file") if _holds(field.annotation, Secret) else ()
        for key, field in _keys(model).items()
    }


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the section that *annotation*, such as `tuple[Section, ...] | None`, holds."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_in(each))), None)


def _holds(annotation: Any, kind: type) -> bool:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return issubclass(annotation, kind)
    return any(_holds(each, kind) for each in get_args(annotation))


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(each) for each in get_args(annotation)]
    return [choice for each in get_args(annotation) for choice in _choices(each)]


def _limit_text(error: ErrorDetails, field: FieldInfo | None, such_as: str) -> str:
    given, metadata = error["input"], field.metadata if field else []
    if error["type"] == "string_too_long":
        return f"has {len(given)} characters; use at most {error.get('ctx', {})['max_length']}"
    low, high = (
        [each.ge for each in metadata if isinstance(each, Ge)],
        [each.le for each in metadata if isinstance(each, Le)],
    )
    if low and high:
        return f"is {show(given)}; write a whole number from {low[0]} to {high[0]}{such_as}"
    return f"is {show(given)}; {error['msg'][:1].lower()}{error['msg'][1:]}{such_as}"


def _example(field: FieldInfo | None) -> str:
    return str(field.examples[0]) if field and field.examples else ""
