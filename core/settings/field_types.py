"""Types of the values in YAML and environment variables; a wrong value is rejected with the form to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema

from ..errors import ConfigError
from .values import parse_duration, parse_size
from .yaml_config import meant, show

MAX_PORT = 65_535
# Maximum size of a secret file, which holds a key or an address; a larger file was mounted by mistake.
MAX_FILE_BYTES = 16_384
T = TypeVar("T")


def reject_value(fix: str, *, why: str = "", example: str = "") -> NoReturn:
    """Fail in a validator with the message "<place> is <value><why>; <fix>, such as <example>"."""
    raise PydanticCustomError("form", "{fix}", {"fix": fix, "why": why, "example": example})  # noqa: EM101 - its type


def reject(text: str) -> NoReturn:
    """Fail in a validator with the message "<place> <text>", which does not repeat the value."""
    raise PydanticCustomError("text", "{text}", {"text": text})  # noqa: EM101 - its type


@dataclass(frozen=True, slots=True)
class Secret:
    """Secret of a section: at its own key, in the environment variable `<key>_env`, or in the file `<key>_file`.

    The context of the validation has the environment at `env`, and at `held` the last secret of each file by path, which is
    updated. During a rotation a file may be empty or missing for a moment; its last secret is used until it is readable again, with a
    *warning*. *lacking* is the environment variable or file that is to have the secret and has none.
    """

    value: str = field(default="", repr=False)
    lacking: str = ""
    file: Path | None = None
    is_inline: bool = False
    warning: str = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(cls._read)

    @classmethod
    def _read(cls, given: Any, info: ValidationInfo) -> Secret:
        key, here = next(iter(given.items()))
        named = [source for source, value in given.items() if value is not None and source != key]
        if len(named) + (here is not None) > 1:
            reject(f"is set twice; keep only {named[0]}")
        source = named[0] if named else key
        if not _is_text(given[source]):
            reject(f"is {show(given[source])}; write a text")
        text = str(given[source]).strip()
        context = info.context or {}
        if source == key:
            return cls(cls._inline(text), is_inline=True)
        if source.endswith("_env"):
            value = context["env"].get(text, "").strip()
            return cls(value, "" if value else text)
        value, trouble = _secret_in(text)
        if value:
            context["held"][text] = value
        value = context["held"].get(text, "")
        warning = f"names {text}, which {trouble}; the previous secret stays in use" if trouble and value else ""
        return cls(value, "" if value else f"the file {text}", Path(text), warning=warning)

    @classmethod
    def _inline(cls, text: str) -> str:
        return text


class SecretAddress(Secret):
    @classmethod
    def _inline(cls, text: str) -> str:
        return _address(text)


def _secret_in(path: str) -> tuple[str, str]:
    """Return the single line of text in the file at *path*, and a description of the error, "" for none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode().strip()
    except OSError as error:
        return "", f"cannot be read ({error.strerror})"
    except ValueError:
        return "", "is not text"
    if not text:
        return "", "is empty"
    return (text, "") if text.isprintable() and len(text) <= MAX_FILE_BYTES else ("", "is not one line of text")


def secret_from_env(env: Mapping[str, str], variable: str, file_variable: str) -> str:
    """Return the secret in *variable* of *env*, or in the file that *file_variable* names; empty without both."""
    path, text = env.get(file_variable, "").strip(), env.get(variable, "").strip()
    if text or not path:
        return text
    text, trouble = _secret_in(path)
    if trouble:
        msg = f"{file_variable} is {path}, which {trouble}; write the secret into it, in one line"
        raise ConfigError(msg)
    return text


def _is_text(value: object) -> bool:
    return value is not None and not isinstance(value, bool | list | dict) and bool(str(value).strip())


def as_text(value: object) -> str:
    """Return *value* as a text without spaces around it; YAML reads a version such as 1.0 or 2 as a number."""
    if not _is_text(value):
        reject_value("write a text")
    return str(value).strip()


def as_texts(value: object) -> tuple[str, ...]:
    """Return *value*, a text or a list of texts, as texts."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | int | float) and str(entry).strip() for entry in entries):
        reject_value("write texts")
    return tuple(str(entry).strip() for entry in entries)


def _address(value: object) -> str:
    text = as_text(value)
    if not text.startswith(("http://", "https://")):
        # The value may contain a secret: the message does not show it.
        reject("is not a web address; it starts with https://")
    return text


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        percent = _from_percent(value)
        reject_value("write a ratio between 0 and 1", example="" if percent is None else f"{percent:g}")
    return float(value)


def _from_percent(value: object) -> float | None:
    try:
        number = float(str(value).strip().removesuffix("%"))
    except ValueError:
        return None
    return round(number / 100, 10) if 1 < number < 100 else None  # noqa: PLR2004 - percent


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        length = parse_duration(str(value), "")
    except ConfigError:
        reject_value("write a number and a unit")
    if not length:
        reject_value("it must be longer than zero")
    return length


def _size(value: object) -> int:
    try:
        size = value if isinstance(value, int) and not isinstance(value, bool) else parse_size(str(value), "")
    except ConfigError:
        reject_value("write a number and a unit (B, kB, MB, GB, KiB, MiB, GiB)")
    if size <= 0:
        reject_value("it must be greater than zero")
    return size


def _moment(value: object) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        reject_value("write a time with a zone", why=", which is not a time with a zone")
    reject_value("write a time with a zone", why=", which has no zone")


def _file(value: object) -> Path:
    path = Path(as_text(value))
    if not path.is_file():
        reject_value("write the path of a file", why=", which is not a file")
    return path


def one_of(allowed: Collection[str]) -> BeforeValidator:
    """Return the validator of a text that must be one of *allowed*; for fixed names, `Literal` is simpler."""

    def choose(value: object) -> str:
        text = as_text(value)
        if text not in allowed:
            reject(f"is {text!r}; write one of {', '.join(allowed)}{meant(text, allowed)}")
        return text

    return BeforeValidator(choose)


def _entries(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {str(key): item for key, item in value.items() if item is not None}


Text = Annotated[str, BeforeValidator(as_text)]
# A text, or a list of texts.
Texts = Annotated[tuple[str, ...], BeforeValidator(as_texts)]
WebAddress = Annotated[str, BeforeValidator(_address)]
# Mapping with any keys; an empty value counts as missing.
Entries: TypeAlias = Annotated[dict[str, T], BeforeValidator(_entries)]
# 0 < x < 1
Ratio = Annotated[float, BeforeValidator(_ratio)]
# Above 0.
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
WholeAmount = Annotated[int, Field(gt=0, strict=True)]
# A number and a unit, such as 250ms.
Duration = Annotated[timedelta, BeforeValidator(_duration)]
# A number and a unit, such as 16MiB. [bytes]
Size = Annotated[int, BeforeValidator(_size)]
# 0 is any free port.
Port = Annotated[int, Field(ge=0, le=MAX_PORT)]
# A time with a zone, in UTC.
Moment = Annotated[datetime, BeforeValidator(_moment)]
# Path of a file that exists.
ExistingFile = Annotated[Path, BeforeValidator(_file)]
