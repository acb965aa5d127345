"""Attributes of requests that the user names: in the code by `stagelens.attribute`, or in STAGELENS_ATTRIBUTES by a header.

STAGELENS_ATTRIBUTES names the attributes, and the header or the member of the W3C header `baggage` that each one comes from:
`tenant=header:x-tenant,plan=baggage:plan`. No other header is read.

Source: https://www.w3.org/TR/baggage/
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from ..core.attributes import BY_KEY, MAX_NAMED
from ..core.errors import ConfigError
from ..core.text import MAX_TEXT, to_text
from .records import ATTRIBUTE, Marks, has_capacity

VARIABLE: Final = "STAGELENS_ATTRIBUTES"
BAGGAGE: Final = "baggage"
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,40}")
# https://www.rfc-editor.org/rfc/rfc9110#name-tokens
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")

logger = logging.getLogger("stagelens")

# Accepted names by the text that the user wrote; "" for a text that is not accepted, which is logged once.
_known: dict[str, str] = {}
MAX_TEXTS: Final = 1000


class AttributeSource(NamedTuple):
    name: str
    header: str
    member: str = ""


def attribute_name(text: object) -> str:
    """Return the attribute that the user calls *text*; "" if the name is not accepted. Never raises."""
    if type(text) is not str:
        # The hash of a foreign object may raise.
        text = to_text(text)
    cached_name = _known.get(text)
    if cached_name is not None:
        return cached_name
    name = text.lower()
    problem = name_problem(name)
    if not problem and name not in _known.values() and len({*_known.values()} - {""}) >= MAX_NAMED:
        problem = f"there are {MAX_NAMED} attributes already"
    if len(_known) < MAX_TEXTS:
        _known[text] = "" if problem else name
        if problem:
            logger.warning("stagelens: the attribute %.60r is not recorded: %s", text, problem)
    return "" if problem else name


def name_problem(name: str) -> str:
    """Return why *name* cannot be the name of an attribute; "" if it can."""
    if not _NAME.fullmatch(name):
        return "write a name of at most 40 letters, digits, `_`, `.` and `-`"
    return "Stagelens uses the name itself" if name in BY_KEY else ""


def parse(text: str, key: str = VARIABLE) -> tuple[AttributeSource, ...]:
    """Parse `name=header:NAME,name=baggage:KEY`.

    >>> parse("tenant=header:X-Tenant,plan=baggage:plan")
    (AttributeSource(name='tenant', header='x-tenant', member=''), AttributeSource(name='plan', header='baggage', member='plan'))
    """
    sources = tuple(_parse_one(entry.strip(), key) for entry in text.split(",") if entry.strip())
    if len({source.name for source in sources}) > MAX_NAMED:
        msg = f"{key} has more than {MAX_NAMED} attributes"
        raise ConfigError(msg)
    return sources


def _parse_one(entry: str, key: str) -> AttributeSource:
    name, _, source = entry.partition("=")
    kind, _, origin = source.partition(":")
    name, origin = name.strip().lower(), origin.strip()
    problem = name_problem(name)
    if kind == "header" and _HEADER.fullmatch(origin.lower()) and not problem:
        return AttributeSource(name, origin.lower())
    if kind == BAGGAGE and _HEADER.fullmatch(origin.lower()) and not problem:
        return AttributeSource(name, BAGGAGE, origin)
    msg = f"{key} has {entry!r}; write name=header:HEADER or name=baggage:KEY, such as tenant=header:x-tenant"
    raise ConfigError(f"{msg} ({name}: {problem})" if problem else msg)


def _sources(env: Mapping[str, str]) -> tuple[AttributeSource, ...]:
    try:
        parsed = parse(env.get(VARIABLE, ""))
    except ConfigError as error:
        logger.warning("stagelens: no attribute is read from a header: %s", error)
        return ()
    return tuple(source for source in parsed if attribute_name(source.name))


# Attributes in the headers of requests; the servers read no header for them if there are none.
sources = _sources(os.environ)


def record_attribute(marks: Marks, name: str, value: str) -> None:
    if has_capacity(marks):
        marks.extend((ATTRIBUTE, (name, value), 0))


def record_headers(marks: Marks, header: Callable[[str], str | None]) -> None:
    for name, header_name, member in sources:
        value = header(header_name)
        if value and member:
            value = baggage_member(value, member)
        if value:
            record_attribute(marks, name, value[:MAX_TEXT])


def baggage_member(baggage: str, key: str) -> str:
    """Return the value of the member *key* of a header `baggage`; "" for none.

    >>> baggage_member("user=1;secret, plan = gold%20plus;ttl=3", "plan")
    'gold plus'
    """
    for member in baggage.split(","):
        name, equals, value = member.partition(";")[0].partition("=")
        if equals and name.strip() == key:
            return unquote(value.strip())
    return ""
