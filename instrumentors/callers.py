"""The service that sent a request, which calls name in the W3C header `tracestate`: `stagelens=checkout`.

Source: https://www.w3.org/TR/trace-context/#tracestate-header
"""

from __future__ import annotations

import functools
import os
from typing import Final
from urllib.parse import quote, unquote

from .config import service_name

TRACESTATE: Final = "tracestate"
OWN_ENTRY: Final = "stagelens="
# Limit of a value, and the longest encoding of one character.
_MAX_VALUE, _MAX_ENCODED = 256, 12


def tracestate(service: str) -> str:
    """Return the `tracestate` header of calls from *service*.

    >>> tracestate("check out, v=2")
    'stagelens=check%20out%2C%20v%3D2'
    """
    value = ""
    for char in service:
        if len(value) > _MAX_VALUE - _MAX_ENCODED:
            break
        value += quote(char, safe="/", errors="replace")
    return OWN_ENTRY + value


@functools.cache
def own_tracestate() -> str:
    """Return the `tracestate` header of calls from this service."""
    return tracestate(service_name(os.environ))


def caller_of(header: str) -> str:
    """Return the service that the header `tracestate` names; "" for none.

    >>> caller_of("other=1, stagelens=check%20out")
    'check out'
    """
    for entry in header.split(","):
        name, _, value = entry.strip().partition("=")
        if name == OWN_ENTRY[:-1]:
            return unquote(value)
    return ""
